//! Opening files: regular ones only, without following links, bounded, and no private keys.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Component, Path};

use super::error::ReadError;

/// How many bytes decide whether a file is text.
const HEAD_BYTES: u64 = 8 << 10;

/// Where a file is. Whoever may write to a folder can replace a folder in it by a link while it is
/// indexed, so links are followed up to `root`, which the user named, and not below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileRef<'a> {
    /// The folder.
    pub root: &'a Path,
    /// The path below the folder.
    pub relative: &'a Path,
}

impl<'a> FileRef<'a> {
    /// A file by its path: below the folder that holds it.
    pub fn of(path: &'a Path) -> Self {
        let name = path.file_name().map_or(Path::new(""), Path::new);
        // A name alone is in the working directory; its parent is the empty path.
        let root = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        Self { root: root.unwrap_or(Path::new(".")), relative: name }
    }
}

/// The beginning of a regular file.
pub fn head_of(file: FileRef<'_>) -> Result<Vec<u8>, ReadError> {
    Ok(open(file)?.head)
}

/// An open file, positioned at its start.
pub(super) struct Source {
    pub(super) file: File,
    pub(super) size: u64,
    pub(super) head: Vec<u8>,
}

/// Opens a regular file, never blocks, and follows no link below the root.
pub(crate) fn open_regular(file: FileRef<'_>) -> io::Result<File> {
    let file = open_no_follow(file)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("is not a regular file")),
    }
}

/// Opens a file to be read. The walk checked the kind too, but the file may have been replaced since.
pub(super) fn open(file: FileRef<'_>) -> Result<Source, ReadError> {
    let path = file.root.join(file.relative);
    let mut file = match open_regular(file) {
        Ok(file) => file,
        Err(_) if std::fs::symlink_metadata(&path).is_ok_and(|m| !m.is_file()) => return Err(ReadError::NotAFile),
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

/// A FIFO must not block, and a link that replaced a file or a folder must not lead out of the root:
/// each folder is opened in the one before.
#[cfg(unix)]
fn open_no_follow(FileRef { root, relative }: FileRef<'_>) -> io::Result<File> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
    // Where the system can, without the right to list the folder.
    #[cfg(target_os = "linux")]
    let folder_flags = flags | OFlags::DIRECTORY | OFlags::PATH;
    #[cfg(not(target_os = "linux"))]
    let folder_flags = flags | OFlags::DIRECTORY;
    let mut folder = openat(CWD, root, folder_flags, Mode::empty())?;
    let mut rest = relative.components().peekable();
    while let Some(Component::Normal(name)) = rest.next() {
        if rest.peek().is_none() {
            return Ok(openat(&folder, name, flags | OFlags::NOFOLLOW | OFlags::NONBLOCK, Mode::empty())?.into());
        }
        folder = openat(&folder, name, folder_flags | OFlags::NOFOLLOW, Mode::empty())?;
    }
    Err(not_below())
}

#[cfg(not(unix))]
fn open_no_follow(FileRef { root, relative }: FileRef<'_>) -> io::Result<File> {
    let mut path = root.to_path_buf();
    for component in relative.components() {
        let Component::Normal(name) = component else { return Err(not_below()) };
        path.push(name);
        if std::fs::symlink_metadata(&path)?.is_symlink() {
            return Err(io::Error::other("is a symbolic link, or below one"));
        }
    }
    File::open(path)
}

fn not_below() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "is not a path below its folder")
}

/// Whether the content begins as PEM files with private keys do.
fn is_private_key(head: &[u8]) -> bool {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    let line = head.split(|&b| b == b'\n').next().unwrap_or(head).trim_ascii_end();
    line.starts_with(b"-----BEGIN ")
        && (line.ends_with(b"PRIVATE KEY-----") || line.ends_with(b"PRIVATE KEY BLOCK-----"))
        || head.starts_with(b"PuTTY-User-Key-File-")
}
