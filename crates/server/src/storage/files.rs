//! Uploaded files, and files that the server makes for its clients. Each has a folder with its
//! content and a record; the folder appears and vanishes as a whole.

use super::records;
use super::upload::Upload;
use super::{io_fault, now, sync_folder};
use crate::error::{Fault, FaultKind};
use crate::http_context::fresh_id;
use crate::owner::Owner;
use sconce_api::openai::files::{FileObject, Purpose};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most files.
const MAX_FILES: usize = 100_000;
/// The most bytes of all files.
const MAX_TOTAL_BYTES: u64 = 256 << 30;
/// The most bytes of one file, as at OpenAI.
pub(crate) const MAX_FILE_BYTES: u64 = 512 << 20;
/// The longest name, in characters.
const MAX_NAME: usize = 255;

/// What is known of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    pub(crate) id: String,
    /// The order of creation.
    sequence: u64,
    pub(crate) filename: String,
    pub(crate) purpose: Purpose,
    pub(crate) bytes: u64,
    pub(crate) created_at: u64,
    pub(crate) expires_at: Option<u64>,
    /// Who made it.
    #[serde(default)]
    owner: Owner,
}

/// A file to be stored.
#[derive(Clone, Debug)]
pub(crate) struct NewFile {
    pub(crate) filename: String,
    pub(crate) purpose: Purpose,
    /// Seconds until it is deleted.
    pub(crate) expires_after: Option<u64>,
    /// Who makes it.
    pub(crate) owner: Owner,
}

impl FileRecord {
    /// As the API has it.
    pub(crate) fn object(&self) -> FileObject {
        FileObject {
            id: self.id.clone(),
            object: "file".into(),
            bytes: self.bytes,
            created_at: self.created_at,
            expires_at: self.expires_at,
            filename: self.filename.clone(),
            purpose: self.purpose,
            status: "processed".into(),
            status_details: None,
        }
    }

    fn is_expired(&self) -> bool {
        self.expires_at.is_some_and(|at| at <= now())
    }
}

/// The files of a server.
pub(crate) struct FileStore {
    dir: PathBuf,
    incoming: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    files: BTreeMap<u64, FileRecord>,
    by_id: HashMap<String, u64>,
    bytes: u64,
}

impl State {
    fn add(&mut self, record: FileRecord) {
        self.bytes += record.bytes;
        self.by_id.insert(record.id.clone(), record.sequence);
        self.files.insert(record.sequence, record);
    }

    fn next_sequence(&self) -> u64 {
        self.files.last_key_value().map_or(1, |(last, _)| last + 1)
    }
}

impl FileStore {
    /// Reads the records. Uploads that were not finished are removed.
    pub(super) fn open(dir: &Path, incoming: &Path) -> Result<FileStore, String> {
        let failed = |path: &Path, e: std::io::Error| format!("--data-dir: {}: {e}", path.display());
        for entry in std::fs::read_dir(incoming).map_err(|e| failed(incoming, e))? {
            let path = entry.map_err(|e| failed(incoming, e))?.path();
            std::fs::remove_dir_all(&path).map_err(|e| failed(&path, e))?;
        }
        let mut state = State::default();
        for entry in std::fs::read_dir(dir).map_err(|e| failed(dir, e))? {
            let path = entry.map_err(|e| failed(dir, e))?.path();
            match records::read::<FileRecord>(&path.join("file.json")) {
                Ok(record) if path.file_name().is_some_and(|name| *name == *record.id) => state.add(record),
                Ok(_) => tracing::warn!(path = %path.display(), "ignored: the folder has the record of another file"),
                Err(e) => tracing::warn!(path = %path.display(), "ignored a file whose record cannot be read: {e}"),
            }
        }
        Ok(FileStore { dir: dir.to_owned(), incoming: incoming.to_owned(), state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All files that the caller may see, in the order of their creation; only those for `purpose`,
    /// if it is given.
    pub(crate) fn list(&self, caller: &Owner, purpose: Option<Purpose>) -> Vec<FileRecord> {
        let wanted = |file: &&FileRecord| {
            purpose.is_none_or(|purpose| file.purpose == purpose) && !file.is_expired() && caller.sees(&file.owner)
        };
        self.state().files.values().filter(wanted).cloned().collect()
    }

    /// A file that the caller may see.
    pub(crate) fn get_for(&self, caller: &Owner, id: &str) -> Result<FileRecord, Fault> {
        self.get(id).ok().filter(|file| caller.sees(&file.owner)).ok_or_else(|| absent(id))
    }

    /// A file, whoever made it.
    pub(crate) fn get(&self, id: &str) -> Result<FileRecord, Fault> {
        let state = self.state();
        let found = state.by_id.get(id).and_then(|sequence| state.files.get(sequence));
        found.filter(|file| !file.is_expired()).cloned().ok_or_else(|| absent(id))
    }

    /// Where the content of a file is.
    pub(crate) fn content(&self, file: &FileRecord) -> PathBuf {
        self.dir.join(&file.id).join("content")
    }

    /// A new id.
    pub(crate) fn new_id() -> String {
        format!("file-{}", fresh_id())
    }

    /// Begins a file that a client sends. What is not finished is removed.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<Upload, Fault> {
        self.begin_as(FileStore::new_id(), MAX_FILE_BYTES)
    }

    /// Begins a file with this id, of [`FileStore::new_id`].
    pub(crate) fn begin_as(self: &Arc<Self>, id: String, max_bytes: u64) -> Result<Upload, Fault> {
        self.check_room(0)?;
        let dir = self.incoming.join(&id);
        super::make_folder(&dir).map_err(io_fault("store the file", &dir))?;
        Upload::new(self.clone(), (id, dir), max_bytes)
    }

    /// Fails if there is no room for so many bytes more.
    pub(super) fn check_room(&self, bytes: u64) -> Result<(), Fault> {
        self.check_room_in(&self.state(), bytes)
    }

    fn check_room_in(&self, state: &State, bytes: u64) -> Result<(), Fault> {
        let full = |what: String| Err(Fault::new(FaultKind::TooLarge, format!("{what}; delete files first")));
        if state.files.len() >= MAX_FILES {
            return full(format!("the server has {MAX_FILES} files, which is its limit"));
        }
        if state.bytes.saturating_add(bytes) > MAX_TOTAL_BYTES {
            return full(format!(
                "all files together would have more than {MAX_TOTAL_BYTES} bytes, the server's limit"
            ));
        }
        Ok(())
    }

    /// Takes a complete folder with `content` into the store.
    pub(super) fn adopt(&self, id: &str, dir: &Path, bytes: u64, new: NewFile) -> Result<FileRecord, Fault> {
        let mut state = self.state();
        self.check_room_in(&state, bytes)?;
        let created_at = now();
        let record = FileRecord {
            id: id.to_owned(),
            sequence: state.next_sequence(),
            filename: plain_name(&new.filename),
            purpose: new.purpose,
            bytes,
            created_at,
            expires_at: new.expires_after.map(|seconds| created_at.saturating_add(seconds)),
            owner: new.owner,
        };
        let failed = || io_fault("store the file", dir);
        records::write(&dir.join("file.json"), &record, records::Durability::Power).map_err(failed())?;
        std::fs::rename(dir, self.dir.join(id)).map_err(failed())?;
        sync_folder(&self.dir);
        state.add(record.clone());
        Ok(record)
    }

    /// Removes a file.
    pub(crate) fn remove(&self, id: &str) -> Result<(), Fault> {
        let mut state = self.state();
        let Some(sequence) = state.by_id.get(id).copied() else { return Err(absent(id)) };
        let (from, to) = (self.dir.join(id), self.incoming.join(id));
        std::fs::rename(&from, &to).map_err(io_fault("delete the file", &from))?;
        state.by_id.remove(id);
        if let Some(file) = state.files.remove(&sequence) {
            state.bytes = state.bytes.saturating_sub(file.bytes);
        }
        drop(state);
        // What stays is removed when the server starts again.
        if let Err(e) = std::fs::remove_dir_all(&to) {
            tracing::warn!(path = %to.display(), "cannot remove a deleted file: {e}");
        }
        Ok(())
    }

    /// The files whose time has passed.
    pub(crate) fn expired(&self) -> Vec<String> {
        self.state().files.values().filter(|file| file.is_expired()).map(|file| file.id.clone()).collect()
    }
}

fn absent(id: &str) -> Fault {
    let id: String = id.chars().take(80).collect();
    Fault::new(FaultKind::NoRoute, format!("there is no file `{id}`")).at("file_id")
}

/// A file's own name: without folders and control characters, and not too long.
fn plain_name(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let plain: String = last.chars().filter(|c| !c.is_control()).collect();
    let count = plain.chars().count();
    // The end decides about the format.
    let plain: String = plain.chars().skip(count.saturating_sub(MAX_NAME)).collect();
    if plain.trim().is_empty() { "file".into() } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(root: &Path) -> Arc<FileStore> {
        let (files, incoming) = (root.join("files"), root.join("incoming"));
        std::fs::create_dir_all(&files).unwrap();
        std::fs::create_dir_all(&incoming).unwrap();
        Arc::new(FileStore::open(&files, &incoming).unwrap())
    }

    fn new(filename: &str) -> NewFile {
        NewFile { filename: filename.into(), purpose: Purpose::UserData, expires_after: None, owner: Owner::default() }
    }

    #[test]
    fn files_survive_a_restart_and_unfinished_ones_do_not() {
        let root = tempfile::tempdir().unwrap();
        let first = store(root.path());
        let mut upload = first.begin().unwrap();
        upload.write(b"hello").unwrap();
        let file = upload.finish(new("a.txt")).unwrap();
        let mut unfinished = first.begin().unwrap();
        unfinished.write(b"half").unwrap();
        std::mem::forget(unfinished);
        drop(first.begin().unwrap());
        let again = store(root.path());
        assert_eq!(again.list(&Owner::default(), None).len(), 1);
        let found = again.get(&file.id).unwrap();
        assert_eq!((found.filename.as_str(), found.bytes), ("a.txt", 5));
        assert_eq!(std::fs::read(again.content(&found)).unwrap(), b"hello");
        assert_eq!(std::fs::read_dir(root.path().join("incoming")).unwrap().count(), 0);
        again.remove(&file.id).unwrap();
        assert!(again.get(&file.id).is_err() && again.remove(&file.id).is_err());
        assert!(store(root.path()).list(&Owner::default(), None).is_empty());
        assert_eq!(std::fs::read_dir(root.path().join("files")).unwrap().count(), 0);
    }

    #[test]
    fn damaged_records_are_left_out() {
        let root = tempfile::tempdir().unwrap();
        let first = store(root.path());
        let file = first.begin().unwrap().finish(new("a")).unwrap();
        std::fs::write(root.path().join("files").join(&file.id).join("file.json"), "{").unwrap();
        assert!(store(root.path()).list(&Owner::default(), None).is_empty());
    }

    #[test]
    fn names_lose_folders_and_control_characters() {
        assert_eq!(plain_name("../../etc/passwd"), "passwd");
        assert_eq!(plain_name("C:\\temp\\a b.txt"), "a b.txt");
        assert_eq!(plain_name("a\n\0b.md"), "ab.md");
        assert_eq!((plain_name(""), plain_name("..")), ("file".into(), "..".into()));
        let long = plain_name(&format!("{}.pdf", "é".repeat(300)));
        assert!(long.ends_with(".pdf") && long.chars().count() == MAX_NAME);
    }

    #[test]
    fn files_are_for_their_owner_also_after_a_restart() {
        let root = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(Owner::of_key);
        let file = store(root.path()).begin().unwrap().finish(NewFile { owner: a.clone(), ..new("a") }).unwrap();
        let store = store(root.path());
        assert!(store.get_for(&a, &file.id).is_ok() && store.get(&file.id).is_ok());
        let hidden = store.get_for(&b, &file.id).unwrap_err();
        assert_eq!((hidden.kind, hidden.message), {
            let absent = absent(&file.id);
            (absent.kind, absent.message)
        });
        assert_eq!([&a, &b, &Owner::default()].map(|caller| store.list(caller, None).len()), [1, 0, 0]);
    }

    #[test]
    fn expired_files_are_not_there() {
        let root = tempfile::tempdir().unwrap();
        let store = store(root.path());
        let file = store.begin().unwrap().finish(NewFile { expires_after: Some(0), ..new("a") }).unwrap();
        assert!(store.get(&file.id).is_err() && store.list(&Owner::default(), None).is_empty());
        assert_eq!(store.expired(), [file.id]);
    }
}
