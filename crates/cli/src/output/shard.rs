//! The output of a shard: a Parquet file whose caller publishes it.

use super::{
    CHUNK_COLUMN, Destination, Format, ResultNames, ResultsOf, TOKEN_COLUMNS, Writer, name_error, named_error,
};
use crate::Failure;
use crate::output_file::{ContentId, OutputFile};
use crate::parquet_file::ParquetWriter;
use std::path::Path;

/// Column with the number of a row in its input file, in the output of a shard.
const ROW_COLUMN: &str = "required int64 row;";

impl Writer {
    /// Opens the output of a shard: results with the numbers of their rows, and the columns of the
    /// input that were chosen.
    pub(crate) fn of_shard(path: &Path, names: ResultNames, of: ResultsOf) -> Result<Writer, Failure> {
        let name = path.display().to_string();
        let column = names.column.ok_or("these results cannot be written as Parquet")?;
        let (columns, own) = match of {
            ResultsOf::Texts(columns) => (columns, format!("{column} {TOKEN_COLUMNS} {ROW_COLUMN}")),
            ResultsOf::Chunks(columns) => (columns, format!("{column} {TOKEN_COLUMNS} {CHUNK_COLUMN} {ROW_COLUMN}")),
            ResultsOf::Others(columns) => (columns, format!("{column} {ROW_COLUMN}")),
        };
        let file = OutputFile::create_hashed(path).map_err(|e| name_error(&name, e))?;
        let writer = ParquetWriter::new(file, columns, &own)?.dropping_others();
        let (to, format) = (Destination::Parquet(Box::new(writer)), Format::Parquet);
        Ok(Writer { to, name, format, names, rows: 0, tokens: Vec::new(), truncated: Vec::new(), chunks: None })
    }

    /// Completes the output of a shard.
    pub(crate) fn finish_shard(self) -> Result<ContentId, Failure> {
        let Destination::Parquet(writer) = self.to else { return Err("not the output of a shard".into()) };
        let file = writer.finish().map_err(|e| named_error(&self.name, e))?;
        file.finish_hashed().map_err(|e| name_error(&self.name, e))
    }
}
