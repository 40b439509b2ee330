//! Writes Parquet files: the columns of the input, then those of the results.

use super::leaf::{Leaf, Values, count_leaves};
use super::shred::append_object;
use crate::Failure;
use crate::output_file::OutputFile;
use crate::row::{Columns, Row};
use parquet::basic::{Compression, Type as PhysicalType};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{Type, TypePtr};
use serde_json::{Map, Value};
use std::io;
use std::sync::Arc;

/// Bytes of values in a row group. One group is in memory.
const ROW_GROUP_BYTES: usize = 64 << 20;

pub(crate) struct ParquetWriter {
    file: SerializedFileWriter<OutputFile>,
    columns: Columns,
    /// Types of the columns that are kept, and of the results.
    kept: Vec<TypePtr>,
    results: Vec<TypePtr>,
    /// The current row group.
    leaves: Vec<Leaf>,
    bytes: usize,
    /// Whether rows may have columns that are not kept.
    drops_others: bool,
}

impl ParquetWriter {
    /// Opens a file with the columns of the input and those that `results` declares, as in the body
    /// of a Parquet message type.
    pub(crate) fn new(file: OutputFile, columns: Columns, results: &str) -> Result<ParquetWriter, Failure> {
        let kept = columns.types()?;
        let results = parse_message_type(&format!("message schema {{ {results} }}"))?.get_fields().to_vec();
        if let Some(taken) = results.iter().find(|r| kept.iter().any(|k| k.name() == r.name())) {
            return Err(format!("the input already has a column `{}`; rename it first", taken.name()).into());
        }
        let all: Vec<TypePtr> = kept.iter().chain(&results).cloned().collect();
        let schema = Arc::new(Type::group_type_builder("schema").with_fields(all).build()?);
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(concat!("sconce version ", env!("CARGO_PKG_VERSION")).into());
        let descr = parquet::schema::types::SchemaDescriptor::new(schema.clone());
        for column in descr.columns().iter().filter(|c| c.physical_type() == PhysicalType::FLOAT) {
            // Columns of floats hold vectors, whose numbers rarely repeat and are not filtered by.
            properties = properties
                .set_column_dictionary_enabled(column.path().clone(), false)
                .set_column_statistics_enabled(column.path().clone(), EnabledStatistics::None);
        }
        let leaves = descr.columns().iter().map(Leaf::new).collect();
        let file = SerializedFileWriter::new(file, schema, Arc::new(properties.build()))?;
        Ok(ParquetWriter { file, columns, kept, results, leaves, bytes: 0, drops_others: false })
    }

    /// Keeps only the columns that were chosen; rows may have others.
    pub(crate) fn dropping_others(self) -> ParquetWriter {
        ParquetWriter { drops_others: true, ..self }
    }

    /// Appends a row of the input and the result for it. `vector` is the first column of the result
    /// as little-endian f32, if it is a list of floats.
    pub(crate) fn write(
        &mut self,
        row: Option<&Row>,
        vector: Option<&[u8]>,
        result: &Map<String, Value>,
    ) -> Result<(), Failure> {
        let (kept, results) = self.leaves.split_at_mut(self.kept.iter().map(|f| count_leaves(f)).sum());
        let empty = Map::new();
        self.bytes += match (&self.columns, row) {
            (Columns::Parquet(..), Some(Row::Parquet(row))) => {
                row.append_to(&self.kept, kept).ok_or("the row has other columns than the first one")?
            }
            (Columns::Fields(fields), Some(Row::Object(object))) => {
                if !self.drops_others
                    && let Some(name) = object.keys().find(|name| !fields.has(name))
                {
                    return Err(format!("field `{name}` was not there when the fields were counted").into());
                }
                append_object(&self.kept, object, kept)?
            }
            // No column of a Parquet file is kept.
            (Columns::Fields(fields), Some(Row::Parquet(_))) if self.drops_others && fields.is_empty() => 0,
            (Columns::Fields(_), None) => append_object(&self.kept, &empty, kept)?,
            _ => return Err("a row of another kind than the columns".into()),
        };
        self.bytes += match vector {
            Some(vector) => {
                append_vector(&mut results[0], vector)?;
                vector.len() + append_object(&self.results[1..], result, &mut results[1..])?
            }
            None => append_object(&self.results, result, results)?,
        };
        if self.bytes >= ROW_GROUP_BYTES { Ok(self.flush()?) } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), ParquetError> {
        self.bytes = 0;
        if self.leaves.first().is_none_or(|leaf| leaf.entries() == 0) {
            return Ok(());
        }
        let mut group = self.file.next_row_group()?;
        for leaf in &mut self.leaves {
            let mut column = group.next_column()?.ok_or_else(|| ParquetError::General("too few columns".into()))?;
            leaf.write(column.untyped())?;
            column.close()?;
        }
        group.close()?;
        Ok(())
    }

    /// Writes the rest and the footer.
    pub(crate) fn finish(mut self) -> Result<OutputFile, Failure> {
        self.flush()?;
        Ok(self.file.into_inner()?)
    }
}

/// Appends a list of floats.
fn append_vector(leaf: &mut Leaf, vector: &[u8]) -> Result<(), Failure> {
    let (numbers, _) = vector.as_chunks::<4>();
    if numbers.is_empty() {
        leaf.push_levels(0, 0);
    }
    for i in 0..numbers.len() {
        leaf.push_levels(1, i16::from(i > 0));
    }
    match &mut leaf.values {
        Values::Float(values) => values.extend(numbers.iter().map(|n| f32::from_le_bytes(*n))),
        _ => return Err("the vector is not a list of floats".into()),
    }
    Ok(())
}

/// The I/O error in an error of the crate, if it is one: a broken pipe is not a failure.
pub(crate) fn io_error(e: Failure) -> Result<io::Error, Failure> {
    match e.downcast::<ParquetError>().map(|e| *e) {
        Ok(ParquetError::External(e)) => e.downcast::<io::Error>().map(|e| *e),
        Ok(e) => Err(e.into()),
        Err(e) => Err(e),
    }
}
