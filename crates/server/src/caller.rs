//! On whose behalf work is done.

pub use sconce_engine::{Caller, Times};
