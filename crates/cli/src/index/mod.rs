//! What `index`, `search` and `ask` share: where the database is, which models read it, and how
//! results are shown.

mod cancel;
mod display;
mod filter;
mod hits;
mod location;
mod models;
mod progress;

pub(crate) use cancel::{INTERRUPTED, cancel_on_ctrl_c};
pub(crate) use display::{Style, highlighted, one_line, printable, source_path};
pub(crate) use filter::FilterArgs;
pub(crate) use hits::location_of;
pub(crate) use location::{DatabaseArgs, create_folder};
pub(crate) use models::{DEFAULT_MODEL, IndexModel, beside, load_reranker, parser_command};
pub(crate) use progress::ProgressLine;
pub(crate) use sconce_index::json::hit as hit_json;
