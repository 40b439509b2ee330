//! What a manager that comes back must know, on disk. Written whole beside the old one and put in its place, so that a crash leaves
//! one or the other. A disk that refuses is told of, and tried again; serving goes on.

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
/// Until a disk that refused is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// The file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct State {
    version: u32,
    /// What workers must be shown, and show.
    pub(crate) token: String,
    pub(crate) workers: Vec<Record>,
}

impl State {
    pub(crate) fn new(token: String, workers: Vec<Record>) -> State {
        State { version: VERSION, token, workers }
    }
}

/// Why a manager cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// Another manager has these files.
    #[error(
        "{} is another manager's: it runs already (`sconce pool status`), or was told the same --state",
        .0.display()
    )]
    Taken(PathBuf),
    /// The directory cannot be had.
    #[error("{}: {why}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        why: io::Error,
    },
    /// What is there was not written by us.
    #[error("{}: {what}; move it away to begin anew (workers that still run are then yours to stop)", path.display())]
    Strange {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// Keeps the state on disk.
pub(crate) struct Keeper {
    path: PathBuf,
    /// Held as long as the manager lives: the system lets go of it with the process.
    _lock: File,
    next: Mutex<Option<State>>,
    wake: Notify,
    trouble: Mutex<Option<String>>,
}

/// How long a lock may outlive its manager: a worker that it was about to start has it until it is a program of its own.
const LEAVING: Duration = Duration::from_millis(500);
const TRIES: u32 = 20;

impl Keeper {
    /// Takes the directory and reads what is there.
    pub(crate) fn open(dir: &Path) -> Result<(Arc<Keeper>, State), DiskError> {
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
                Err(fs::TryLockError::WouldBlock) if tries < TRIES => thread::sleep(LEAVING / TRIES),
                Err(fs::TryLockError::WouldBlock) => return Err(DiskError::Taken(dir.to_path_buf())),
                Err(fs::TryLockError::Error(why)) => return Err(DiskError::Io { path: lock_path, why }),
            }
            tries += 1;
        }
        let path = dir.join("state.json");
        let state = match fs::read(&path) {
            Ok(bytes) => read(&bytes).map_err(|what| DiskError::Strange { path: path.clone(), what })?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => State::default(),
            Err(why) => return Err(DiskError::Io { path, why }),
        };
        let (next, trouble) = (Mutex::new(None), Mutex::new(None));
        Ok((Arc::new(Keeper { path, _lock: lock, next, wake: Notify::new(), trouble }), state))
    }

    /// Keeps this, soon; what is newer goes before what is older.
    pub(crate) fn save(&self, state: State) {
        *self.next() = Some(state);
        self.wake.notify_one();
    }

    /// Why the disk does not have what it should.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps this before anything else happens. Whether the disk has it, `trouble` tells.
    pub(crate) async fn save_now(&self, state: State) {
        if !self.put(&state).await {
            self.save(state);
        }
    }

    /// Writes what is to be kept, as it comes, until `end`; then what is left.
    pub(crate) async fn run(self: Arc<Self>, mut end: oneshot::Receiver<()>) {
        // Of a disk that refused: when it is tried again.
        let mut again: Option<Instant> = None;
        loop {
            let last = tokio::select! {
                () = self.wake.notified() => false,
                () = tokio::time::sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => false,
                _ = &mut end => true,
            };
            again = None;
            loop {
                let Some(state) = self.next().take() else { break };
                if !self.put(&state).await {
                    // Unless there is something newer by now.
                    self.next().get_or_insert(state);
                    again = Some(Instant::now() + RETRY);
                    break;
                }
            }
            if last {
                return;
            }
        }
    }

    /// What is to be written next.
    pub(crate) fn next(&self) -> MutexGuard<'_, Option<State>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes it; whether that went well.
    async fn put(&self, state: &State) -> bool {
        let (path, kept) = (self.path.clone(), state.clone());
        let shown = self.path.display();
        let trouble = match tokio::task::spawn_blocking(move || write(&path, &kept)).await {
            Ok(Ok(())) => None,
            Ok(Err(e)) => Some(format!(
                "{shown} cannot be written: {e}; a manager started anew may not find all workers until there is room"
            )),
            Err(e) => Some(format!("{shown} was not written: {e}")),
        };
        let mut was = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*was, &trouble) {
            (was, Some(what)) if was.as_ref() != Some(what) => tracing::error!("{what}"),
            (Some(_), None) => tracing::info!("{shown} is written again"),
            _ => {}
        }
        let well = trouble.is_none();
        *was = trouble;
        well
    }
}

fn read(bytes: &[u8]) -> Result<State, String> {
    let state: State = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    match state.version {
        VERSION => Ok(state),
        other => Err(format!("it is of version {other}, and this manager knows {VERSION}")),
    }
}

/// Whole or not at all, and for the owner's eyes only: the token is in it.
fn write(path: &Path, state: &State) -> io::Result<()> {
    let fresh = path.with_extension("json.new");
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&fresh)?;
    file.write_all(&serde_json::to_vec_pretty(state).map_err(io::Error::other)?)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&fresh, path)?;
    // The new name is safe once the directory is.
    if let Some(dir) = path.parent() {
        File::open(dir)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_saved_is_read_and_a_directory_has_one_manager() {
        let dir = tempfile::tempdir().unwrap();
        let (keeper, before) = Keeper::open(dir.path()).unwrap();
        assert_eq!((before.token.as_str(), before.workers.len()), ("", 0));
        assert!(matches!(Keeper::open(dir.path()), Err(DiskError::Taken(_))));
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(keeper.clone().run(ended));
        (0..50).for_each(|n| keeper.save(State::new(format!("t{n}"), Vec::new())));
        drop(end);
        task.await.unwrap();
        drop(keeper);
        let (_keeper, after) = Keeper::open(dir.path()).unwrap();
        assert_eq!(after.token, "t49");
        assert!(!dir.path().join("state.json.new").exists());
        #[cfg(unix)]
        {
            let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(dir.path().join("state.json")).unwrap());
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[tokio::test]
    async fn a_disk_that_refuses_is_told_of_and_leaves_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let (keeper, _) = Keeper::open(dir.path()).unwrap();
        let path = dir.path().join("state.json");
        write(&path, &State::new("old".into(), Vec::new())).unwrap();
        // A directory in its way: root may write where permissions forbid, but not into that.
        fs::create_dir(dir.path().join("state.json.new")).unwrap();
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(keeper.clone().run(ended));
        keeper.save(State::new("new".into(), Vec::new()));
        for _ in 0..200 {
            if keeper.trouble().is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(keeper.trouble().unwrap().contains("state.json"), "{:?}", keeper.trouble());
        assert_eq!(read(&fs::read(&path).unwrap()).unwrap().token, "old");
        fs::remove_dir(dir.path().join("state.json.new")).unwrap();
        keeper.save(State::new("newer".into(), Vec::new()));
        drop(end);
        task.await.unwrap();
        assert_eq!((keeper.trouble(), read(&fs::read(&path).unwrap()).unwrap().token.as_str()), (None, "newer"));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_disk_that_fills_up_while_it_is_written_leaves_the_old_file_and_is_tried_again_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        write(&path, &State::new("old".into(), Vec::new())).unwrap();
        // Half of what an earlier manager was about to write.
        let fresh = dir.path().join("state.json.new");
        fs::write(&fresh, "{\"version\": 2, \"tok").unwrap();
        let (keeper, before) = Keeper::open(dir.path()).unwrap();
        assert_eq!(before.token, "old");
        // It can be opened, and there is no room for a single byte.
        fs::remove_file(&fresh).unwrap();
        std::os::unix::fs::symlink("/dev/full", &fresh).unwrap();
        keeper.save_now(State::new("new".into(), Vec::new())).await;
        assert!(keeper.trouble().unwrap().contains("os error 28"), "{:?}", keeper.trouble());
        assert_eq!(read(&fs::read(&path).unwrap()).unwrap().token, "old");
        // One chain of tries, however often somebody saves meanwhile.
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(keeper.clone().run(ended));
        for n in 0..5 {
            keeper.save(State::new(format!("new {n}"), Vec::new()));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        fs::remove_file(&fresh).unwrap();
        tokio::time::sleep(RETRY + Duration::from_secs(2)).await;
        assert_eq!((keeper.trouble(), read(&fs::read(&path).unwrap()).unwrap().token.as_str()), (None, "new 4"));
        drop(end);
        task.await.unwrap();
    }

    #[test]
    fn a_strange_file_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        for strange in ["{", "{\"version\": 9, \"token\": \"\", \"workers\": []}"] {
            fs::write(dir.path().join("state.json"), strange).unwrap();
            assert!(matches!(Keeper::open(dir.path()), Err(DiskError::Strange { .. })), "{strange}");
        }
    }
}
