//! Opening files: regular ones only, without following links, bounded, and no private keys.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

use super::error::ReadError;

/// How many bytes decide whether a file is text.
const HEAD_BYTES: u64 = 8 << 10;

/// The beginning of a regular file.
pub fn head_of(path: &Path) -> Result<Vec<u8>, ReadError> {
    Ok(open(path)?.head)
}

/// An open file, positioned at its start.
pub(super) struct Source {
    pub(super) file: File,
    pub(super) size: u64,
    pub(super) head: Vec<u8>,
}

/// Opens a regular file, never blocks, and does not follow a link.
pub(crate) fn open_regular(path: &Path) -> std::io::Result<File> {
    let file = open_no_follow(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(std::io::Error::other("is not a regular file")),
    }
}

/// Opens a file to be read. The walk checked the kind too, but the file may have been replaced since.
pub(super) fn open(path: &Path) -> Result<Source, ReadError> {
    let mut file = match open_regular(path) {
        Ok(file) => file,
        Err(_) if std::fs::symlink_metadata(path).is_ok_and(|m| !m.is_file()) => return Err(ReadError::NotAFile),
        Err(error) => return Err(error.into()),
    };
    let size = file.metadata()?.len();
    let mut head = Vec::new();
    (&mut file).take(HEAD_BYTES).read_to_end(&mut head)?;
    file.rewind()?;
    if is_private_key(&head) {
        return Err(ReadError::Secret);
    }
    Ok(Source { file, size, head })
}

impl Source {
    /// The whole content, if it is within the limit. The file may grow while it is read.
    pub(super) fn content(mut self, limit: u64) -> Result<Vec<u8>, ReadError> {
        if self.size > limit {
            return Err(ReadError::TooLarge { size: self.size, limit });
        }
        let mut content = Vec::new();
        (&mut self.file).take(limit.saturating_add(1)).read_to_end(&mut content)?;
        match content.len() as u64 {
            size if size > limit => Err(ReadError::TooLarge { size, limit }),
            _ => Ok(content),
        }
    }
}

/// A FIFO must not block, and a link that replaced the file must not lead out of the root.
#[cfg(unix)]
fn open_no_follow(path: &Path) -> std::io::Result<File> {
    use rustix::fs::OFlags;
    use std::os::unix::fs::OpenOptionsExt;
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    std::fs::OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)
}

#[cfg(not(unix))]
fn open_no_follow(path: &Path) -> std::io::Result<File> {
    if std::fs::symlink_metadata(path)?.is_symlink() {
        return Err(std::io::Error::other("is a symbolic link"));
    }
    File::open(path)
}

/// Whether the content begins as PEM files with private keys do.
fn is_private_key(head: &[u8]) -> bool {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    let line = head.split(|&b| b == b'\n').next().unwrap_or(head).trim_ascii_end();
    line.starts_with(b"-----BEGIN ")
        && (line.ends_with(b"PRIVATE KEY-----") || line.ends_with(b"PRIVATE KEY BLOCK-----"))
        || head.starts_with(b"PuTTY-User-Key-File-")
}
