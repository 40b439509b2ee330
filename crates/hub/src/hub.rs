//! The Hugging Face hub and its cache, in the layout of Python's huggingface_hub, so that both
//! share downloaded files:
//!
//! ```text
//! models--ORG--NAME/refs/REVISION            the commit of a branch or tag
//!                   snapshots/COMMIT/FILE    a link to a blob
//!                   blobs/ETAG               the content of a file
//!                   .no_exist/COMMIT/FILE    empty: the repository lacks this file
//! .locks/models--ORG--NAME/ETAG.lock         locked while the blob is downloaded
//! ```
//!
//! `refs/REVISION` is written last, after all files that the model needs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::download::Download;
use super::error::disk;
use super::http::Client;
use super::reference::is_safe_relative;
use super::{Choice, Files, HubError, OnnxFiles, Options, Origin, Progress, gguf, model_files, modules, store};

/// A request for a model on the hub.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) repo: &'a str,
    /// `None` is `main`.
    pub(super) revision: Option<&'a str>,
    pub(super) choice: &'a Choice,
    /// Leave out the weights, for a tokenizer on its own.
    pub(super) without_weights: bool,
}

/// A repository at a revision, with its folder in the cache.
struct CachedRepo<'a> {
    repo: &'a str,
    revision: &'a str,
    choice: &'a Choice,
    without_weights: bool,
    options: &'a Options,
    folder: PathBuf,
}

/// A snapshot in the cache with a loadable model.
struct Snapshot {
    commit: String,
    dir: PathBuf,
    /// The parts of the GGUF, if the model is one.
    gguf: Option<Vec<PathBuf>>,
    /// Optional files that are not cached and that the repository may or may not have.
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

/// The files, if the cache has all of them; else what is missing. Sends no request.
pub(super) fn cached(request: Request<'_>, options: &Options) -> Result<Files, String> {
    let cached = CachedRepo::new(request, options);
    match cached.snapshot() {
        Ok(snapshot) if snapshot.unknown.is_empty() => Ok(cached.files(snapshot)),
        Ok(snapshot) => Err(format!("it may lack {}", snapshot.unknown.join(", "))),
        Err(error) => Err(error.to_string()),
    }
}

/// Finds the files in the cache if it has all of them, else on the hub.
pub(super) fn resolve(request: Request<'_>, options: &Options, progress: &dyn Progress) -> Result<Files, HubError> {
    let cached = CachedRepo::new(request, options);
    let snapshot = cached.snapshot();
    match &snapshot {
        Ok(complete) if complete.unknown.is_empty() => return snapshot.map(|snapshot| cached.files(snapshot)),
        Err(missing) if options.offline => {
            let (what, missing) = (cached.name(), missing.to_string());
            return Err(HubError::Offline { what, missing, cache: options.hub_cache.clone() });
        }
        _ => {}
    }
    let refusal = if options.offline {
        "offline".to_owned()
    } else {
        match cached.fetch(progress) {
            // The cached files are usable. If the hub cannot confirm that they are complete, print
            // a note instead of failing.
            Err(error) if error.is_remote() && snapshot.is_ok() => error.to_string(),
            other => return other,
        }
    };
    let snapshot = snapshot?;
    let unknown = snapshot.unknown.join(", ");
    let repo = cached.repo;
    progress.note(&format!("{refusal}; using {repo} from the cache, which may lack files of the model: {unknown}"));
    Ok(cached.files(snapshot))
}

impl<'a> CachedRepo<'a> {
    fn new(Request { repo, revision, choice, without_weights }: Request<'a>, options: &'a Options) -> Self {
        let folder = options.hub_cache.join(folder_name(repo));
        Self { repo, revision: revision.unwrap_or("main"), choice, without_weights, options, folder }
    }

    fn name(&self) -> String {
        format!("{}@{}", self.repo, self.revision)
    }

    fn files(&self, snapshot: Snapshot) -> Files {
        let origin = Origin::HubCache { repo: self.repo.to_owned(), commit: snapshot.commit };
        match snapshot.gguf {
            Some(parts) => Files::gguf(parts, origin),
            None => Files { dir: snapshot.dir, gguf: None, origin },
        }
    }

    /// The parts of the GGUF among `names` to use. `None` if the model is not a GGUF.
    fn chosen(&self, names: &[String]) -> Result<Option<Vec<String>>, HubError> {
        gguf::choose(self.repo, self.revision, names, self.choice)
    }

    /// Where the file list of a commit is cached, so that the next call chooses among all its
    /// GGUFs and weights, and not only among the cached ones.
    fn listing(&self, commit: &str) -> PathBuf {
        self.options.cache.join("listings").join(folder_name(self.repo)).join(commit)
    }

    /// Caches the file list of a commit. A failure only costs the next call a request.
    fn write_listing(&self, commit: &str, names: &[String]) {
        let listed: Vec<&str> = names.iter().map(String::as_str).filter(|name| gguf::affects_choice(name)).collect();
        let _ = store::write_atomic(&self.listing(commit), listed.join("\n").as_bytes());
    }

    /// The cached snapshot of the revision, or why it is not sufficient.
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
        // A snapshot that Python fetched has no listing: then the files present are taken to be
        // those requested.
        let listed = fs::read_to_string(self.listing(&commit)).ok();
        let names = match &listed {
            Some(text) => text.lines().filter(|name| is_safe_relative(name)).map(str::to_owned).collect(),
            None => gguf::list(&dir)?,
        };
        let local = |error| match error {
            // Without a listing the content of the repository is unknown.
            HubError::NoGguf { what, found, .. } if listed.is_none() => {
                HubError::NoGguf { place: dir.display().to_string(), what, found }
            }
            other => other,
        };
        if let Some(parts) = self.chosen(&names).map_err(local)? {
            if let Some(part) = parts.iter().find(|part| !dir.join(part).is_file()) {
                return Err(HubError::BadFile { file: dir.join(part), why: "not fetched yet".to_owned() });
            }
            let sure = listed.is_some() || *self.choice != Choice::Usual;
            let unknown = if sure { Vec::new() } else { vec!["safetensors or another GGUF".to_owned()] };
            let gguf = Some(parts.iter().map(|part| dir.join(part)).collect());
            return Ok(Snapshot { commit, dir, gguf, unknown });
        }
        if self.without_weights {
            model_files::check_tokenizer(&dir)?;
            return Ok(Snapshot { commit, dir, gguf: None, unknown: Vec::new() });
        }
        model_files::inspect(&dir)?;
        model_files::inspect_onnx(&dir, &self.options.onnx)?;
        if self.options.onnx == OnnxFiles::WithoutWeights && model_files::lacks_weights(&dir, &names)? {
            return Err(HubError::BadFile { file: dir, why: "only its ONNX model was fetched".to_owned() });
        }
        let absent = self.folder.join(".no_exist").join(&commit);
        let mut unknown = modules::optional_files(&dir, &modules::modules(&dir)?);
        unknown.retain(|name| !dir.join(name).exists() && !absent.join(name).exists());
        Ok(Snapshot { commit, dir, gguf: None, unknown })
    }

    /// Gets the file list from the hub, and downloads the selected files that are not cached.
    fn fetch(&self, progress: &dyn Progress) -> Result<Files, HubError> {
        let client = Client::new(self.options)?;
        let path = format!("/api/models/{}/revision/{}", self.repo, escape(self.revision, ""));
        let info: Info = client.json(&path, &self.name())?;
        let bad_answer = |why: &str| HubError::Answer {
            endpoint: self.options.endpoint.clone(),
            what: self.name(),
            why: why.to_owned(),
        };
        if info.sha.len() != 40 || !info.sha.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad_answer("an invalid commit"));
        }
        let names: Vec<String> = info.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
        let chosen = self.chosen(&names)?;
        if chosen.is_none() && !self.without_weights {
            model_files::check_listing(&self.name(), &names)?;
        }

        let dir = self.folder.join("snapshots").join(&info.sha);
        let mut fetched = false;
        let mut get = |name: &str| {
            if !is_safe_relative(name) {
                return Err(bad_answer("a file name that leads outside the repository"));
            }
            fetched |= self.fetch_file(&client, &info.sha, name, progress)?;
            Ok(())
        };
        match &chosen {
            Some(parts) => {
                parts.iter().try_for_each(|part| get(part))?;
                self.write_listing(&info.sha, &names);
            }
            None if self.without_weights => {
                model_files::text_files(&names).into_iter().try_for_each(&mut get)?;
                model_files::check_tokenizer(&dir)?;
            }
            None => self.fetch_default(&info.sha, &names, &mut get)?,
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

    /// Fetches, with `get`, a model that is not a GGUF: its weights and the files that belong to
    /// them.
    fn fetch_default(
        &self,
        commit: &str,
        names: &[String],
        get: &mut dyn FnMut(&str) -> Result<(), HubError>,
    ) -> Result<(), HubError> {
        let dir = self.folder.join("snapshots").join(commit);
        // modules.json names the other folders.
        if names.iter().any(|name| name == "modules.json") {
            get("modules.json")?;
        }
        // And a router those below it.
        for module in modules::modules(&dir)?.iter().filter(|module| module.role() == modules::Role::Router) {
            let file = module.file(modules::ROUTER);
            if names.contains(&file) {
                get(&file)?;
            }
        }
        let modules = modules::modules(&dir)?;
        model_files::check(&self.name(), names, &modules)?;
        model_files::check_onnx(&self.name(), names, &modules, &self.options.onnx)?;
        model_files::select(names, &modules, &self.options.onnx).into_iter().try_for_each(&mut *get)?;
        let shards = match &self.options.onnx {
            // The inspection below reports a shard that the repository lacks.
            OnnxFiles::WithoutWeights => model_files::shards(&dir, names, &modules)?,
            OnnxFiles::InPlaceOfWeights(_) => {
                self.write_listing(commit, names);
                Vec::new()
            }
        };
        shards.iter().filter(|shard| names.contains(&shard.name)).try_for_each(|shard| get(&shard.name))?;
        model_files::inspect(&dir)?;

        for name in modules::optional_files(&dir, &modules).into_iter().filter(|name| !names.contains(name)) {
            // A failure only costs the next call a request.
            let _ = store::write_atomic(&self.folder.join(".no_exist").join(commit).join(name), b"");
        }
        Ok(())
    }

    /// Puts one file into the snapshot. Returns false if it was there.
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
            // Only a file with a known hash is resumed: if two processes ever wrote one partial
            // file (some file systems only pretend to lock), the hash would show it. Other files
            // are small, and start again.
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

/// Links `pointer`, which is `name` in a snapshot, to `blob`. The link is relative, so that the
/// cache can be moved.
#[cfg(unix)]
fn link(blob: &Path, pointer: &Path, name: &str) -> io::Result<()> {
    let up = "../".repeat(2 + name.matches('/').count());
    let target = format!("{up}blobs/{}", blob.file_name().unwrap_or_default().to_string_lossy());
    let parent = |path: &Path| path.parent().unwrap_or(Path::new(".")).to_owned();
    fs::create_dir_all(parent(pointer))?;
    // Created among the blobs, because other processes list the snapshot; then renamed into place,
    // because a dangling link may be there.
    let fresh = tempfile::Builder::new()
        .suffix(".incomplete")
        .make_in(parent(blob), |path| std::os::unix::fs::symlink(&target, path))?;
    fresh.into_temp_path().persist(pointer).map_err(|error| error.error)
}

/// On systems where links need a privilege, a snapshot holds the file itself, as with Python.
#[cfg(not(unix))]
fn link(blob: &Path, pointer: &Path, _name: &str) -> io::Result<()> {
    fs::create_dir_all(pointer.parent().unwrap_or(Path::new(".")))?;
    fs::hard_link(blob, pointer).or_else(|_| fs::copy(blob, pointer).map(drop))
}

pub(super) fn folder_name(repo: &str) -> String {
    format!("models--{}", repo.replace('/', "--"))
}

/// Percent-encodes for a URL path, except characters in `keep`.
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
