//! Where bytes go: standard output, a special file, or an ordinary one that appears under its name only when it is whole.

use crate::Failure;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

pub(crate) enum Sink {
    /// Standard output, or a file that is not an ordinary one (a pipe, `/dev/null`) and must not be replaced by one.
    Stream(BufWriter<Box<dyn Write>>),
    /// A temporary file, and what becomes of it in the end.
    Scratch(BufWriter<NamedTempFile>, Then),
}

pub(crate) enum Then {
    /// It takes this name.
    Rename(PathBuf),
    /// It is copied there.
    Copy(Box<dyn Write>),
}

impl Sink {
    /// Opens `out`, or standard output. A file is written beside its place first, so a full disk or Ctrl-C leaves the old one
    /// as it was. Where `seeks` is said, what is written can be gone back to before the end.
    pub(crate) fn open(out: Option<&Path>, seeks: bool) -> io::Result<Sink> {
        let ordinary = |path: &Path| std::fs::symlink_metadata(path).map_or(true, |m| m.is_file());
        let stream: Box<dyn Write> = match out {
            Some(path) if ordinary(path) => {
                let file = scratch_beside(path)?;
                return Ok(Sink::Scratch(BufWriter::new(file), Then::Rename(path.to_path_buf())));
            }
            Some(path) => Box::new(File::options().write(true).open(path)?),
            None => Box::new(io::stdout()),
        };
        if seeks {
            return Ok(Sink::Scratch(BufWriter::new(NamedTempFile::new()?), Then::Copy(stream)));
        }
        Ok(Sink::Stream(BufWriter::new(stream)))
    }

    /// The temporary file, to be removed if the command is interrupted.
    pub(crate) fn scratch(&self) -> Option<PathBuf> {
        match self {
            Sink::Scratch(file, _) => Some(file.get_ref().path().to_path_buf()),
            Sink::Stream(_) => None,
        }
    }

    /// Back to the beginning.
    pub(crate) fn rewind(&mut self) -> io::Result<()> {
        match self {
            Sink::Scratch(file, _) => file.seek(SeekFrom::Start(0)).map(drop),
            Sink::Stream(_) => Err(ErrorKind::NotSeekable.into()),
        }
    }

    /// Lets a reader at the other end see what there is. A file is seen when it is whole.
    pub(crate) fn show(&mut self) -> io::Result<()> {
        match self {
            Sink::Stream(stream) => stream.flush(),
            Sink::Scratch(..) => Ok(()),
        }
    }

    /// Completes the output and puts it under its name.
    pub(crate) fn finish(self) -> io::Result<()> {
        match self {
            Sink::Stream(mut stream) => stream.flush(),
            Sink::Scratch(file, then) => {
                let mut file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
                match then {
                    Then::Rename(path) => file.persist(path).map(drop).map_err(io::Error::from),
                    Then::Copy(mut stream) => {
                        file.seek(SeekFrom::Start(0))?;
                        io::copy(&mut file, &mut stream)?;
                        stream.flush()
                    }
                }
            }
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Sink::Stream(stream) => stream.write(bytes),
            Sink::Scratch(file, _) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Sink::Stream(stream) => stream.flush(),
            Sink::Scratch(file, _) => file.flush(),
        }
    }
}

/// Ctrl-C ends at once, and takes a half-written file with it.
pub(crate) fn remove_on_ctrl_c(scratch: Option<PathBuf>) -> Result<(), Failure> {
    let stop = move || {
        if let Some(path) = &scratch {
            // Gone already, or about to be: either way there is nobody left to tell.
            let _ = std::fs::remove_file(path);
        }
        std::process::exit(130);
    };
    Ok(ctrlc::set_handler(stop)?)
}

/// A temporary file where `path` will be.
fn scratch_beside(path: &Path) -> io::Result<NamedTempFile> {
    let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ordinary_file().tempfile_in(dir)
}

/// With the permissions of any new file, not the private ones of a temporary.
#[cfg(unix)]
fn ordinary_file() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder
}

#[cfg(not(unix))]
fn ordinary_file() -> tempfile::Builder<'static, 'static> {
    tempfile::Builder::new()
}
