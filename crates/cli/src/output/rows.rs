//! Rows of JSONL and Parquet output.

use super::{ResultRow, TokenInfo};
use crate::Failure;
use crate::input::Text;
use crate::output_file::OutputFile;
use crate::parquet_file::ParquetWriter;
use sconce_engine::Chunk;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Map, Value, json};

/// One object: the fields of the input, then ours.
pub(super) fn line(
    to: &mut OutputFile,
    object: Option<&Map<String, Value>>,
    one: &str,
    cell: &impl ResultRow,
    info: Option<TokenInfo>,
) -> serde_json::Result<()> {
    let mut to = serde_json::Serializer::new(to);
    let mut map = to.serialize_map(None)?;
    for (field, value) in object.into_iter().flatten() {
        map.serialize_entry(field, value)?;
    }
    map.serialize_entry(one, cell)?;
    if let Some(info) = info {
        map.serialize_entry("tokens", &info.tokens)?;
        map.serialize_entry("truncated", &info.truncated)?;
        if let Some(chunk) = &info.chunk {
            map.serialize_entry("chunk", &place(chunk))?;
        }
    }
    map.end()
}

/// The place of a chunk in its text.
fn place(chunk: &Chunk) -> Value {
    json!({"index": chunk.index, "start": chunk.start, "end": chunk.end})
}

/// The places of all chunks, with the number of their text. A text's first chunk is number 0.
pub(super) fn numbered(chunks: &[Chunk]) -> Vec<Value> {
    let mut texts = 0;
    let one = |chunk: &Chunk| {
        texts += usize::from(chunk.index == 0);
        let mut place = place(chunk);
        place["text"] = json!(texts - 1);
        place
    };
    chunks.iter().map(one).collect()
}

/// One object: the fields of the input, then those of the result, which is an object.
pub(super) fn merged_line(
    to: &mut OutputFile,
    object: &Map<String, Value>,
    cell: &impl ResultRow,
) -> serde_json::Result<()> {
    let mut all = object.clone();
    if let Value::Object(fields) = serde_json::to_value(cell)? {
        all.extend(fields);
    }
    serde_json::to_writer(to, &all)
}

/// One row: the columns of the input, then ours.
pub(super) fn parquet_row(
    to: &mut ParquetWriter,
    text: &Text,
    one: Option<&str>,
    (cell, info): (&impl ResultRow, Option<TokenInfo>),
    array: Option<(&str, usize)>,
) -> Result<(), Failure> {
    // Numbers of a vector are copied; JSON would be slower.
    let vector = array.filter(|(descr, _)| *descr == "<f4").map(|_| cell.bytes());
    let mut result = Map::new();
    match (one, &vector) {
        (Some(one), None) => {
            result.insert(one.into(), serde_json::to_value(cell)?);
        }
        (None, None) => {
            if let Value::Object(fields) = serde_json::to_value(cell)? {
                result = fields;
            }
        }
        (_, Some(_)) => {}
    }
    if let Some(TokenInfo { tokens, truncated, chunk }) = info {
        result.insert("tokens".into(), tokens.into());
        result.insert("truncated".into(), truncated.into());
        result.extend(chunk.map(|chunk| ("chunk".into(), place(&chunk))));
    }
    if let Some(number) = text.number {
        result.insert("row".into(), number.into());
    }
    to.write(text.object.as_ref(), vector.as_deref(), &result)
}
