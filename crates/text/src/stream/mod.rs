//! Streaming detokenization, stop strings, and the bytes of tokens.

mod decoder;
mod detokenizer;
mod stops;
#[cfg(test)]
mod tests;

pub use decoder::{TokenBytes, token_bytes};
pub use detokenizer::Detokenizer;
pub use stops::{Step, Stops};
