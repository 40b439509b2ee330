//! From token ids to text while they come, and to bytes: what a stream shows, and where it ends.

mod decoder;
mod detok;
mod stops;
#[cfg(test)]
mod tests;

pub use decoder::{TokenBytes, token_bytes};
pub use detok::Detok;
pub use stops::{Step, Stops};
