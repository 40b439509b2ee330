//! JSON lines: one object per line.

use std::io::{BufRead, BufReader, Read};

use serde_json::Value as Json;

use super::row::{Cell, Row};
use super::{ReadError, Rows};
use crate::document::Value;
use crate::read::source::Source;

/// Reads JSON lines. A line that is not an object is noted and left out.
pub(super) fn read(source: Source, rows: &mut Rows<'_>) -> Result<(), ReadError> {
    let limit = rows.limits.row_bytes;
    let mut reader = BufReader::new(source.file);
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        (&mut reader).take(limit.saturating_add(1)).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            break;
        }
        if line.len() as u64 > limit {
            return Err(ReadError::Malformed(format!("line {number} is longer than {limit} bytes")));
        }
        let content = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line).trim_ascii();
        if content.is_empty() {
            continue;
        }
        let row = match serde_json::from_slice(content) {
            Ok(Json::Object(object)) => object_row(object),
            Ok(Json::String(text)) => text_row(text),
            Ok(_) => {
                rows.bad_row(|| format!("line {number} is neither an object nor a string"));
                continue;
            }
            Err(error) => {
                rows.bad_row(|| format!("line {number}: {error}"));
                continue;
            }
        };
        if rows.push(number, row)?.is_break() {
            break;
        }
    }
    if rows.count == 0
        && let Some((_, first)) = &rows.bad
    {
        return Err(ReadError::Malformed(format!("no line is a JSON object; {first}")));
    }
    Ok(())
}

fn text_row(text: String) -> Row {
    let mut row = Row::default();
    row.push("text", Cell::Scalar(Value::Text(text)));
    row
}

fn object_row(object: serde_json::Map<String, Json>) -> Row {
    let mut row = Row::default();
    for (name, value) in object {
        let cell = match value {
            Json::Null => Cell::Scalar(Value::Null),
            Json::Bool(value) => Cell::Scalar(Value::Bool(value)),
            Json::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(integer), _) => Cell::Scalar(Value::Integer(integer)),
                (None, Some(float)) => Cell::Scalar(Value::Float(float)),
                (None, None) => Cell::Scalar(Value::Text(number.to_string())),
            },
            Json::String(text) => Cell::Scalar(Value::Text(text)),
            nested @ (Json::Array(_) | Json::Object(_)) => Cell::Nested(nested.to_string()),
        };
        row.push(&name, cell);
    }
    row
}
