//! Helpers for the tests of the GGUF reader.

mod converted;
mod families;
mod hostile;
mod parts;
mod unconvert;
mod values;

use super::Gguf;
use crate::FileError;
use sconce_testkit::GgufWriter as Writer;
use std::path::Path;

/// Opens the model that `writer` wrote.
fn open(writer: &Writer) -> Result<Gguf, FileError> {
    open_bytes(&writer.bytes())
}

fn open_bytes(bytes: &[u8]) -> Result<Gguf, FileError> {
    let mut map = memmap2::MmapMut::map_anon(bytes.len()).unwrap();
    map.copy_from_slice(bytes);
    Gguf::from_parts(vec![super::parts::part(Path::new("model.gguf"), map.make_read_only().unwrap())?])
}

fn floats(gguf: &Gguf, name: &str) -> Vec<f32> {
    let stored = gguf.tensor(name).unwrap_or_else(|| panic!("{name} is missing"));
    assert_eq!(stored.kind, 0);
    stored.bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}
