//! The files of a prefix cache. Each appears as a whole, under its final name, and is checked when
//! it is read: a file that is damaged is removed, and costs time, never a wrong answer.

use super::PromptCacheOptions;
use super::key::Key;
use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const MAGIC: &[u8; 8] = b"SCONCEKV";
/// Magic, key, length and checksum.
const HEAD: usize = 8 + 32 + 8 + 32;
const EXTENSION: &str = "kv";
/// The beginning of the names of files that are being written.
const TEMPORARY: &str = ".tmp-";
/// After this time a file that is being written belongs to a process that was killed.
const ABANDONED: Duration = Duration::from_secs(3_600);

/// The folder of a prefix cache.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    max_bytes: u64,
}

/// A stored chunk.
struct Stored {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

impl Folder {
    /// Opens the folder, and makes it if it is missing.
    pub(crate) fn open(options: &PromptCacheOptions) -> Result<Folder> {
        let path = &options.folder;
        let failed = |e: io::Error| Error::Input(format!("the prompt cache {}: {e}", path.display()));
        make(path).map_err(failed)?;
        let about = fs::metadata(path).map_err(failed)?;
        if !about.is_dir() {
            return Err(Error::Input(format!("the prompt cache {} is not a folder", path.display())));
        }
        if is_writable_by_others(&about) {
            let path = path.display();
            let what = format!("other users can write to the prompt cache {path}, and so change answers");
            return Err(Error::Input(format!("{what}; run `chmod go-w {path}`, or name another folder")));
        }
        // So can the owner of a folder in which this process may not write. A file system that nobody
        // can write to is fine.
        if let Err(e) = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(path)
            && e.kind() == io::ErrorKind::PermissionDenied
        {
            return Err(failed(e));
        }
        let folder = Folder { path: path.clone(), max_bytes: options.max_bytes };
        folder.remove_abandoned();
        Ok(folder)
    }

    fn file(&self, key: &Key) -> PathBuf {
        self.path.join(format!("{}.{EXTENSION}", key.hex()))
    }

    /// Whether there is a file for this chunk.
    pub(crate) fn has(&self, key: &Key) -> bool {
        fs::symlink_metadata(self.file(key)).is_ok_and(|about| about.is_file())
    }

    /// Marks a chunk as used now.
    pub(crate) fn touch(&self, key: &Key) {
        // Another process may have removed it.
        let _ = open_regular(&self.file(key)).and_then(|file| file.set_modified(SystemTime::now()));
    }

    /// The content of a chunk of `len` bytes; `None` if there is none, or if it is damaged.
    pub(crate) fn read(&self, key: &Key, len: usize) -> Option<Vec<u8>> {
        let path = self.file(key);
        match read_checked(&path, key, len) {
            Ok(content) => Some(content),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => {
                tracing::warn!(path = %path.display(), "removed a damaged file of the prompt cache: {e}");
                let _ = fs::remove_file(&path);
                None
            }
        }
    }

    /// Stores a chunk, after removing others if there is no room for it.
    pub(crate) fn write(&self, key: &Key, content: &[u8]) -> io::Result<()> {
        let bytes = (HEAD + content.len()) as u64;
        if bytes > self.max_bytes {
            let most = self.max_bytes;
            return Err(io::Error::other(format!(
                "a part of a prompt has {bytes} bytes, more than all may have: {most}"
            )));
        }
        self.evict(self.max_bytes - bytes)?;
        // Created anew with a random name, for its owner alone; the rename replaces a link, and does
        // not follow it. A torn file after a loss of power fails its checksum, so nothing waits for
        // the disk.
        let mut file = tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(&self.path)?;
        file.write_all(MAGIC)?;
        file.write_all(key.bytes())?;
        file.write_all(&(content.len() as u64).to_le_bytes())?;
        file.write_all(&Sha256::digest(content))?;
        file.write_all(content)?;
        file.persist(self.file(key))?;
        Ok(())
    }

    /// Removes the least recently used chunks until the others have at most `most` bytes.
    fn evict(&self, most: u64) -> io::Result<()> {
        let mut all = self.stored()?;
        let mut bytes: u64 = all.iter().map(|stored| stored.bytes).sum();
        all.sort_by(|a, b| (a.used, &a.path).cmp(&(b.used, &b.path)));
        for stored in all {
            if bytes <= most {
                break;
            }
            // Another process may have removed it already.
            match fs::remove_file(&stored.path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => bytes = bytes.saturating_sub(stored.bytes),
            }
        }
        Ok(())
    }

    /// All chunks. Files with other names are not ours.
    fn stored(&self) -> io::Result<Vec<Stored>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            let is_ours = path.extension().is_some_and(|e| e == EXTENSION)
                && path.file_stem().is_some_and(|stem| stem.len() == 64);
            let Some(about) = fs::symlink_metadata(&path).ok().filter(|about| is_ours && about.is_file()) else {
                continue;
            };
            all.push(Stored { path, bytes: about.len(), used: about.modified()? });
        }
        Ok(all)
    }

    /// Removes what processes that were killed have left.
    fn remove_abandoned(&self) {
        let Ok(entries) = fs::read_dir(&self.path) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            let is_temporary =
                path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(TEMPORARY.as_bytes()));
            let is_old = |about: Metadata| about.modified().ok()?.elapsed().ok().map(|age| age > ABANDONED);
            if is_temporary && fs::symlink_metadata(&path).ok().and_then(is_old) == Some(true) {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

fn read_checked(path: &Path, key: &Key, len: usize) -> io::Result<Vec<u8>> {
    let mut file = open_regular(path)?;
    let damaged = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    if file.metadata()?.len() != (HEAD + len) as u64 {
        return Err(damaged("it has another size"));
    }
    let mut head = [0; HEAD];
    file.read_exact(&mut head)?;
    let (about, checksum) = head.split_at(HEAD - 32);
    let expected = [&MAGIC[..], key.bytes(), &(len as u64).to_le_bytes()].concat();
    if about != expected {
        return Err(damaged("it belongs to another prompt"));
    }
    let mut content = vec![0; len];
    file.read_exact(&mut content)?;
    match Sha256::digest(&content).as_slice() == checksum {
        true => Ok(content),
        false => Err(damaged("its checksum is wrong")),
    }
}

/// Opens a file that is no link.
fn open_regular(path: &Path) -> io::Result<File> {
    let before = fs::symlink_metadata(path)?;
    if !before.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file"));
    }
    let file = File::open(path)?;
    // It may have been replaced between the two calls.
    if is_same(&before, &file.metadata()?) { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
}

#[cfg(unix)]
fn is_same(a: &Metadata, b: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(not(unix))]
fn is_same(a: &Metadata, b: &Metadata) -> bool {
    b.is_file() && a.len() == b.len()
}

/// Makes a folder that other users of the machine cannot read: prompts can be private.
fn make(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

#[cfg(unix)]
fn is_writable_by_others(about: &Metadata) -> bool {
    std::os::unix::fs::MetadataExt::mode(about) & 0o022 != 0
}

#[cfg(not(unix))]
fn is_writable_by_others(_: &Metadata) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::super::key::hash_model;
    use super::*;

    fn keys(dir: &Path) -> [Key; 3] {
        let root = hash_model(dir, "").expect("a key");
        [1, 2, 3].map(|token| root.then(&[token]))
    }

    fn age(folder: &Folder, key: &Key, seconds: u64) {
        let file = File::open(folder.file(key)).expect("a file");
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).expect("a time");
    }

    #[test]
    fn damaged_files_are_not_read_and_are_removed() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(&PromptCacheOptions::new(dir.path().join("cache"))).expect("a folder");
        let [key, other, _] = keys(dir.path());
        let store = || folder.write(&key, b"keys and values").expect("a file");
        let path = folder.file(&key);
        store();
        assert_eq!(folder.read(&key, 15).expect("content"), b"keys and values");
        assert!(folder.read(&other, 15).is_none());
        let whole = fs::read(&path).expect("a file");
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).expect("a file");
            assert!(folder.read(&key, 15).is_none() && !folder.has(&key), "byte {at}");
        }
        for damaged in [&whole[..whole.len() - 1], b""] {
            fs::write(&path, damaged).expect("a file");
            assert!(folder.read(&key, 15).is_none() && !folder.has(&key));
        }
        // A valid file under another name is of another prompt.
        store();
        fs::rename(&path, folder.file(&other)).expect("a file");
        assert!(folder.read(&other, 15).is_none());
    }

    #[test]
    fn least_recently_used_chunks_make_room() {
        let dir = tempfile::tempdir().expect("a folder");
        let one = (HEAD + 100) as u64;
        let options = PromptCacheOptions::new(dir.path().join("cache")).with_max_bytes(2 * one);
        let folder = Folder::open(&options).expect("a folder");
        let [a, b, c] = keys(dir.path());
        fs::write(options.folder.join("a file of the user.kv"), [0; 1000]).expect("a file");
        for (key, seconds) in [(&a, 30), (&b, 20)] {
            folder.write(key, &[0; 100]).expect("a file");
            age(&folder, key, seconds);
        }
        folder.touch(&a);
        folder.write(&c, &[0; 100]).expect("a file");
        assert_eq!([&a, &b, &c].map(|key| folder.has(key)), [true, false, true]);
        assert!(folder.write(&b, &[0; 300]).is_err(), "larger than all may be");
        assert!(options.folder.join("a file of the user.kv").exists());
    }

    #[cfg(unix)]
    #[test]
    fn files_are_private_and_links_are_not_followed() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let dir = tempfile::tempdir().expect("a folder");
        let options = PromptCacheOptions::new(dir.path().join("cache"));
        let folder = Folder::open(&options).expect("a folder");
        let [key, other, _] = keys(dir.path());
        let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
        folder.write(&key, b"private").expect("a file");
        assert_eq!((mode(&options.folder), mode(&folder.file(&key))), (0o700, 0o600));
        let target = dir.path().join("target");
        fs::rename(folder.file(&key), &target).expect("a file");
        symlink(&target, folder.file(&key)).expect("a link");
        assert!(folder.read(&key, 7).is_none(), "a link to a valid file");
        symlink(&target, folder.file(&other)).expect("a link");
        let before = fs::read(&target).expect("a file");
        folder.write(&other, b"another").expect("a file");
        assert_eq!(fs::read(&target).expect("a file"), before, "the link is replaced, not followed");
        fs::set_permissions(&options.folder, PermissionsExt::from_mode(0o777)).expect("permissions");
        assert!(Folder::open(&options).expect_err("shared").to_string().contains("chmod go-w"));
    }
}
