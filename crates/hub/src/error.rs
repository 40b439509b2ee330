//! Errors of finding and fetching a model's files. Each message says what failed, where, and what
//! to do next.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Why a model's files could not be found or fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// The reference names no model.
    #[error(
        "`{given}` names no model: {why}. Write a directory, a .gguf file, a hub id (org/name, org/name@revision, \
         org/name:Q4_K_M or org/name/file.gguf), pip:NAME or pip:NAME==VERSION, or a short name ({names})",
        names = super::short_names::short_names()
    )]
    Reference {
        /// The reference as written.
        given: String,
        /// What is wrong with it.
        why: String,
    },
    /// A name without a slash that is neither a directory nor a short name, nor found on the hub.
    #[error(
        "`{given}` is not a directory or a short name ({names}), and as a hub id without an organisation: {error}",
        names = super::short_names::short_names()
    )]
    Unknown {
        /// The name as written.
        given: String,
        /// The hub's answer.
        error: Box<HubError>,
    },
    /// The model to remove is not in a cache.
    #[error("{what} cannot be removed: {why}")]
    NotCached {
        /// The model.
        what: String,
        /// Why not.
        why: String,
    },
    /// An invalid option, usually from the environment.
    #[error("{0}")]
    Option(String),
    /// A directory without `config.json`.
    #[error("{place} has no config.json, so it is not a model directory; it holds {found}")]
    NoConfig {
        /// The directory, repository or wheel.
        place: String,
        /// What is there instead.
        found: String,
    },
    /// The only weights are pickles of an unsupported kind.
    #[error(
        "{place} has no weights in a supported format (model.safetensors or pytorch_model.bin), only {file}. Loading such a pickle \
         as Python does can run any code its author wrote, so it is refused; only torch's pytorch_model.bin is read, \
         and without running it. Choose a revision with .safetensors files, or convert it where you trust it: in \
         Python, load the model and call save_pretrained(DIR, safe_serialization=True), then give DIR"
    )]
    Pickle {
        /// The directory, repository or wheel.
        place: String,
        /// The pickle.
        file: String,
    },
    /// No weights in a supported format.
    #[error(
        "{place} has no weights in a supported format (model.safetensors or pytorch_model.bin, or the .index.json of either with \
         its shards); it holds {found}"
    )]
    NoWeights {
        /// The directory, repository or wheel.
        place: String,
        /// What is there instead.
        found: String,
    },
    /// A file that another file names is missing, or a file has the wrong content.
    #[error("{}: {why}", file.display())]
    BadFile {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Several GGUF models, none with a default quantization.
    #[error("{place} has several GGUF models ({found}); {next}")]
    ManyGguf {
        /// The directory or repository.
        place: String,
        /// Their quantizations or files.
        found: String,
        /// How to name one.
        next: String,
    },
    /// The named GGUF model does not exist.
    #[error("{place} has no {what}; {found}")]
    NoGguf {
        /// The repository.
        place: String,
        /// The file or quantization.
        what: String,
        /// The models that exist.
        found: String,
    },
    /// A GGUF file for a task that needs a model directory.
    #[error(
        "{} is a GGUF, and this task reads models as directories of config.json, weights and tokenizer; \
         give the repository or directory that the GGUF was made from", file.display()
    )]
    IsGguf {
        /// Its first part.
        file: PathBuf,
    },
    /// Offline mode, and the files are not cached.
    #[error(
        "{what} is not complete in the caches ({missing}), and offline mode forbids fetching it; \
         unset HF_HUB_OFFLINE, or run once online with the cache {}", cache.display()
    )]
    Offline {
        /// The model.
        what: String,
        /// What is missing.
        missing: String,
        /// The cache that was searched.
        cache: PathBuf,
    },
    /// No answer from the hub, or a broken connection.
    #[error(
        "cannot reach {endpoint}: {why}. Check the network, HF_ENDPOINT and proxy settings, or give a directory or pip:NAME"
    )]
    Unreachable {
        /// Scheme and host of the hub.
        endpoint: String,
        /// What happened.
        why: String,
    },
    /// The hub requires a token, or another one.
    #[error(
        "the hub refuses {what} (status {status}{code}): it does not exist, is private or needs its terms accepted; \
         check the spelling, accept the terms on its page, and set HF_TOKEN to a token that may read it"
    )]
    Refused {
        /// The repository or file.
        what: String,
        /// 401 or 403.
        status: u16,
        /// The hub's error code with a leading comma, or empty.
        code: String,
    },
    /// The hub does not have it.
    #[error("the hub has no {what} (status 404{code}); check the name and the revision")]
    NotFound {
        /// The repository or file.
        what: String,
        /// The hub's error code with a leading comma, or empty.
        code: String,
    },
    /// The hub's answer is not valid.
    #[error("{endpoint} answered {what} with {why}; try again later, or check that HF_ENDPOINT is a Hugging Face hub")]
    Answer {
        /// Scheme and host of the hub.
        endpoint: String,
        /// The requested resource.
        what: String,
        /// What is wrong with the answer.
        why: String,
    },
    /// The connection broke on every attempt.
    #[error("the download of {file} broke off at {got} bytes ({why}); run the command again and it continues there")]
    Broken {
        /// The file in the repository.
        file: String,
        /// Bytes kept for the next try.
        got: u64,
        /// What happened.
        why: String,
    },
    /// The content differs from the expected hash or size.
    #[error("{file} is not what it should be: expected {expected}, found {found}; {next}")]
    Mismatch {
        /// The file.
        file: String,
        /// Expected hash or size.
        expected: String,
        /// Actual hash or size.
        found: String,
        /// What to do about it.
        next: String,
    },
    /// The disk or its permissions.
    #[error("cannot {doing} {}: {source}{}", path.display(), advice(source))]
    Disk {
        /// A verb.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No pip on this machine.
    #[error(
        "a pip: model needs pip, and none of these commands works: {tried}; install Python, or give a directory or a hub id"
    )]
    NoPip {
        /// The commands.
        tried: String,
    },
    /// pip ran and failed.
    #[error("pip cannot fetch {what}: {why}")]
    Pip {
        /// The requirement.
        what: String,
        /// pip's error message.
        why: String,
    },
    /// An unsafe or invalid wheel.
    #[error("the wheel {wheel} is refused: {why}; nothing of it was kept")]
    Wheel {
        /// Its file name.
        wheel: String,
        /// What is wrong with it.
        why: String,
    },
    /// Several models in a wheel, or none at the given path.
    #[error("{package} holds {found}; choose one as pip:{package}/PATH")]
    Choose {
        /// The wheel.
        package: String,
        /// The model folders and GGUF files.
        found: String,
    },
    /// No source could provide a short name.
    #[error("{name}: {hub}; and {wheel}")]
    Nowhere {
        /// The short name.
        name: &'static str,
        /// The hub's error.
        hub: Box<HubError>,
        /// The wheel's error.
        wheel: Box<HubError>,
    },
}

impl HubError {
    /// Whether the error is remote or on the network, so that another source might succeed.
    pub(super) fn is_remote(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Refused { .. }
                | Self::NotFound { .. }
                | Self::NoGguf { .. }
                | Self::Answer { .. }
                | Self::Broken { .. }
                | Self::NoPip { .. }
                | Self::Pip { .. }
        )
    }
}

/// For `map_err`: the operation and the path.
pub(super) fn disk(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HubError {
    let path = path.to_owned();
    move |source| HubError::Disk { doing, path, source }
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "; free some space, or set HF_HUB_CACHE (hub) or SCONCE_CACHE (wheels) to a larger disk"
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "; make it writable, or set HF_HUB_CACHE (hub) or SCONCE_CACHE (wheels) to a place that is"
        }
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            "; a file stands where a directory should be: move it, or set HF_HUB_CACHE (hub) or SCONCE_CACHE (wheels)"
        }
        _ => "",
    }
}
