//! Parquet files, read by row group and written. Rows stay in the form of the format: each leaf
//! column has values, definition levels and repetition levels. So output has exactly the types and
//! values of the input.

mod footer;
mod json;
mod layout;
mod leaf;
mod reader;
mod shred;
#[cfg(test)]
mod tests;
mod value;
mod writer;

pub(crate) use footer::length as footer_length;
pub(crate) use layout::{Chunk, Layout, layout};
pub(crate) use reader::{ParquetRow, ParquetRows};
pub(crate) use writer::{ParquetWriter, io_error};
