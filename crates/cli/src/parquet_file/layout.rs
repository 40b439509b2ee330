//! The places of a Parquet file's row groups, by its footer alone.

use super::footer;
use super::reader::guarded;
use crate::Failure;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::TypePtr;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

/// What the footer of a file says.
pub(crate) struct Layout {
    /// Top-level columns.
    pub(crate) columns: Vec<TypePtr>,
    pub(crate) groups: Vec<Group>,
}

/// A row group.
pub(crate) struct Group {
    pub(crate) rows: u64,
    pub(crate) chunks: Vec<Chunk>,
}

/// The values of a row group in a leaf of a column.
pub(crate) struct Chunk {
    /// Number of the top-level column.
    pub(crate) column: usize,
    /// Its place in the file.
    pub(crate) bytes: Range<u64>,
}

/// Reads the footer of a file. The rest of the file may be missing: only its size must be right.
pub(crate) fn layout(path: &Path, name: &str) -> Result<Layout, Failure> {
    let fail = |why: &dyn std::fmt::Display| -> Failure { format!("{name}: {why}").into() };
    let mut file = File::open(path).map_err(|e| fail(&e))?;
    footer::check(&mut file).map_err(|why| fail(&why))?;
    let read = || {
        let reader = SerializedFileReader::new(file)?;
        let metadata = reader.metadata();
        let schema = metadata.file_metadata().schema_descr();
        let columns = schema.root_schema().get_fields().to_vec();
        let group = |group: &parquet::file::metadata::RowGroupMetaData| {
            let chunks = group.columns().iter().enumerate().map(|(leaf, chunk)| {
                let (start, length) = chunk.byte_range();
                Chunk { column: schema.get_column_root_idx(leaf), bytes: start..start.saturating_add(length) }
            });
            Group { rows: group.num_rows().max(0).cast_unsigned(), chunks: chunks.collect() }
        };
        Ok(Layout { columns, groups: metadata.row_groups().iter().map(group).collect() })
    };
    guarded(read).map_err(|why| fail(&why))
}
