//! A folder on a disk that the processes share.

use crate::error::{Error, Result};
use crate::record::TEMPORARY;
use crate::store::{Created, Entry, MAX_READ_BYTES, Published, Store};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A folder. Creation is exclusive by `link(2)`, which is atomic on network file systems too.
#[derive(Debug)]
pub struct Disk {
    root: PathBuf,
    /// Makes names of temporary files different: by process and by call.
    process: String,
    calls: AtomicU64,
}

impl Disk {
    /// Opens a folder. It is created when the first file is written.
    pub fn new(root: impl Into<PathBuf>) -> Result<Disk> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|e| Error::Input(format!("no random numbers: {e}")))?;
        let process = u64::from_le_bytes(random);
        Ok(Disk { root: root.into(), process: format!("{process:016x}"), calls: AtomicU64::new(0) })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn fail(path: &Path) -> impl FnOnce(io::Error) -> Error {
        Error::io(path.display().to_string())
    }

    /// Writes a small file under a temporary name.
    fn write_temporary(&self, content: &[u8]) -> Result<(File, PathBuf)> {
        let number = self.calls.fetch_add(1, Relaxed);
        let path = self.scratch()?.join(format!("small-{}-{number}", self.process));
        let mut file = File::create(&path).map_err(Disk::fail(&path))?;
        file.write_all(content).map_err(Disk::fail(&path))?;
        Ok((file, path))
    }

    fn make_parent(path: &Path) -> Result<()> {
        path.parent().map_or(Ok(()), |dir| std::fs::create_dir_all(dir).map_err(Disk::fail(dir)))
    }
}

/// Gives `from` the name `to` too, unless there is a file of this name.
fn link_exclusively(from: &Path, to: &Path) -> Result<Created> {
    match std::fs::hard_link(from, to) {
        Ok(()) => Ok(Created::New),
        // On a network file system the answer to our own link may have been lost.
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            Ok(if is_same_file(from, to) { Created::New } else { Created::Exists })
        }
        Err(e) => {
            let why = format!("{e}; --shards needs hard links: if this file system has none, use another folder");
            Err(Disk::fail(to)(io::Error::new(e.kind(), why)))
        }
    }
}

/// Whether both names are of one file.
#[cfg(unix)]
fn is_same_file(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |path: &Path| std::fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
    id(a).is_some_and(|a| Some(a) == id(b))
}

#[cfg(not(unix))]
fn is_same_file(_: &Path, _: &Path) -> bool {
    false
}

/// Makes the names in a folder durable. Not every file system offers that, and nothing is wrong if
/// the system crashes without it: the shard is then computed again.
fn sync_folder(path: &Path) {
    if cfg!(unix)
        && let Some(dir) = path.parent()
    {
        let _ = File::open(dir).and_then(|dir| dir.sync_all());
    }
}

impl Store for Disk {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.path(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Disk::fail(&path)(e)),
        };
        let mut content = Vec::new();
        file.take(MAX_READ_BYTES + 1).read_to_end(&mut content).map_err(Disk::fail(&path))?;
        if content.len() as u64 > MAX_READ_BYTES {
            let why = format!("larger than {} MiB", MAX_READ_BYTES >> 20);
            return Err(Error::Damaged { at: path.display().to_string(), why });
        }
        Ok(Some(content))
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        let path = self.path(name);
        // A network file system checks what it has cached when a file is opened.
        match File::open(&path).and_then(|file| file.metadata()) {
            Ok(about) => Ok(Some(about.len())),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Disk::fail(&path)(e)),
        }
    }

    fn create(&self, name: &str, content: &[u8]) -> Result<Created> {
        let ((file, from), to) = (self.write_temporary(content)?, self.path(name));
        Disk::make_parent(&to)?;
        // After a crash of the system a file of this name must not be empty.
        let created = file.sync_all().map_err(Disk::fail(&from)).and_then(|()| link_exclusively(&from, &to));
        let _ = std::fs::remove_file(&from);
        created
    }

    fn replace(&self, name: &str, content: &[u8]) -> Result<()> {
        let ((_, from), to) = (self.write_temporary(content)?, self.path(name));
        Disk::make_parent(&to)?;
        std::fs::rename(&from, &to).map_err(Disk::fail(&to))
    }

    fn take_away(&self, name: &str, local: &Path) -> Result<bool> {
        let path = self.path(name);
        match std::fs::rename(&path, local) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Disk::fail(&path)(e)),
        }
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(Disk::fail(&path)(e)),
            _ => Ok(()),
        }
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>> {
        let path = self.path(folder);
        let entries = match std::fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(Disk::fail(&path)(e)),
        };
        let mut all = Vec::new();
        for entry in entries {
            let entry = entry.map_err(Disk::fail(&path))?;
            // A file that was removed meanwhile, or whose name is not one of ours.
            let (Ok(about), Ok(name)) = (entry.metadata(), entry.file_name().into_string()) else { continue };
            if about.is_file() {
                all.push(Entry { name, size: about.len() });
            }
        }
        Ok(all)
    }

    fn open(&self, name: &str) -> Result<Box<dyn Read + Send>> {
        let path = self.path(name);
        Ok(Box::new(File::open(&path).map_err(Disk::fail(&path))?))
    }

    fn publish(&self, local: &Path, name: &str) -> Result<Published> {
        let to = self.path(name);
        Disk::make_parent(&to)?;
        // The content must be on the disk before the name is.
        let sync = |path: &Path| File::options().append(true).open(path)?.sync_all();
        sync(local).map_err(Disk::fail(local))?;
        let published = match link_exclusively(local, &to)? {
            Created::New => Published::New,
            Created::Exists => Published::Exists,
        };
        sync_folder(&to);
        Ok(published)
    }

    fn scratch(&self) -> Result<PathBuf> {
        let path = self.path(TEMPORARY);
        std::fs::create_dir_all(&path).map_err(Disk::fail(&path))?;
        Ok(path)
    }

    fn shares_scratch(&self) -> bool {
        true
    }

    fn display(&self, name: &str) -> String {
        let path = if name.is_empty() { self.root.clone() } else { self.path(name) };
        path.display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_created_once_and_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::new(dir.path()).unwrap();
        assert_eq!(disk.create("leases/a", b"one").unwrap(), Created::New);
        assert_eq!(disk.create("leases/a", b"two").unwrap(), Created::Exists);
        assert_eq!((disk.size("leases/a").unwrap(), disk.size("leases/b").unwrap()), (Some(3), None));
        let local = disk.scratch().unwrap().join("taken");
        assert!(disk.take_away("leases/a", &local).unwrap());
        assert!(!disk.take_away("leases/a", &local).unwrap());
        assert_eq!(disk.publish(&local, "leases/a").unwrap(), Published::New);
        // The answer to the link was lost, and the caller tries again.
        #[cfg(unix)]
        assert_eq!(disk.publish(&local, "leases/a").unwrap(), Published::New);
        std::fs::write(dir.path().join("other"), "x").unwrap();
        assert_eq!(disk.publish(&dir.path().join("other"), "leases/a").unwrap(), Published::Exists);
        assert_eq!(disk.read("leases/a").unwrap().unwrap(), b"one");
    }

    /// Hard links between file systems do not exist.
    #[cfg(target_os = "linux")]
    #[test]
    fn folder_without_hard_links_is_refused() {
        use std::os::unix::fs::MetadataExt;
        let (dir, Ok(other)) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm")) else { return };
        let device = |path: &Path| std::fs::metadata(path).unwrap().dev();
        if device(dir.path()) == device(other.path()) {
            return;
        }
        std::os::unix::fs::symlink(other.path(), dir.path().join(TEMPORARY)).unwrap();
        let disk = Disk::new(dir.path()).unwrap();
        let local = disk.scratch().unwrap().join("output");
        std::fs::write(&local, "x").unwrap();
        for failed in [disk.create("leases/a", b"x").map(drop), disk.publish(&local, "data/a").map(drop)] {
            let e = failed.unwrap_err().to_string();
            assert!(e.contains("hard links") && e.contains("another folder"), "{e}");
        }
        assert!(!disk.exists("leases/a").unwrap() && !disk.exists("data/a").unwrap());
    }
}
