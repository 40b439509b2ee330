//! What can go wrong between a text and its vector.

use crate::sampling::Failure;
use sconce_formats::FileError;
use sconce_ops::{DType, Device};
use std::path::Path;

/// Any failure of the engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model's files could not be had.
    #[error(transparent)]
    Hub(#[from] sconce_hub::HubError),
    /// One of the model's files cannot be used.
    #[error(transparent)]
    File(#[from] sconce_formats::FileError),
    /// The model's files are sound, but ask for something else than we have.
    #[error(transparent)]
    Model(#[from] sconce_models::Error),
    /// From an op.
    #[error(transparent)]
    Op(#[from] sconce_ops::Error),
    /// The device has no rung for some of the model's ops.
    #[error("{device} cannot run this model: {}", refusals.join("; "))]
    Plan {
        /// The device asked for.
        device: Device,
        /// Op by op, why not.
        refusals: Vec<String>,
    },
    /// It would not fit.
    #[error("model needs {} in {dtype} ({} weights, {} for batches of {tokens} tokens), {device} has {} free; {advice}",
        gib(weights.saturating_add(*workspace)), gib(*weights), gib(*workspace), gib(*free))]
    Memory {
        /// The device asked for.
        device: Device,
        /// The dtype asked for.
        dtype: DType,
        /// Bytes of weights.
        weights: u64,
        /// Bytes of activations.
        workspace: u64,
        /// Tokens of a batch.
        tokens: usize,
        /// Bytes that are free.
        free: u64,
        /// A way out.
        advice: String,
    },
    /// A conversation does not become a prompt.
    #[error(transparent)]
    Template(#[from] sconce_text::chat::TemplateError),
    /// An answer cannot have the form that was asked for.
    #[error(transparent)]
    Format(#[from] crate::structured_output::FormatError),
    /// One of the texts has no vector.
    #[error("text {}: {why}", text + 1)]
    Text {
        /// Which, counted from 0.
        text: usize,
        /// Why it has none.
        why: String,
    },
    /// One of the texts is longer than the model can take.
    #[error("text {}: {why}", text + 1)]
    TooLong {
        /// Which, counted from 0.
        text: usize,
        /// How much longer.
        why: String,
    },
    /// One of the images has no vector.
    #[error("image {}: {why}", image + 1)]
    Image {
        /// Which, counted from 0.
        image: usize,
        /// Why it has none.
        why: String,
    },
    /// What the caller gave cannot be used.
    #[error("{0}")]
    Input(String),
    /// What the model computed is no use: numbers overflowed.
    #[error("{0}")]
    Unsound(String),
    /// The request was cancelled.
    #[error("cancelled: nobody waits for the answer any more")]
    Cancelled,
    /// The request was not done at its deadline.
    #[error("not done within {:.1} s, the time that it was given; allow more, ask for less, or try again when less is asked of \
             the model", allowed.as_secs_f64())]
    Late {
        /// The time it was given.
        allowed: std::time::Duration,
    },
    /// A bug of ours: work on the device panicked. Only this call failed.
    #[error("internal error on {device}, please report it: {why}")]
    Panicked {
        /// The device it ran on.
        device: Device,
        /// What the panic said.
        why: String,
    },
    /// The thread that owns the device has ended.
    #[error("the thread that owns {device} has ended: {why}")]
    Stopped {
        /// The device it owned.
        device: Device,
        /// Its last words.
        why: String,
    },
}

/// Whose concern an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The caller's: what was asked cannot be done.
    Input,
    /// The model's files: missing, damaged or not supported.
    Files,
    /// The model's numbers: infinities or NaN.
    Unsound,
    /// The device: it lacks a kernel or memory, or failed.
    Device,
    /// Nobody's: the request was cancelled, or ran out of time.
    Ended,
    /// Ours.
    Bug,
}

/// Shorthand used throughout the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whose concern it is.
    pub fn class(&self) -> ErrorClass {
        match self {
            Error::Input(_) | Error::Text { .. } | Error::TooLong { .. } | Error::Image { .. } => ErrorClass::Input,
            Error::Template(_) | Error::Format(_) => ErrorClass::Input,
            Error::Hub(_) | Error::File(_) | Error::Model(_) => ErrorClass::Files,
            Error::Unsound(_) => ErrorClass::Unsound,
            Error::Op(_) | Error::Plan { .. } | Error::Memory { .. } | Error::Stopped { .. } => ErrorClass::Device,
            Error::Cancelled | Error::Late { .. } => ErrorClass::Ended,
            Error::Panicked { .. } => ErrorClass::Bug,
        }
    }

    /// Says that a result holds infinities or NaN, and what to do about it.
    pub(crate) fn unsound(what: &str, device: Device, dtype: DType) -> Error {
        let advice = match dtype {
            DType::F16 => "f16 ends at 65,504: try --dtype bf16 or f32",
            _ => "the weights may be damaged: fetch them again",
        };
        Error::Unsound(format!("{what} in {dtype} on {device} holds infinities or NaN; {advice}"))
    }

    /// A state that only a bug of ours leads to.
    pub(crate) fn bug(device: Device, why: &str) -> Error {
        Error::Panicked { device, why: why.into() }
    }

    /// Whether another device might do where this one failed.
    pub(crate) fn is_the_devices(&self) -> bool {
        matches!(self, Error::Plan { .. } | Error::Memory { .. } | Error::Op(sconce_ops::Error::Device { .. }))
    }

    /// The same at the folder whose files it is about, where it does not name one.
    pub(crate) fn of(self, root: &Path) -> Error {
        match self {
            Error::Model(sconce_models::Error::Op(e @ sconce_ops::Error::Weight { .. }))
            | Error::Op(e @ sconce_ops::Error::Weight { .. }) => Error::file(root, e),
            Error::Model(sconce_models::Error::Config(what)) => Error::file(&root.join("config.json"), what),
            other => other,
        }
    }

    pub(crate) fn file(path: &Path, what: impl ToString) -> Error {
        FileError::new(path, what).into()
    }
}

impl From<sconce_text::Error> for Error {
    fn from(error: sconce_text::Error) -> Error {
        match error {
            sconce_text::Error::File(e) => Error::File(e),
            sconce_text::Error::Template(e) => Error::Template(e),
            sconce_text::Error::Text { text, why } => Error::Text { text, why },
            sconce_text::Error::TooLong { text, why } => Error::TooLong { text, why },
            sconce_text::Error::Input(what) => Error::Input(what),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::Empty | Failure::NotFinite { .. } => Error::Unsound(failure.to_string()),
            Failure::NothingAllowed => Error::Input(failure.to_string()),
        }
    }
}

/// Bytes for a person.
fn gib(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}
