//! Errors of the engine.

use crate::graph::Provider;
use sconce_formats::FileError;
use sconce_ops::{DType, Device};
use std::path::Path;

/// Any failure of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model's files could not be found or downloaded.
    #[error(transparent)]
    Hub(#[from] sconce_hub::HubError),
    /// One of the model's files cannot be used.
    #[error(transparent)]
    File(#[from] sconce_formats::FileError),
    /// The model's files are intact, but describe something that we do not support.
    #[error(transparent)]
    Model(#[from] sconce_models::Error),
    /// An op failed.
    #[error(transparent)]
    Op(#[from] sconce_ops::Error),
    /// The device has no rung for some of the model's ops.
    #[error("{device} cannot run this model: {}", refusals.join("; "))]
    Plan {
        /// The requested device.
        device: Device,
        /// The reason for each refused op.
        refusals: Vec<String>,
    },
    /// Another engine, ONNX Runtime, cannot run the model.
    #[error("{why}")]
    Engine {
        /// Where it should run.
        provider: Provider,
        /// The reason, and what to do.
        why: String,
    },
    /// The model does not fit into memory.
    #[error("model needs {} in {dtype} ({} weights{}, {} for batches of {tokens} tokens), {device} has {} free; {advice}",
        format_bytes(weights.saturating_add(*cache).saturating_add(*workspace)), format_bytes(*weights), cache_part(*cache),
        format_bytes(*workspace), format_bytes(*free))]
    Memory {
        /// The requested device.
        device: Device,
        /// The requested dtype.
        dtype: DType,
        /// Bytes of weights.
        weights: u64,
        /// Bytes of the KV cache; 0 for models without one.
        cache: u64,
        /// Bytes of activations.
        workspace: u64,
        /// Tokens per batch.
        tokens: usize,
        /// Free bytes.
        free: u64,
        /// What to try instead.
        advice: String,
    },
    /// The chat template could not turn the messages into a prompt.
    #[error(transparent)]
    Template(#[from] sconce_text::chat::TemplateError),
    /// The requested output format (schema, grammar, regex) cannot be used.
    #[error(transparent)]
    Format(#[from] crate::structured_output::FormatError),
    /// One of the texts cannot be processed.
    #[error("text {}: {why}", text + 1)]
    Text {
        /// Index of the text, from 0.
        text: usize,
        /// The reason.
        why: String,
    },
    /// One of the texts is longer than the model's limit.
    #[error("text {}: {why}", text + 1)]
    TooLong {
        /// Index of the text, from 0.
        text: usize,
        /// By how much.
        why: String,
    },
    /// One of the images cannot be processed.
    #[error("image {}: {why}", image + 1)]
    Image {
        /// Index of the image, from 0.
        image: usize,
        /// The reason.
        why: String,
    },
    /// The caller's input cannot be used.
    #[error("{0}")]
    Input(String),
    /// The model's output is unusable: numbers overflowed.
    #[error("{0}")]
    Unsound(String),
    /// The request was cancelled.
    #[error("the request was cancelled")]
    Cancelled,
    /// The request did not finish before its deadline.
    #[error("the request did not finish within {:.1} s, its time limit; allow more time, ask for less, or try again when \
             the model is less busy", allowed.as_secs_f64())]
    DeadlineExceeded {
        /// The time from the start of the request to its deadline.
        allowed: std::time::Duration,
    },
    /// A bug of ours: code on the device thread panicked. Only this call failed.
    #[error("internal error on {device}, please report it: {why}")]
    Panicked {
        /// The device that the code ran on.
        device: Device,
        /// The panic's message.
        why: String,
    },
    /// The thread that owns the device has ended.
    #[error("the thread that owns {device} has ended: {why}")]
    Stopped {
        /// The device that the thread owned.
        device: Device,
        /// The reason, where it is known.
        why: String,
    },
}

/// Who has to act on an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorClass {
    /// The caller: the request cannot be served as it is.
    Input,
    /// The provider of the model's files: they are missing, damaged or not supported.
    Files,
    /// The model's output holds infinities or NaN.
    Unsound,
    /// The device lacks a kernel or memory, or failed.
    Device,
    /// Nobody: the request was cancelled or missed its deadline.
    Ended,
    /// The developers of Sconce: it is a bug.
    Bug,
}

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Who has to act on the error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Error::Input(_) | Error::Text { .. } | Error::TooLong { .. } | Error::Image { .. } => ErrorClass::Input,
            Error::Template(_) | Error::Format(_) => ErrorClass::Input,
            Error::Hub(_) | Error::File(_) | Error::Model(_) => ErrorClass::Files,
            Error::Unsound(_) => ErrorClass::Unsound,
            Error::Op(_) | Error::Plan { .. } | Error::Memory { .. } | Error::Stopped { .. } => ErrorClass::Device,
            Error::Engine { .. } => ErrorClass::Device,
            Error::Cancelled | Error::DeadlineExceeded { .. } => ErrorClass::Ended,
            Error::Panicked { .. } => ErrorClass::Bug,
        }
    }

    /// The error for a result that holds infinities or NaN, with what to do about it.
    pub(crate) fn unsound(what: &str, dtype: DType) -> Error {
        let advice = match dtype {
            DType::F16 => "f16 ends at 65,504: use --dtype bf16",
            DType::F32 => "the weights may be damaged: download them again",
            _ => "use --dtype f32",
        };
        Error::Unsound(format!("unsound output: {what} in {dtype} holds infinities or NaN; {advice}"))
    }

    /// The error for a state that only a bug in Sconce can cause.
    pub(crate) fn bug(device: Device, why: &str) -> Error {
        Error::Panicked { device, why: why.into() }
    }

    /// Whether another device might succeed where this one failed.
    pub(crate) fn is_device_error(&self) -> bool {
        let by_device = matches!(self, Error::Plan { .. } | Error::Memory { .. } | Error::Engine { .. });
        by_device || matches!(self, Error::Op(sconce_ops::Error::Device { .. }))
    }

    /// Adds the folder `root` to errors about the model's files that name no file.
    pub(crate) fn with_root(self, root: &Path) -> Error {
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
            // A kind that was added to `text` and not here.
            other => Error::Input(other.to_string()),
        }
    }
}

/// The KV cache's part of [`Error::Memory`]; nothing for models without a KV cache.
fn cache_part(bytes: u64) -> String {
    if bytes == 0 { String::new() } else { format!(", {} KV cache", format_bytes(bytes)) }
}

/// Bytes in a unit that suits their number.
fn format_bytes(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}
