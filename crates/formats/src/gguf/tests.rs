//! What is common to the tests of the reader.

mod converted;
mod families;
mod hostile;
mod parts;
mod undone;
mod values;

use super::Gguf;
use crate::FileError;
use sconce_testkit::GgufWriter as Writer;
use std::path::Path;

/// The model that `writer` wrote, opened.
fn open(writer: &Writer) -> Result<Gguf, FileError> {
    opened(&writer.bytes())
}

fn opened(bytes: &[u8]) -> Result<Gguf, FileError> {
    let mut map = memmap2::MmapMut::map_anon(bytes.len()).unwrap();
    map.copy_from_slice(bytes);
    Gguf::of(vec![super::parts::part(Path::new("model.gguf"), map.make_read_only().unwrap())?])
}

fn floats(gguf: &Gguf, name: &str) -> Vec<f32> {
    let stored = gguf.tensor(name).unwrap_or_else(|| panic!("{name} is missing"));
    assert_eq!(stored.kind, 0);
    stored.bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}
