//! The Hugging Face hub and its cache, in the layout of Python's huggingface_hub, so that each finds what the other
//! fetched:
//! ```text
//! models--org--name/refs/REVISION            the commit it stood for
//!                   snapshots/COMMIT/FILE    links to
//!                   blobs/ETAG               the bytes
//!                   .no_exist/COMMIT/FILE    empty: the repository lacks it
//! .locks/models--org--name/ETAG.lock         held while the blob is fetched
//! ```
//! The reference is written last, when every file it promises is there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::download::Download;
use super::error::disk;
use super::http::Client;
use super::reference::is_safe_relative;
use super::{Choice, Files, HubError, Options, Origin, Progress, gguf, modules, store, wanted};

/// What is asked of the hub.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) repo: &'a str,
    /// None is `main`.
    pub(super) revision: Option<&'a str>,
    pub(super) choice: &'a Choice,
}

/// One repository at one revision, in one cache.
struct Place<'a> {
    repo: &'a str,
    revision: &'a str,
    choice: &'a Choice,
    options: &'a Options,
    folder: PathBuf,
}

/// A snapshot in the cache from which a model can be loaded.
struct Snapshot {
    commit: String,
    dir: PathBuf,
    /// The parts of the GGUF that is the model, if it is one.
    gguf: Option<Vec<PathBuf>>,
    /// Files that would tell more, are not there, and of which it is not known whether the repository has them.
    unknown: Vec<String>,
}

/// The hub's description of a repository at a revision.
#[derive(Deserialize)]
struct Info {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

/// The files if the cache holds all of them, without asking anyone; else what it lacks.
pub(super) fn cached(asked: Asked<'_>, options: &Options) -> Result<Files, String> {
    let place = Place::new(asked, options);
    match place.snapshot() {
        Ok(snapshot) if snapshot.unknown.is_empty() => Ok(place.found(snapshot)),
        Ok(snapshot) => Err(format!("it may lack {}", snapshot.unknown.join(", "))),
        Err(error) => Err(error.to_string()),
    }
}

/// From the cache if it holds all of them, else from the hub.
pub(super) fn resolve(asked: Asked<'_>, options: &Options, progress: &dyn Progress) -> Result<Files, HubError> {
    let place = Place::new(asked, options);
    let snapshot = place.snapshot();
    match &snapshot {
        Ok(whole) if whole.unknown.is_empty() => return snapshot.map(|snapshot| place.found(snapshot)),
        Err(missing) if options.offline => {
            let (what, missing) = (place.name(), missing.to_string());
            return Err(HubError::Offline { what, missing, cache: options.hub_cache.clone() });
        }
        _ => {}
    }
    let refusal = if options.offline {
        "offline".to_owned()
    } else {
        match place.fetch(progress) {
            // Files that would serve are here; that the hub cannot confirm them is worth a word, not a failure.
            Err(error) if error.is_remote() && snapshot.is_ok() => error.to_string(),
            other => return other,
        }
    };
    let snapshot = snapshot?;
    let unknown = snapshot.unknown.join(", ");
    let repo = place.repo;
    progress.note(&format!("{refusal}; using {repo} from the cache, which may lack files of the model: {unknown}"));
    Ok(place.found(snapshot))
}

impl<'a> Place<'a> {
    fn new(Asked { repo, revision, choice }: Asked<'a>, options: &'a Options) -> Self {
        let folder = options.hub_cache.join(folder_name(repo));
        Self { repo, revision: revision.unwrap_or("main"), choice, options, folder }
    }

    fn name(&self) -> String {
        format!("{}@{}", self.repo, self.revision)
    }

    fn found(&self, snapshot: Snapshot) -> Files {
        let origin = Origin::HubCache { repo: self.repo.to_owned(), commit: snapshot.commit };
        match snapshot.gguf {
            Some(parts) => Files::gguf(parts, origin),
            None => Files { dir: snapshot.dir, gguf: None, origin },
        }
    }

    /// The parts of the GGUF among `names` that is meant, if it is one that is meant.
    fn chosen(&self, names: &[String]) -> Result<Option<Vec<String>>, HubError> {
        gguf::choose(self.repo, self.revision, names, self.choice)
    }

    /// Where we keep what a commit lists, so that the next call chooses among all of its GGUFs as this one did, and not
    /// among those that happen to be in the cache.
    fn listing(&self, commit: &str) -> PathBuf {
        self.options.cache.join("listings").join(folder_name(self.repo)).join(commit)
    }

    /// What the cache has for the revision, or why that is not enough.
    fn snapshot(&self) -> Result<Snapshot, HubError> {
        let reference = self.folder.join("refs").join(self.revision);
        let commit = match fs::read_to_string(&reference) {
            Ok(text) => text.trim().to_owned(),
            Err(_) => self.revision.to_owned(),
        };
        let dir = self.folder.join("snapshots").join(&commit);
        if !is_safe_relative(&commit) || !dir.is_dir() {
            return Err(HubError::BadFile { file: dir, why: "no such snapshot".to_owned() });
        }
        // What Python left has no listing: then the files that are there are those that were wanted.
        let listed = fs::read_to_string(self.listing(&commit)).ok();
        let names = match &listed {
            Some(text) => text.lines().filter(|name| is_safe_relative(name)).map(str::to_owned).collect(),
            None => gguf::list(&dir)?,
        };
        let here = |error| match error {
            // Of what the repository has, nothing is known here.
            HubError::NoGguf { what, found, .. } if listed.is_none() => {
                HubError::NoGguf { place: dir.display().to_string(), what, found }
            }
            other => other,
        };
        if let Some(parts) = self.chosen(&names).map_err(here)? {
            if let Some(part) = parts.iter().find(|part| !dir.join(part).is_file()) {
                return Err(HubError::BadFile { file: dir.join(part), why: "not fetched yet".to_owned() });
            }
            let sure = listed.is_some() || *self.choice != Choice::Usual;
            let unknown = if sure { Vec::new() } else { vec!["safetensors or another GGUF".to_owned()] };
            let gguf = Some(parts.iter().map(|part| dir.join(part)).collect());
            return Ok(Snapshot { commit, dir, gguf, unknown });
        }
        wanted::inspect(&dir)?;
        let absent = self.folder.join(".no_exist").join(&commit);
        let mut unknown = modules::telling(&dir, &modules::modules(&dir)?);
        unknown.retain(|name| !dir.join(name).exists() && !absent.join(name).exists());
        Ok(Snapshot { commit, dir, gguf: None, unknown })
    }

    /// Asks the hub what there is, and downloads what we want and do not have.
    fn fetch(&self, progress: &dyn Progress) -> Result<Files, HubError> {
        let client = Client::new(self.options)?;
        let path = format!("/api/models/{}/revision/{}", self.repo, escape(self.revision, ""));
        let info: Info = client.json(&path, &self.name())?;
        let odd = |why: &str| HubError::Answer {
            endpoint: self.options.endpoint.clone(),
            what: self.name(),
            why: why.to_owned(),
        };
        if info.sha.len() != 40 || !info.sha.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(odd("a commit that is none"));
        }
        let names: Vec<String> = info.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
        let chosen = self.chosen(&names)?;
        if chosen.is_none() {
            wanted::check_unread(&self.name(), &names)?;
        }

        let dir = self.folder.join("snapshots").join(&info.sha);
        let mut fetched = false;
        let mut get = |name: &str| {
            if !is_safe_relative(name) {
                return Err(odd("a file name that leads outside"));
            }
            fetched |= self.fetch_file(&client, &info.sha, name, progress)?;
            Ok(())
        };
        match &chosen {
            Some(parts) => {
                parts.iter().try_for_each(|part| get(part))?;
                let listed: Vec<&str> = names.iter().map(String::as_str).filter(|name| gguf::matters(name)).collect();
                // Only saves the next call a question.
                let _ = store::write_atomic(&self.listing(&info.sha), listed.join("\n").as_bytes());
            }
            None => self.fetch_usual(&info.sha, &names, &mut get)?,
        }
        if self.revision != info.sha {
            store::write_atomic(&self.folder.join("refs").join(self.revision), info.sha.as_bytes())?;
        }
        let (repo, commit, endpoint) = (self.repo.to_owned(), info.sha, self.options.endpoint.clone());
        let origin = if fetched { Origin::Hub { repo, commit, endpoint } } else { Origin::HubCache { repo, commit } };
        Ok(match chosen {
            Some(parts) => Files::gguf(parts.iter().map(|part| dir.join(part)).collect(), origin),
            None => Files { dir, gguf: None, origin },
        })
    }

    /// Has `get` fetch what a model of the usual kind consists of: its weights and all that lies beside them.
    fn fetch_usual(
        &self,
        commit: &str,
        names: &[String],
        get: &mut dyn FnMut(&str) -> Result<(), HubError>,
    ) -> Result<(), HubError> {
        let dir = self.folder.join("snapshots").join(commit);
        // Which other folders matter is written in modules.json.
        if names.iter().any(|name| name == "modules.json") {
            get("modules.json")?;
        }
        let modules = modules::modules(&dir)?;
        wanted::check(&self.name(), names, &modules)?;
        wanted::wanted(names, &modules).into_iter().try_for_each(&mut *get)?;
        // A shard that the repository lacks is told of by the inspection.
        let shards = wanted::shards(&dir, names, &modules)?;
        shards.iter().filter(|shard| names.contains(&shard.name)).try_for_each(|shard| get(&shard.name))?;
        wanted::inspect(&dir)?;

        for name in modules::telling(&dir, &modules).into_iter().filter(|name| !names.contains(name)) {
            // Only saves the next call a question.
            let _ = store::write_atomic(&self.folder.join(".no_exist").join(commit).join(name), b"");
        }
        Ok(())
    }

    /// Puts one file into the snapshot. False if it was there.
    fn fetch_file(
        &self,
        client: &Client<'_>,
        commit: &str,
        name: &str,
        progress: &dyn Progress,
    ) -> Result<bool, HubError> {
        let pointer = self.folder.join("snapshots").join(commit).join(name);
        if pointer.exists() {
            return Ok(false);
        }
        let path = format!("/{}/resolve/{commit}/{}", self.repo, escape(name, "/"));
        let what = format!("{name} of {}", self.repo);
        let head = client.head(&path, &what)?;
        let blobs = self.folder.join("blobs");
        fs::create_dir_all(&blobs).map_err(disk("create", &blobs))?;
        let blob = blobs.join(&head.etag);
        let there = || fs::metadata(&blob).is_ok_and(|blob| head.size.is_none_or(|size| size == blob.len()));

        let lock =
            self.options.hub_cache.join(".locks").join(folder_name(self.repo)).join(format!("{}.lock", head.etag));
        let _lock = store::lock(&lock, name, progress)?;
        let missing = !there();
        if missing {
            let download = Download { client, path: &path, name, head: &head, progress };
            // Only a file whose hash is known may be continued: were two processes ever to write one partial file
            // (some file systems only pretend to lock), the hash would tell. Others are small, and start anew.
            if head.sha256().is_some() {
                let partial = blobs.join(format!("{}.incomplete", head.etag));
                download.run(&partial)?;
                fs::rename(&partial, &blob).map_err(disk("write", &blob))?;
            } else {
                let partial = store::scratch_file(&blobs)?;
                download.run(partial.path())?;
                partial.persist(&blob).map_err(|error| disk("write", &blob)(error.error))?;
            }
        }
        if !pointer.exists() {
            link(&blob, &pointer, name).map_err(disk("link", &pointer))?;
        }
        Ok(missing)
    }
}

/// Makes `pointer`, which is `name` in a snapshot, lead to `blob`. Relative, so that the cache can be moved.
#[cfg(unix)]
fn link(blob: &Path, pointer: &Path, name: &str) -> io::Result<()> {
    let up = "../".repeat(2 + name.matches('/').count());
    let target = format!("{up}blobs/{}", blob.file_name().unwrap_or_default().to_string_lossy());
    let parent = |path: &Path| path.parent().unwrap_or(Path::new(".")).to_owned();
    fs::create_dir_all(parent(pointer))?;
    // Renamed into place, because a link that leads nowhere may be in the way; and made among the blobs, because others
    // list the snapshot.
    let fresh = tempfile::Builder::new()
        .suffix(".incomplete")
        .make_in(parent(blob), |path| std::os::unix::fs::symlink(&target, path))?;
    fresh.into_temp_path().persist(pointer).map_err(|error| error.error)
}

/// Where links need a privilege, a snapshot holds the file itself, as Python does there.
#[cfg(not(unix))]
fn link(blob: &Path, pointer: &Path, _name: &str) -> io::Result<()> {
    fs::create_dir_all(pointer.parent().unwrap_or(Path::new(".")))?;
    fs::hard_link(blob, pointer).or_else(|_| fs::copy(blob, pointer).map(drop))
}

fn folder_name(repo: &str) -> String {
    format!("models--{}", repo.replace('/', "--"))
}

/// Percent-encodes all that a URL's path does not take literally, but for `keep`.
fn escape(text: &str, keep: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => escaped.push(byte as char),
            _ if keep.as_bytes().contains(&byte) => escaped.push(byte as char),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}
