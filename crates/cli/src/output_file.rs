//! Destination of bytes: standard output, a special file, or a regular file that is replaced
//! atomically.

use crate::Failure;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

pub(crate) enum OutputFile {
    /// Standard output, or a special file (a pipe, `/dev/null`), which must not be replaced.
    Stream(BufWriter<Box<dyn Write + Send>>),
    /// A temporary file, and what happens to it at the end.
    Temporary(BufWriter<NamedTempFile>, OnFinish),
    /// The output of a shard, which its caller publishes.
    Hashed(BufWriter<HashedFile>),
}

/// A file whose content is hashed as it is written.
pub(crate) struct HashedFile {
    file: File,
    hash: Sha256,
    bytes: u64,
}

/// What identifies the content of a file.
pub(crate) struct ContentId {
    pub(crate) bytes: u64,
    /// In hex.
    pub(crate) sha256: String,
}

impl Write for HashedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

pub(crate) enum OnFinish {
    /// Renamed to this path.
    Rename(PathBuf),
    /// Copied to this stream.
    Copy(Box<dyn Write + Send>),
}

impl OutputFile {
    /// Opens `out`, or standard output. A regular file is written to a temporary file next to it
    /// first, so that a full disk or Ctrl-C leaves the old one unchanged. With `seeks`, the output
    /// can be rewound before the end.
    pub(crate) fn open(out: Option<&Path>, seeks: bool) -> io::Result<OutputFile> {
        let is_regular = |path: &Path| std::fs::symlink_metadata(path).map_or(true, |m| m.is_file());
        let stream: Box<dyn Write + Send> = match out {
            Some(path) if is_regular(path) => {
                let file = temporary_beside(path)?;
                return Ok(OutputFile::Temporary(BufWriter::new(file), OnFinish::Rename(path.to_path_buf())));
            }
            Some(path) => Box::new(File::options().write(true).open(path)?),
            None => Box::new(io::stdout()),
        };
        if seeks {
            return Ok(OutputFile::Temporary(BufWriter::new(NamedTempFile::new()?), OnFinish::Copy(stream)));
        }
        Ok(OutputFile::Stream(BufWriter::new(stream)))
    }

    /// Creates a file whose content is hashed as it is written.
    pub(crate) fn create_hashed(path: &Path) -> io::Result<OutputFile> {
        let file = HashedFile { file: File::create(path)?, hash: Sha256::new(), bytes: 0 };
        Ok(OutputFile::Hashed(BufWriter::with_capacity(1 << 18, file)))
    }

    /// Completes a hashed file.
    pub(crate) fn finish_hashed(self) -> io::Result<ContentId> {
        let OutputFile::Hashed(file) = self else { return Err(ErrorKind::Unsupported.into()) };
        let HashedFile { hash, bytes, .. } = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        let sha256 = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(ContentId { bytes, sha256 })
    }

    /// The temporary file, to be removed on Ctrl-C.
    pub(crate) fn temporary_path(&self) -> Option<PathBuf> {
        match self {
            OutputFile::Temporary(file, _) => Some(file.get_ref().path().to_path_buf()),
            OutputFile::Stream(_) | OutputFile::Hashed(_) => None,
        }
    }

    /// Seeks to the beginning.
    pub(crate) fn rewind(&mut self) -> io::Result<()> {
        match self {
            OutputFile::Temporary(file, _) => file.seek(SeekFrom::Start(0)).map(drop),
            OutputFile::Stream(_) | OutputFile::Hashed(_) => Err(ErrorKind::NotSeekable.into()),
        }
    }

    /// Flushes a stream for its reader. A regular file becomes visible only when it is complete.
    pub(crate) fn flush_stream(&mut self) -> io::Result<()> {
        match self {
            OutputFile::Stream(stream) => stream.flush(),
            OutputFile::Temporary(..) | OutputFile::Hashed(_) => Ok(()),
        }
    }

    /// Completes the output and renames it to its final name.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self {
            OutputFile::Stream(mut stream) => stream.flush(),
            OutputFile::Hashed(mut file) => file.flush(),
            OutputFile::Temporary(file, on_finish) => {
                let mut file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
                match on_finish {
                    OnFinish::Rename(path) => file.persist(path).map(drop).map_err(io::Error::from),
                    OnFinish::Copy(mut stream) => {
                        file.seek(SeekFrom::Start(0))?;
                        io::copy(&mut file, &mut stream)?;
                        stream.flush()
                    }
                }
            }
        }
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            OutputFile::Stream(stream) => stream.write(bytes),
            OutputFile::Temporary(file, _) => file.write(bytes),
            OutputFile::Hashed(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            OutputFile::Stream(stream) => stream.flush(),
            OutputFile::Temporary(file, _) => file.flush(),
            OutputFile::Hashed(file) => file.flush(),
        }
    }
}

/// Ctrl-C exits at once and removes the temporary file.
pub(crate) fn remove_on_ctrl_c(temporary_path: Option<PathBuf>) -> Result<(), Failure> {
    let stop = move || {
        if let Some(path) = &temporary_path {
            // The process exits, so an error cannot be reported.
            let _ = std::fs::remove_file(path);
        }
        std::process::exit(130);
    };
    Ok(ctrlc::set_handler(stop)?)
}

/// A temporary file in the directory of `path`.
fn temporary_beside(path: &Path) -> io::Result<NamedTempFile> {
    let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    regular_file().tempfile_in(dir)
}

/// With the permissions of a regular file instead of a temporary file's.
#[cfg(unix)]
fn regular_file() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder
}

#[cfg(not(unix))]
fn regular_file() -> tempfile::Builder<'static, 'static> {
    tempfile::Builder::new()
}
