//! Input files on disks and in object stores.

use crate::error::{Error, Result};
use crate::manifest::hex;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

/// An input file that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its path or URL.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// ETag of an object; `None` for a file on a disk.
    pub etag: Option<String>,
}

/// Where input files are.
pub enum InputStore {
    /// On disks.
    Disk,
    /// In object stores.
    #[cfg(feature = "object-store")]
    Object(crate::object::Objects),
}

/// Endings of files that are taken from a folder.
const ENDINGS: [&str; 3] = [".jsonl", ".ndjson", ".parquet"];

/// Whether a file of this name is an input, if it is in a folder that was named.
pub(crate) fn is_input(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

impl InputStore {
    /// The file of this name, or the inputs in the folder of this name, sorted.
    pub fn list(&self, name: &str) -> Result<Vec<Listed>> {
        match self {
            InputStore::Disk => list_disk(name),
            #[cfg(feature = "object-store")]
            InputStore::Object(objects) => objects.list_inputs(name),
        }
    }

    /// Reads some bytes of a file, which must still be the one that was listed.
    pub fn open(&self, file: &Listed, range: Range<u64>) -> Result<Box<dyn Read + Send>> {
        match self {
            InputStore::Disk => {
                let fail = || Error::io(file.name.clone());
                let mut opened = File::open(&file.name).map_err(fail())?;
                opened.seek(SeekFrom::Start(range.start)).map_err(fail())?;
                Ok(Box::new(opened.take(range.end.saturating_sub(range.start))))
            }
            #[cfg(feature = "object-store")]
            InputStore::Object(objects) => objects.open_input(file, range),
        }
    }

    /// Reads a part of a file whose SHA-256, in hex, is known. At its end, other bytes are an error.
    pub fn open_checked(&self, file: &Listed, range: Range<u64>, sha256: &str) -> Result<Box<dyn Read + Send>> {
        Ok(Box::new(CheckedRange::new(self.open(file, range)?, sha256)))
    }

    /// The path of a file that this process can open as it is.
    pub fn local_path<'a>(&self, file: &'a Listed) -> Option<&'a Path> {
        match self {
            InputStore::Disk => Some(Path::new(&file.name)),
            #[cfg(feature = "object-store")]
            InputStore::Object(_) => None,
        }
    }
}

fn list_disk(name: &str) -> Result<Vec<Listed>> {
    let fail = |at: &Path| Error::io(at.display().to_string());
    let path = Path::new(name);
    let about = std::fs::metadata(path).map_err(fail(path))?;
    if about.is_file() {
        return Ok(vec![Listed { name: name.into(), size: about.len(), etag: None }]);
    }
    if !about.is_dir() {
        return Err(Error::Input(format!("{name}: not a file or a folder; shards are read more than once")));
    }
    let mut all = Vec::new();
    for entry in std::fs::read_dir(path).map_err(fail(path))? {
        let path = entry.map_err(fail(path))?.path();
        let Some(name) = path.to_str().filter(|name| is_input(name)) else { continue };
        let about = std::fs::metadata(&path).map_err(fail(&path))?;
        if about.is_file() {
            all.push(Listed { name: name.into(), size: about.len(), etag: None });
        }
    }
    if all.is_empty() {
        return Err(Error::Input(format!("{name}: no file in this folder ends with {}", ENDINGS.join(", "))));
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// Reads a part of a file whose hash is known. At its end, other bytes than expected are an error.
struct CheckedRange<R> {
    inner: R,
    hash: Sha256,
    expected: String,
}

impl<R: Read> CheckedRange<R> {
    /// Reads `inner` to its end. `expected` is a SHA-256 in hex.
    fn new(inner: R, expected: &str) -> CheckedRange<R> {
        CheckedRange { inner, hash: Sha256::new(), expected: expected.into() }
    }
}

impl<R: Read> Read for CheckedRange<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hash.update(&buffer[..count]);
        if count == 0 && !buffer.is_empty() && hex(&self.hash.clone().finalize()) != self.expected {
            return Err(io::Error::new(ErrorKind::InvalidData, "the file has changed since the run began"));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_part_is_an_error_at_its_end() {
        let expected = hex(&Sha256::digest(b"some rows"));
        let mut text = String::new();
        CheckedRange::new(&b"some rows"[..], &expected).read_to_string(&mut text).unwrap();
        assert_eq!(text, "some rows");
        for changed in [&b"some row"[..], b"some rowz", b""] {
            let e = CheckedRange::new(changed, &expected).read_to_end(&mut Vec::new()).unwrap_err();
            assert!(e.to_string().contains("has changed"), "{e}");
        }
    }

    #[test]
    fn folder_lists_its_inputs_sorted() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.jsonl", "a.parquet", "notes.md", "C.NDJSON"] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        std::fs::create_dir(dir.path().join("d.jsonl")).unwrap();
        let names = |name: &str| -> Vec<String> {
            let all = InputStore::Disk.list(name).unwrap();
            all.iter().map(|f| f.name.rsplit('/').next().unwrap().to_string()).collect()
        };
        assert_eq!(names(dir.path().to_str().unwrap()), ["C.NDJSON", "a.parquet", "b.jsonl"]);
        assert_eq!(names(dir.path().join("notes.md").to_str().unwrap()), ["notes.md"]);
        let empty = tempfile::tempdir().unwrap();
        let e = InputStore::Disk.list(empty.path().to_str().unwrap()).unwrap_err().to_string();
        assert!(e.contains(".parquet"), "{e}");
        assert!(InputStore::Disk.list("/absent/x.jsonl").unwrap_err().to_string().contains("/absent/x.jsonl"));
    }
}
