//! Stored responses: kept for a time, bounded in number and bytes, each for its owner alone. They are
//! in the data folder if the server has one, else in memory. Where there is no room, the least
//! recently used one is deleted.

use super::{io_fault, now};
use crate::error::{Fault, FaultKind};
use crate::owner::Owner;
use sconce_api::openai::responses::input::InputItem;
use sconce_api::openai::responses::response::Response;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How long a response is kept, as at OpenAI: 30 days.
const RETENTION_SECONDS: u64 = 30 * 24 * 60 * 60;
/// The most bytes of one response, with its input.
const MAX_BYTES: usize = 16 << 20;
/// The most responses that a conversation may consist of, and the most bytes of them.
const MAX_CONVERSATION: usize = 1_000;
const MAX_CONVERSATION_BYTES: u64 = MAX_BYTES as u64;
/// The longest first line of a file.
const MAX_HEAD: u64 = 4_096;

/// A response, and what is needed to continue it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoredResponse {
    /// Its own input, without that of the responses before it.
    pub(crate) input: Vec<InputItem>,
    pub(crate) response: Response,
}

/// The first line of a file: what is known without reading the rest.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Head {
    owner: Owner,
    created_at: u64,
    expires_at: u64,
}

/// The most that a store keeps.
#[derive(Clone, Copy, Debug)]
struct Limits {
    count: usize,
    bytes: u64,
}

const IN_MEMORY: Limits = Limits { count: 10_000, bytes: 256 << 20 };
const ON_DISK: Limits = Limits { count: 100_000, bytes: 16 << 30 };

/// The stored responses of a server.
pub(crate) struct ResponseStore {
    dir: Option<PathBuf>,
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: HashMap<String, Entry>,
    /// Ids by their last use.
    by_use: BTreeMap<u64, String>,
    uses: u64,
    bytes: u64,
}

struct Entry {
    head: Head,
    used: u64,
    bytes: u64,
    /// The JSON; `None` if it is in a file.
    json: Option<Arc<[u8]>>,
}

impl State {
    fn add(&mut self, id: String, head: Head, bytes: u64, json: Option<Arc<[u8]>>) {
        self.uses += 1;
        self.bytes += bytes;
        self.by_use.insert(self.uses, id.clone());
        self.entries.insert(id, Entry { head, used: self.uses, bytes, json });
    }

    fn take(&mut self, id: &str) -> Option<Entry> {
        let entry = self.entries.remove(id)?;
        self.by_use.remove(&entry.used);
        self.bytes = self.bytes.saturating_sub(entry.bytes);
        Some(entry)
    }

    /// The response of this owner, as the one used last.
    fn touch(&mut self, owner: &Owner, id: &str) -> Option<&Entry> {
        let entry = self.entries.get_mut(id)?;
        if entry.head.owner != *owner || entry.head.expires_at <= now() {
            return None;
        }
        self.uses += 1;
        self.by_use.remove(&entry.used);
        self.by_use.insert(self.uses, id.to_owned());
        entry.used = self.uses;
        Some(entry)
    }
}

impl ResponseStore {
    /// A store that ends with the process.
    pub(crate) fn in_memory() -> ResponseStore {
        ResponseStore { dir: None, limits: IN_MEMORY, state: Mutex::default() }
    }

    /// Opens the store in a folder. Files that were not finished are removed.
    pub(super) fn open(dir: &Path) -> Result<ResponseStore, String> {
        let failed = |path: &Path, e: io::Error| format!("--data-dir: {}: {e}", path.display());
        let mut found = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(|e| failed(dir, e))? {
            let path = entry.map_err(|e| failed(dir, e))?.path();
            // Not ours: responses are files.
            if path.is_dir() {
                continue;
            }
            let id = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            if path.extension().is_none_or(|extension| extension != "json") {
                std::fs::remove_file(&path).map_err(|e| failed(&path, e))?;
                continue;
            }
            match read_head(&path) {
                Ok((head, bytes)) => found.push((head, id, bytes)),
                Err(e) => tracing::warn!(path = %path.display(), "ignored a response that cannot be read: {e}"),
            }
        }
        found.sort_by_key(|(head, ..)| head.created_at);
        let mut state = State::default();
        for (head, id, bytes) in found {
            state.add(id, head, bytes, None);
        }
        Ok(ResponseStore { dir: Some(dir.to_owned()), limits: ON_DISK, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a response. Its id is one that the server made.
    pub(crate) fn put(&self, owner: &Owner, stored: &StoredResponse) -> Result<(), Fault> {
        let id = stored.response.id.clone();
        let json = serde_json::to_vec(stored).map_err(|e| Fault::new(FaultKind::Internal, e.to_string()))?;
        if json.len() > MAX_BYTES {
            let what = format!(
                "the response and its input have {} bytes; at most {MAX_BYTES} are stored: set `store` to false",
                json.len()
            );
            return Err(Fault::new(FaultKind::TooLarge, what).at("store"));
        }
        let created_at = now();
        let head = Head { owner: owner.clone(), created_at, expires_at: created_at.saturating_add(RETENTION_SECONDS) };
        let bytes = json.len() as u64;
        let Some(dir) = &self.dir else {
            self.make_room(bytes).add(id, head, bytes, Some(json.into()));
            return Ok(());
        };
        let (unfinished, path) = (dir.join(format!("{id}.tmp")), file(dir, &id));
        let failed = || io_fault("store the response", &path);
        if let Err(e) = write(&unfinished, &head, &json) {
            // A full disk must not become fuller.
            let _ = std::fs::remove_file(&unfinished);
            return Err(failed()(e));
        }
        let mut state = self.make_room(bytes);
        std::fs::rename(&unfinished, &path).map_err(failed())?;
        state.add(id, head, bytes, None);
        Ok(())
    }

    /// Deletes the least recently used responses until there is room for so many bytes.
    fn make_room(&self, bytes: u64) -> MutexGuard<'_, State> {
        let mut state = self.state();
        while state.entries.len() >= self.limits.count || state.bytes.saturating_add(bytes) > self.limits.bytes {
            let Some((_, id)) = state.by_use.first_key_value() else { break };
            let id = id.clone();
            state.take(&id);
            self.delete_file(&id);
        }
        state
    }

    fn delete_file(&self, id: &str) {
        let Some(dir) = &self.dir else { return };
        let path = file(dir, id);
        if let Err(e) = std::fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), "cannot delete a response: {e}");
        }
    }

    /// A response of this owner.
    pub(crate) fn get(&self, owner: &Owner, id: &str) -> Result<StoredResponse, Fault> {
        self.find(owner, id)?.map(|(stored, _)| stored).ok_or_else(|| absent(id))
    }

    /// A response of this owner, and its bytes; `None` if there is none.
    fn find(&self, owner: &Owner, id: &str) -> Result<Option<(StoredResponse, u64)>, Fault> {
        let found = self.state().touch(owner, id).map(|entry| (entry.json.clone(), entry.bytes));
        let Some((json, bytes)) = found else { return Ok(None) };
        let stored = match (&json, &self.dir) {
            (Some(json), _) => serde_json::from_slice(json).map_err(io::Error::from),
            (None, Some(dir)) => read(&file(dir, id)),
            (None, None) => return Ok(None),
        };
        match stored {
            Ok(stored) => Ok(Some((stored, bytes))),
            // It was deleted in between.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(io_fault("read the response", Path::new(id))(e)),
        }
    }

    /// The responses that a conversation consists of, from the first to the one with this id.
    pub(crate) fn conversation(&self, owner: &Owner, id: &str) -> Result<Vec<StoredResponse>, Fault> {
        let (mut all, mut total, mut next) = (Vec::new(), 0_u64, Some(id.to_owned()));
        while let Some(id) = next {
            let Some((stored, bytes)) = self.find(owner, &id)? else {
                let what = format!("there is no response `{}` to continue; it may have been deleted", shortened(&id));
                return Err(Fault::invalid(what).at("previous_response_id").code("previous_response_not_found"));
            };
            total = total.saturating_add(bytes);
            if all.len() >= MAX_CONVERSATION || total > MAX_CONVERSATION_BYTES {
                let what = format!(
                    "the conversation has more than {MAX_CONVERSATION} responses or {MAX_CONVERSATION_BYTES} bytes; begin a new one"
                );
                return Err(Fault::new(FaultKind::TooLarge, what).at("previous_response_id"));
            }
            next = stored.response.previous_response_id.clone();
            all.push(stored);
        }
        all.reverse();
        Ok(all)
    }

    /// Deletes a response of this owner.
    pub(crate) fn remove(&self, owner: &Owner, id: &str) -> Result<(), Fault> {
        let mut state = self.state();
        if state.touch(owner, id).is_none() {
            return Err(absent(id));
        }
        if let Some(dir) = &self.dir {
            let path = file(dir, id);
            std::fs::remove_file(&path).map_err(io_fault("delete the response", &path))?;
        }
        state.take(id);
        Ok(())
    }

    /// Deletes the responses whose time has passed.
    pub(crate) fn delete_expired(&self) {
        let now = now();
        let mut state = self.state();
        let expired = state.entries.iter().filter(|(_, entry)| entry.head.expires_at <= now);
        for id in expired.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            state.take(&id);
            self.delete_file(&id);
        }
    }
}

fn file(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("{id}.json"))
}

/// Writes a file: a line with the head, then the JSON.
fn write(path: &Path, head: &Head, json: &[u8]) -> io::Result<()> {
    let mut first = serde_json::to_vec(head)?;
    first.push(b'\n');
    let mut file = File::create(path)?;
    file.write_all(&first)?;
    file.write_all(json)
}

/// The head of a file, and the length of its JSON.
fn read_head(path: &Path) -> io::Result<(Head, u64)> {
    let file = File::open(path)?;
    let total = file.metadata()?.len();
    let mut first = Vec::new();
    BufReader::new(file.take(MAX_HEAD)).read_until(b'\n', &mut first)?;
    Ok((serde_json::from_slice(&first)?, total.saturating_sub(first.len() as u64)))
}

/// The response of a file.
fn read(path: &Path) -> io::Result<StoredResponse> {
    let mut reader = BufReader::new(File::open(path)?);
    reader.by_ref().take(MAX_HEAD).read_until(b'\n', &mut Vec::new())?;
    let mut json = Vec::new();
    reader.take(MAX_BYTES as u64).read_to_end(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
}

fn absent(id: &str) -> Fault {
    Fault::new(FaultKind::NoRoute, format!("there is no response `{}`", shortened(id))).at("response_id")
}

fn shortened(id: &str) -> String {
    id.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stored(id: &str, previous: Option<&str>) -> StoredResponse {
        let response = json!({"id": id, "object": "response", "created_at": 1, "status": "completed", "background": false,
            "metadata": {}, "model": "m", "output": [], "parallel_tool_calls": true, "previous_response_id": previous,
            "reasoning": {}, "store": true, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
            "top_logprobs": 0, "truncation": "disabled"});
        StoredResponse { input: Vec::new(), response: serde_json::from_value(response).unwrap() }
    }

    fn ids(all: &[StoredResponse]) -> Vec<&str> {
        all.iter().map(|one| one.response.id.as_str()).collect()
    }

    #[test]
    fn responses_belong_to_their_owner() {
        let (store, a, b) = (ResponseStore::in_memory(), Owner::of_key("a"), Owner::of_key("b"));
        store.put(&a, &stored("resp_1", None)).unwrap();
        assert_eq!(store.get(&a, "resp_1").unwrap().response.id, "resp_1");
        for other in [&b, &Owner::default()] {
            assert_eq!(store.get(other, "resp_1").unwrap_err().kind, FaultKind::NoRoute);
            assert_eq!(store.remove(other, "resp_1").unwrap_err().kind, FaultKind::NoRoute);
            assert_eq!(store.conversation(other, "resp_1").unwrap_err().kind, FaultKind::Invalid);
        }
        store.remove(&a, "resp_1").unwrap();
        assert!(store.get(&a, "resp_1").is_err() && store.state().bytes == 0);
    }

    #[test]
    fn conversations_are_followed_to_their_beginning() {
        let (store, owner) = (ResponseStore::in_memory(), Owner::default());
        for (id, previous) in [("1", None), ("2", Some("1")), ("3", Some("2")), ("other", Some("1"))] {
            store.put(&owner, &stored(id, previous)).unwrap();
        }
        assert_eq!(ids(&store.conversation(&owner, "3").unwrap()), ["1", "2", "3"]);
        assert_eq!(ids(&store.conversation(&owner, "other").unwrap()), ["1", "other"]);
        store.remove(&owner, "1").unwrap();
        let fault = store.conversation(&owner, "3").unwrap_err();
        assert_eq!(
            (fault.param.as_deref(), fault.code),
            (Some("previous_response_id"), Some("previous_response_not_found"))
        );
        // A response that continues itself cannot be made, but a damaged file may say so.
        store.put(&owner, &stored("loop", Some("loop"))).unwrap();
        assert_eq!(store.conversation(&owner, "loop").unwrap_err().kind, FaultKind::TooLarge);
    }

    #[test]
    fn the_least_recently_used_response_makes_room() {
        let owner = Owner::default();
        let limits = Limits { count: 2, bytes: 1 << 20 };
        let store = ResponseStore { limits, ..ResponseStore::in_memory() };
        store.put(&owner, &stored("1", None)).unwrap();
        store.put(&owner, &stored("2", None)).unwrap();
        store.get(&owner, "1").unwrap();
        store.put(&owner, &stored("3", None)).unwrap();
        assert!(store.get(&owner, "2").is_err() && store.get(&owner, "1").is_ok() && store.get(&owner, "3").is_ok());
        let tight = ResponseStore { limits: Limits { count: 9, bytes: 1 }, ..ResponseStore::in_memory() };
        tight.put(&owner, &stored("1", None)).unwrap();
        tight.put(&owner, &stored("2", None)).unwrap();
        assert!(tight.get(&owner, "1").is_err() && tight.state().entries.len() == 1);
        let mut large = stored("4", None);
        large.response.instructions = Some("x".repeat(MAX_BYTES));
        assert_eq!(store.put(&owner, &large).unwrap_err().kind, FaultKind::TooLarge);
    }

    #[test]
    fn files_survive_a_restart_and_damaged_ones_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let owner = Owner::of_key("a");
        let store = ResponseStore::open(dir.path()).unwrap();
        for id in ["resp_1", "resp_2", "resp_3"] {
            store.put(&owner, &stored(id, None)).unwrap();
        }
        store.remove(&owner, "resp_3").unwrap();
        std::fs::write(dir.path().join("resp_4.tmp"), "{").unwrap();
        std::fs::write(dir.path().join("resp_5.json"), "{").unwrap();
        std::fs::write(file(dir.path(), "resp_2"), "").unwrap();
        let again = ResponseStore::open(dir.path()).unwrap();
        assert_eq!(again.get(&owner, "resp_1").unwrap().response.id, "resp_1");
        assert_eq!(again.state().bytes, store.state().entries["resp_1"].bytes);
        for id in ["resp_2", "resp_3", "resp_4", "resp_5", "../resp_1"] {
            assert_eq!(again.get(&owner, id).unwrap_err().kind, FaultKind::NoRoute, "{id}");
        }
        assert!(!dir.path().join("resp_4.tmp").exists());
    }

    #[test]
    fn expired_responses_are_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let (store, owner) = (ResponseStore::open(dir.path()).unwrap(), Owner::default());
        store.put(&owner, &stored("1", None)).unwrap();
        store.state().entries.get_mut("1").unwrap().head.expires_at = now();
        assert!(store.get(&owner, "1").is_err());
        store.delete_expired();
        assert!(store.state().entries.is_empty() && !file(dir.path(), "1").exists());
    }
}
