//! What Sconce's servers say over HTTP: wire types and error codes, one module a dialect. Whoever asks and whoever answers share them.

pub mod pool;
pub mod time;
pub mod worker;
