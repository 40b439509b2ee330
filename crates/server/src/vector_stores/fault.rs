//! Errors of an index as errors of requests.

use crate::error::{Fault, FaultKind};
use sconce_index::Error;

/// The error of a request. The log has what is not for clients, such as paths.
pub(crate) fn index_fault(error: Error) -> Fault {
    match error {
        Error::Input(why) => Fault::invalid(why),
        Error::Model(why) => Fault::new(FaultKind::Conflict, why),
        Error::Engine(error) => error.into(),
        Error::Cancelled => Fault::new(FaultKind::Cancelled, "cancelled"),
        other => {
            tracing::error!("a vector store's index: {other}");
            Fault::new(FaultKind::Internal, "the vector store's index cannot be read or written; the log says why")
        }
    }
}
