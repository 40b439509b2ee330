//! The errors of ops: what failed, where, and what to do next.

use crate::{DType, Device, Rung};

/// Any failure below `models`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Invalid arguments: shapes or dtypes that do not fit together.
    #[error("{op}: {what}")]
    Call {
        /// The op that was called.
        op: &'static str,
        /// What does not fit.
        what: String,
    },
    /// No rung that the policy allows can take the call.
    #[error("{op} in {dtype} on {device}{at}: {why}")]
    Refused {
        /// The op that was called.
        op: &'static str,
        /// Its activation dtype.
        dtype: DType,
        /// The device its tensors live on.
        device: Device,
        /// Where in the model, as ` (layer 3)`, or empty.
        at: String,
        /// Why each rung was refused, and what to do about it.
        why: String,
    },
    /// A rung that declared it could take the call failed while running. The ladder never steps
    /// down because of that.
    #[error("{op} in {dtype} on {device}{at}: the {rung} rung failed: {source}")]
    Failed {
        /// The op that was called.
        op: &'static str,
        /// Its activation dtype.
        dtype: DType,
        /// The device its tensors live on.
        device: Device,
        /// Where in the model, as ` (layer 3)`, or empty.
        at: String,
        /// The rung that was running.
        rung: Rung,
        /// The error of the kernel or of Candle.
        source: Box<Error>,
    },
    /// A weight is missing from the file or has another shape than the configuration says.
    #[error("weight {name}: {what}")]
    Weight {
        /// Full name in the file.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// The device is not in this build or not in this machine.
    #[error("{device}: {why}")]
    Device {
        /// The requested device.
        device: Device,
        /// Why it cannot serve, and what to do.
        why: String,
    },
    /// A name that is not a device, dtype or rung.
    #[error("{0}")]
    Parse(String),
    /// Values were read from a phantom tensor, which has none.
    #[error("a phantom tensor has a shape but no values")]
    Phantom,
    /// From Candle.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

/// Shorthand used throughout the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn call(op: &'static str, what: impl Into<String>) -> Self {
        Self::Call { op, what: what.into() }
    }
}
