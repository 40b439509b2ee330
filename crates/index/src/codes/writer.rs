//! Writing a segment.
//!
//! The int8 codes go to the file as rows arrive. The binary codes need the mean of all rows, so
//! [`SegmentWriter::finish`] computes them from the int8 codes, block by block. Memory is a few
//! bytes per row and entry of the metadata, whatever the dimensions.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use sha2::{Digest, Sha256};

use super::columns::ColumnsWriter;
use super::footer::{self, ALIGNMENT, Footer, MAGIC, Part, SegmentInfo, hex};
use super::kernels::BLOCK;
use super::quantize::{BitBlock, is_in_range, quantize, stride};
use super::{MAX_DIMENSIONS, Segment};
use crate::document::Metadata;
use crate::error::{Error, Result};

/// The ending of a segment that is being written. [`remove_stale`](super::remove_stale) deletes
/// what a killed process has left.
pub(super) const PARTIAL: &str = "partial";
/// The ending of a segment.
pub(super) const FINISHED: &str = "codes";

/// Writes a segment, row by row.
pub struct SegmentWriter {
    // Before `partial`: the file is closed before it is deleted.
    output: Output,
    partial: Partial,
    dir: PathBuf,
    dimensions: usize,
    ids: Vec<i64>,
    scales: Vec<f32>,
    /// The sums of the dequantized rows.
    sums: Vec<f64>,
    columns: ColumnsWriter,
    /// The codes of one row.
    scratch: Vec<i8>,
}

impl SegmentWriter {
    /// A new segment in a folder, which is created if it is missing.
    pub fn create(dir: &Path, dimensions: usize) -> Result<SegmentWriter> {
        if cfg!(target_endian = "big") {
            return Err(Error::Input("segments of codes need a little-endian processor".into()));
        }
        if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
            let why = format!("vectors of {dimensions} dimensions; an index takes 1 to {MAX_DIMENSIONS}");
            return Err(Error::Input(why));
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!("{}-{number}.{PARTIAL}", std::process::id()));
        create_private_dir(dir).map_err(Error::io(dir))?;
        // A killed process of the same id may have left a file of this name. It is not opened: in a
        // folder that someone else made it could be a link to another file.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::io(&path)(error)),
            _ => {}
        }
        let file = File::create_new(&path).map_err(Error::io(&path))?;
        let partial = Partial { path };
        let mut output = Output::new(file);
        output.write(MAGIC).and_then(|()| output.align()).map_err(Error::io(&partial.path))?;
        Ok(SegmentWriter {
            output,
            partial,
            dir: dir.into(),
            dimensions,
            ids: Vec::new(),
            scales: Vec::new(),
            sums: vec![0.0; dimensions],
            columns: ColumnsWriter::default(),
            scratch: Vec::new(),
        })
    }

    /// How many rows have been pushed.
    pub fn rows(&self) -> usize {
        self.ids.len()
    }

    /// Adds a chunk. Ids must ascend.
    pub fn push(&mut self, chunk: i64, vector: &[f32], metadata: &Metadata) -> Result<()> {
        if vector.len() != self.dimensions {
            let (has, expected) = (vector.len(), self.dimensions);
            return Err(Error::Input(format!("chunk {chunk} has a vector of {has} dimensions, expected {expected}")));
        }
        if !is_in_range(vector) {
            return Err(Error::Input(format!("chunk {chunk} has a vector with a value that is not a usual number")));
        }
        let mut codes = std::mem::take(&mut self.scratch);
        codes.clear();
        let scale = quantize(vector, &mut codes);
        let pushed = self.push_codes(chunk, &codes, scale, metadata);
        self.scratch = codes;
        pushed
    }

    /// Adds a row of another segment of the same dimensions.
    pub(super) fn push_row(&mut self, segment: &Segment, row: usize) -> Result<()> {
        let (codes, scale) = segment.int8_row(row);
        self.push_codes(segment.chunks()[row], codes, scale, &segment.metadata(row))
    }

    fn push_codes(&mut self, chunk: i64, codes: &[i8], scale: f32, metadata: &Metadata) -> Result<()> {
        if self.ids.last().is_some_and(|last| *last >= chunk) {
            return Err(Error::Input(format!("chunk {chunk} comes after a chunk with the same or a greater id")));
        }
        if self.ids.len() >= u32::MAX as usize {
            return Err(Error::Input(format!("a segment takes at most {} chunks", u32::MAX)));
        }
        self.output.write(bytemuck::cast_slice(codes)).map_err(Error::io(&self.partial.path))?;
        for (sum, code) in self.sums.iter_mut().zip(codes) {
            *sum += f64::from(f32::from(*code) * scale);
        }
        self.columns.push(self.ids.len() as u32, metadata);
        self.ids.push(chunk);
        self.scales.push(scale);
        Ok(())
    }

    /// Completes the file, makes it durable, and gives it its name. The segment is valid once the
    /// database has the result.
    pub fn finish(mut self) -> Result<SegmentInfo> {
        let (Some(first), Some(last)) = (self.ids.first().copied(), self.ids.last().copied()) else {
            return Err(Error::Input("a segment needs at least one chunk".into()));
        };
        let checksum = self.write_sections(first, last).map_err(Error::io(&self.partial.path))?;
        let rows = self.ids.len() as u64;
        let name = format!("{first}-{last}-{}.{FINISHED}", &checksum[..16]);
        let SegmentWriter { output, mut partial, dir, .. } = self;
        // Windows renames no open file.
        drop(output);
        let path = dir.join(&name);
        fs::rename(&partial.path, &path).map_err(Error::io(&path))?;
        partial.path.clear();
        sync_dir(&dir).map_err(Error::io(&dir))?;
        Ok(SegmentInfo { name, rows, first, last, checksum })
    }

    /// Writes everything after the int8 codes. Returns the footer's checksum.
    fn write_sections(&mut self, first: i64, last: i64) -> io::Result<String> {
        let rows = self.ids.len();
        let start = ALIGNMENT;
        let codes = Part { offset: start, bytes: (rows * stride(self.dimensions)) as u64 };
        self.output.file.flush()?;
        let mean: Vec<f32> = self.sums.iter().map(|sum| (sum / rows as f64) as f32).collect();
        let (bits, factors) = self.write_bits(&mean)?;
        let scales = self.output.part([bytemuck::cast_slice(&self.scales)])?;
        let ids = self.output.part([bytemuck::cast_slice(&self.ids)])?;
        let mean = self.output.part([bytemuck::cast_slice(&mean)])?;
        let columns = std::mem::take(&mut self.columns).write(rows as u32, &mut self.output)?;
        self.output.align()?;
        let (dimensions, rows) = (self.dimensions as u64, rows as u64);
        let digest = hex(self.output.hash.clone().finalize().as_slice());
        let footer = Footer { dimensions, rows, first, last, codes, bits, factors, scales, ids, mean, columns, digest };
        let (bytes, checksum) = footer::write(&footer)?;
        self.output.write(&bytes)?;
        self.output.file.flush()?;
        self.output.file.get_ref().sync_all()?;
        Ok(checksum)
    }

    /// Reads the int8 codes back and writes the binary codes and their factors.
    fn write_bits(&mut self, mean: &[f32]) -> io::Result<(Part, Part)> {
        let stride = stride(self.dimensions);
        let mut input = File::open(&self.partial.path)?;
        input.seek(SeekFrom::Start(ALIGNMENT))?;
        let mut input = io::BufReader::with_capacity(1 << 20, input);
        let mut rows = vec![0i8; BLOCK * stride];
        let mut block = BitBlock::new(self.dimensions);
        let mut factors = Vec::with_capacity(self.scales.len().next_multiple_of(BLOCK));
        self.output.align()?;
        let offset = self.output.offset;
        for scales in self.scales.chunks(BLOCK) {
            let rows = &mut rows[..scales.len() * stride];
            input.read_exact(bytemuck::cast_slice_mut(rows))?;
            block.encode(rows, scales, mean);
            self.output.write(&block.codes)?;
            factors.extend(block.factors);
        }
        let bits = Part { offset, bytes: self.output.offset - offset };
        Ok((bits, self.output.part([bytemuck::cast_slice(&factors)])?))
    }
}

/// The file that is being written, with the hash of what it has.
pub(super) struct Output {
    file: BufWriter<File>,
    hash: Sha256,
    offset: u64,
}

impl Output {
    fn new(file: File) -> Output {
        Output { file: BufWriter::with_capacity(1 << 20, file), hash: Sha256::new(), offset: 0 }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hash.update(bytes);
        self.offset += bytes.len() as u64;
        Ok(())
    }

    fn align(&mut self) -> io::Result<()> {
        let missing = self.offset.next_multiple_of(ALIGNMENT) - self.offset;
        self.write(&[0; ALIGNMENT as usize][..missing as usize])
    }

    /// Writes a section.
    pub(super) fn part<'a>(&mut self, pieces: impl IntoIterator<Item = &'a [u8]>) -> io::Result<Part> {
        self.align()?;
        let offset = self.offset;
        pieces.into_iter().try_for_each(|piece| self.write(piece))?;
        Ok(Part { offset, bytes: self.offset - offset })
    }
}

/// The path of a file that is deleted unless it has been renamed; the path is empty then.
struct Partial {
    path: PathBuf,
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            // The next writer deletes what could not be deleted here.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Creates a folder that only this user reads: the codes tell what is in the documents.
fn create_private_dir(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// Makes a rename in a folder durable. Windows has no such call.
fn sync_dir(dir: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}
