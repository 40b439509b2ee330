//! Parquet inputs as local files. Of an object only the footer and the columns of row groups that
//! are needed are fetched, into a sparse file of the same size.

use crate::Failure;
use crate::parquet_file::{Chunk, footer_length, layout};
use sconce_shards::{InputStore, Listed};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A Parquet file that can be opened here.
pub(super) enum LocalParquet {
    /// The input itself.
    Original(PathBuf),
    /// A copy of parts of it, removed at the end.
    Copy(NamedTempFile),
}

impl LocalParquet {
    pub(super) fn path(&self) -> &Path {
        match self {
            LocalParquet::Original(path) => path,
            LocalParquet::Copy(file) => file.path(),
        }
    }
}

/// The footer of a file, with its length and the magic bytes after it.
pub(super) fn footer(inputs: &InputStore, file: &Listed) -> Result<Vec<u8>, Failure> {
    let fail = |why: &dyn std::fmt::Display| -> Failure { format!("{}: {why}", file.name).into() };
    if file.size < 12 {
        return Err(fail(&format!("not a Parquet file: it has only {} bytes", file.size)));
    }
    let mut end = [0; 8];
    inputs.open(file, file.size - 8..file.size)?.read_exact(&mut end).map_err(|e| fail(&e))?;
    let length = footer_length(end, file.size).map_err(|e| fail(&e))?;
    let mut bytes = Vec::new();
    let range = file.size - 8 - length..file.size;
    inputs.open(file, range)?.read_to_end(&mut bytes).map_err(|e| fail(&e))?;
    Ok(bytes)
}

/// The file, with at least its footer and these columns of these row groups.
pub(super) fn local(
    inputs: &InputStore,
    file: &Listed,
    groups: Range<usize>,
    columns: &[&str],
) -> Result<LocalParquet, Failure> {
    if let Some(path) = inputs.local_path(file) {
        return Ok(LocalParquet::Original(path.into()));
    }
    let fail = |e: io::Error| -> Failure { format!("{}: cannot be copied to this machine: {e}", file.name).into() };
    let footer = footer(inputs, file)?;
    let mut copy = NamedTempFile::new().map_err(fail)?;
    copy.as_file().set_len(file.size).map_err(fail)?;
    write_at(copy.as_file_mut(), file.size - footer.len() as u64, &mut &footer[..]).map_err(fail)?;
    if !groups.is_empty() {
        let layout = layout(copy.path(), &file.name)?;
        let is_needed = |chunk: &&Chunk| {
            let name = layout.columns.get(chunk.column).map(|column| column.name());
            name.is_some_and(|name| columns.contains(&name))
        };
        let groups = layout.groups.get(groups).unwrap_or_default();
        for chunk in groups.iter().flat_map(|group| &group.chunks).filter(is_needed) {
            let range = chunk.bytes.start.min(file.size)..chunk.bytes.end.min(file.size);
            let mut from = inputs.open(file, range.clone())?;
            write_at(copy.as_file_mut(), range.start, &mut from).map_err(fail)?;
        }
    }
    Ok(LocalParquet::Copy(copy))
}

fn write_at(to: &mut File, at: u64, from: &mut dyn Read) -> io::Result<()> {
    to.seek(SeekFrom::Start(at))?;
    io::copy(from, to)?;
    to.flush()
}
