//! The manager's state on disk, for its successor. The file is replaced atomically, so that a crash
//! leaves either the old or the new one. A failed write is reported and retried while the pool
//! keeps serving.

use crate::core::Record;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

const VERSION: u32 = 2;
/// Delay before a failed write is retried.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Content of `state.json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct State {
    version: u32,
    /// Shared with the workers: the manager sends it with every request, and they send it when they
    /// call back.
    pub(crate) token: String,
    pub(crate) workers: Vec<Record>,
    /// Ids of the workers of other hosts that are drained.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) drained: Vec<String>,
}

impl State {
    pub(crate) fn new(token: String, workers: Vec<Record>, drained: Vec<String>) -> State {
        State { version: VERSION, token, workers, drained }
    }
}

/// Why a manager cannot open its state directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// Another manager has locked it.
    #[error(
        "{} is locked by another manager: it runs already (`sconce pool status`), or has the same --state",
        .0.display()
    )]
    Locked(PathBuf),
    /// The directory or a file in it cannot be accessed.
    #[error("{}: {why}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error.
        why: io::Error,
    },
    /// `state.json` is not a state file of this version.
    #[error("{}: {what}; move the file away to start without it (workers that still run must then be stopped by hand)", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// Writes the state to disk.
pub(crate) struct StateStore {
    path: PathBuf,
    /// Locked for as long as the manager lives: the system releases it with the process.
    _lock: File,
    queued: Mutex<Option<State>>,
    wake: Notify,
    write_error: Mutex<Option<String>>,
}

/// How long a lock may outlive its manager: a worker that is being spawned holds it until `exec`.
const LOCK_GRACE: Duration = Duration::from_millis(500);
const LOCK_TRIES: u32 = 20;

impl StateStore {
    /// Locks the directory and reads the state file.
    pub(crate) fn open(dir: &Path) -> Result<(Arc<StateStore>, State), DiskError> {
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |why| DiskError::Io { path, why }
        };
        fs::create_dir_all(dir.join("logs")).map_err(io(dir))?;
        let lock_path = dir.join("lock");
        let lock = OpenOptions::new().create(true).append(true).open(&lock_path).map_err(io(&lock_path))?;
        let mut tries = 0;
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(fs::TryLockError::WouldBlock) if tries < LOCK_TRIES => thread::sleep(LOCK_GRACE / LOCK_TRIES),
                Err(fs::TryLockError::WouldBlock) => return Err(DiskError::Locked(dir.to_path_buf())),
                Err(fs::TryLockError::Error(why)) => return Err(DiskError::Io { path: lock_path, why }),
            }
            tries += 1;
        }
        let path = dir.join("state.json");
        let state = match fs::read(&path) {
            Ok(bytes) => read(&bytes).map_err(|what| DiskError::Invalid { path: path.clone(), what })?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => State::default(),
            Err(why) => return Err(DiskError::Io { path, why }),
        };
        let (queued, write_error) = (Mutex::new(None), Mutex::new(None));
        Ok((Arc::new(StateStore { path, _lock: lock, queued, wake: Notify::new(), write_error }), state))
    }

    /// Queues a state to be written; it replaces one that is still queued.
    pub(crate) fn save(&self, state: State) {
        *self.queued() = Some(state);
        self.wake.notify_one();
    }

    /// Why the last write failed.
    pub(crate) fn write_error(&self) -> Option<String> {
        self.write_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes a state before returning. [`StateStore::write_error`] says whether that worked.
    pub(crate) async fn save_now(&self, state: State) {
        if !self.try_write(&state).await {
            self.save(state);
        }
    }

    /// Writes queued states until `end`, then the last one.
    pub(crate) async fn run(self: Arc<Self>, mut end: oneshot::Receiver<()>) {
        // When a failed write is retried.
        let mut again: Option<Instant> = None;
        loop {
            let last = tokio::select! {
                () = self.wake.notified() => false,
                () = tokio::time::sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => false,
                _ = &mut end => true,
            };
            again = None;
            loop {
                let Some(state) = self.queued().take() else { break };
                if !self.try_write(&state).await {
                    // Unless a newer state was queued in the meantime.
                    self.queued().get_or_insert(state);
                    again = Some(Instant::now() + RETRY_DELAY);
                    break;
                }
            }
            if last {
                return;
            }
        }
    }

    /// The queued state.
    pub(crate) fn queued(&self) -> MutexGuard<'_, Option<State>> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a state; `false` if that failed.
    async fn try_write(&self, state: &State) -> bool {
        let (path, copy) = (self.path.clone(), state.clone());
        let shown = self.path.display();
        let write_error = match tokio::task::spawn_blocking(move || write(&path, &copy)).await {
            Ok(Ok(())) => None,
            Ok(Err(e)) => Some(format!(
                "cannot write {shown}: {e}; until that works, a restarted manager may not find all workers"
            )),
            Err(e) => Some(format!("cannot write {shown}: {e}")),
        };
        let mut was = self.write_error.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*was, &write_error) {
            (was, Some(what)) if was.as_ref() != Some(what) => tracing::error!("{what}"),
            (Some(_), None) => tracing::info!("{shown} can be written again"),
            _ => {}
        }
        let well = write_error.is_none();
        *was = write_error;
        well
    }
}

fn read(bytes: &[u8]) -> Result<State, String> {
    let state: State = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    match state.version {
        VERSION => Ok(state),
        other => Err(format!("the file has version {other}, this manager supports {VERSION}")),
    }
}

/// Replaces the file atomically, readable by the owner only because it contains the token.
fn write(path: &Path, state: &State) -> io::Result<()> {
    let temporary = path.with_extension("json.new");
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&temporary)?;
    file.write_all(&serde_json::to_vec_pretty(state).map_err(io::Error::other)?)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&temporary, path)?;
    // The rename is durable once the directory is synced.
    if let Some(dir) = path.parent() {
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_testkit::wait_until_async;

    #[tokio::test]
    async fn saved_state_is_restored_and_directory_is_locked() {
        let dir = tempfile::tempdir().unwrap();
        let (store, before) = StateStore::open(dir.path()).unwrap();
        assert_eq!((before.token.as_str(), before.workers.len()), ("", 0));
        assert!(matches!(StateStore::open(dir.path()), Err(DiskError::Locked(_))));
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(store.clone().run(ended));
        (0..50).for_each(|n| store.save(State::new(format!("t{n}"), Vec::new(), Vec::new())));
        drop(end);
        task.await.unwrap();
        drop(store);
        let (_store, after) = StateStore::open(dir.path()).unwrap();
        assert_eq!(after.token, "t49");
        assert!(!dir.path().join("state.json.new").exists());
        #[cfg(unix)]
        {
            let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(dir.path().join("state.json")).unwrap());
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[tokio::test]
    async fn failed_write_is_reported_and_keeps_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = StateStore::open(dir.path()).unwrap();
        let path = dir.path().join("state.json");
        write(&path, &State::new("old".into(), Vec::new(), Vec::new())).unwrap();
        // A directory is in the way: root ignores permissions, but cannot write to a directory.
        fs::create_dir(dir.path().join("state.json.new")).unwrap();
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(store.clone().run(ended));
        store.save(State::new("new".into(), Vec::new(), Vec::new()));
        wait_until_async("the write fails", || store.write_error().is_some()).await;
        assert!(store.write_error().unwrap().contains("state.json"), "{:?}", store.write_error());
        assert_eq!(read(&fs::read(&path).unwrap()).unwrap().token, "old");
        fs::remove_dir(dir.path().join("state.json.new")).unwrap();
        store.save(State::new("newer".into(), Vec::new(), Vec::new()));
        drop(end);
        task.await.unwrap();
        assert_eq!((store.write_error(), read(&fs::read(&path).unwrap()).unwrap().token.as_str()), (None, "newer"));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn write_to_full_disk_keeps_the_old_file_and_is_retried() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        write(&path, &State::new("old".into(), Vec::new(), Vec::new())).unwrap();
        // A file that an earlier manager did not finish.
        let temporary = dir.path().join("state.json.new");
        fs::write(&temporary, "{\"version\": 2, \"tok").unwrap();
        let (store, before) = StateStore::open(dir.path()).unwrap();
        assert_eq!(before.token, "old");
        // It can be opened, but not a single byte can be written.
        fs::remove_file(&temporary).unwrap();
        std::os::unix::fs::symlink("/dev/full", &temporary).unwrap();
        store.save_now(State::new("new".into(), Vec::new(), Vec::new())).await;
        assert!(store.write_error().unwrap().contains("os error 28"), "{:?}", store.write_error());
        assert_eq!(read(&fs::read(&path).unwrap()).unwrap().token, "old");
        // One chain of retries, however often a state is queued in the meantime.
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(store.clone().run(ended));
        for n in 0..5 {
            store.save(State::new(format!("new {n}"), Vec::new(), Vec::new()));
            // Time to begin another chain, which must not happen.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        fs::remove_file(&temporary).unwrap();
        wait_until_async("the state is written", || store.write_error().is_none()).await;
        assert_eq!((store.write_error(), read(&fs::read(&path).unwrap()).unwrap().token.as_str()), (None, "new 4"));
        drop(end);
        task.await.unwrap();
    }

    #[test]
    fn invalid_state_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for content in ["{", "{\"version\": 9, \"token\": \"\", \"workers\": []}"] {
            fs::write(dir.path().join("state.json"), content).unwrap();
            assert!(matches!(StateStore::open(dir.path()), Err(DiskError::Invalid { .. })), "{content}");
        }
    }
}
