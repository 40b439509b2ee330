//! Parquet, row by row, without Arrow.

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;

use super::row::{Cell, Row};
use super::{ReadError, Rows};
use crate::document::Value;
use crate::read::source::Source;

/// Reads Parquet. The crate does not bound what pages unpack to; the memory limit of the child
/// process does.
pub(super) fn read(source: Source, rows: &mut Rows<'_>) -> Result<(), ReadError> {
    let malformed = |error: parquet::errors::ParquetError| ReadError::Malformed(error.to_string());
    let reader = SerializedFileReader::new(source.file).map_err(malformed)?;
    for (number, record) in (1_u64..).zip(reader.get_row_iter(None).map_err(malformed)?) {
        let mut row = Row::default();
        for (name, field) in record.map_err(malformed)?.into_columns() {
            if let Some(cell) = cell(field) {
                row.push(&name, cell);
            }
        }
        if rows.push(number, row)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// The cell of a value; `None` for bytes that are no text.
fn cell(field: Field) -> Option<Cell> {
    let value = match field {
        Field::Null => Value::Null,
        Field::Bool(value) => Value::Bool(value),
        Field::Byte(value) => Value::Integer(value.into()),
        Field::Short(value) => Value::Integer(value.into()),
        Field::Int(value) => Value::Integer(value.into()),
        Field::Long(value) => Value::Integer(value),
        Field::UByte(value) => Value::Integer(value.into()),
        Field::UShort(value) => Value::Integer(value.into()),
        Field::UInt(value) => Value::Integer(value.into()),
        Field::ULong(value) => match i64::try_from(value) {
            Ok(value) => Value::Integer(value),
            Err(_) => Value::Text(value.to_string()),
        },
        Field::Float16(value) => Value::Float(value.to_f64()),
        // Through its decimal form: 0.1 stays 0.1.
        Field::Float(value) => Value::Float(value.to_string().parse().unwrap_or(f64::from(value))),
        Field::Double(value) => Value::Float(value),
        Field::Str(text) => Value::Text(text),
        Field::Bytes(bytes) => Value::Text(std::str::from_utf8(bytes.data()).ok()?.to_string()),
        nested @ (Field::Group(_) | Field::ListInternal(_) | Field::MapInternal(_)) => {
            return Some(Cell::Nested(nested.to_string()));
        }
        // Dates, times and decimals, as people write them.
        other => Value::Text(other.to_string()),
    };
    // Neither NaN nor an infinity can be compared or stored as JSON.
    Some(Cell::Scalar(match value {
        Value::Float(float) if !float.is_finite() => Value::Null,
        value => value,
    }))
}
