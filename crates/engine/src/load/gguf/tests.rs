//! What is common to the tests of the reader.

mod converted;
mod hostile;
mod parts;
mod undone;
mod values;
mod writer;

use super::{Fault, Gguf};
use std::path::Path;
use writer::Writer;

/// The model that `writer` wrote, opened.
fn open(writer: &Writer) -> Result<Gguf, Fault> {
    opened(&writer.bytes())
}

fn opened(bytes: &[u8]) -> Result<Gguf, Fault> {
    Gguf::read(Path::new("model.gguf"), bytes.to_vec())
}

fn floats(gguf: &Gguf, name: &str) -> Vec<f32> {
    let stored = gguf.tensor(name).unwrap_or_else(|| panic!("{name} is missing"));
    assert_eq!(stored.kind, 0);
    stored.bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}
