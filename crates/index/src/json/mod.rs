//! Results as JSON, and arguments from JSON: the form that the command line prints, and that
//! bindings for other languages pass. Offsets in texts count characters.

mod arguments;
mod results;

pub use arguments::{documents, query, update};
pub use results::{document, hit, model, passage, progress, report, status};
