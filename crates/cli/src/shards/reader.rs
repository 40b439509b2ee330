//! The rows of a shard. Rows that cannot be read are set aside with the reason.

use super::parquet_input::{LocalParquet, local};
use super::plan::Needed;
use crate::Failure;
use crate::input::{Content, MAX_ROW_BYTES, Record, Text};
use crate::parquet_file::ParquetRows;
use crate::row::Row;
use sconce_shards::{InputStore, Listed, Part, Shard};
use serde_json::{Map, Value, json};
use std::io::{self, BufRead, BufReader, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Longest reason of a bad row, in characters.
const MAX_REASON: usize = 300;

/// Rows without a result, and why. Shared by the threads that read rows and that handle results.
#[derive(Clone, Debug, Default)]
pub(super) struct BadRows(Arc<Mutex<Vec<(u64, String)>>>);

impl BadRows {
    fn rows(&self) -> MutexGuard<'_, Vec<(u64, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, row: u64, why: &str) {
        let mut reason: String = why.chars().take(MAX_REASON).collect();
        if reason.len() < why.len() {
            reason.push('…');
        }
        self.rows().push((row, reason));
    }

    pub(super) fn count(&self) -> u64 {
        self.rows().len() as u64
    }

    /// The side file: a JSON object for each row, in the order of the rows.
    pub(super) fn lines(&self) -> String {
        let mut rows = self.rows();
        rows.sort();
        rows.iter().map(|(row, reason)| json!({"row": row, "reason": reason}).to_string() + "\n").collect()
    }
}

/// A row of a shard.
pub(crate) struct ShardRow {
    pub(crate) record: Record,
    /// Its number in the input file, from 1.
    pub(crate) number: u64,
}

/// Reads the rows of a shard.
pub(crate) struct ShardReader {
    rows: Rows,
    name: String,
    bad: BadRows,
}

enum Rows {
    Lines {
        reader: Box<dyn BufRead + Send>,
        number: u64,
    },
    /// The copy must stay as long as it is read.
    Parquet {
        rows: Box<ParquetRows>,
        _copy: LocalParquet,
    },
}

/// A line of a file.
enum Line {
    Content(Vec<u8>),
    TooLong,
    End,
}

/// Where the rows of a shard are.
pub(super) struct Place<'a> {
    pub(super) inputs: &'a InputStore,
    pub(super) file: &'a Listed,
    pub(super) shard: &'a Shard,
}

impl ShardReader {
    pub(super) fn open(at: &Place<'_>, needed: &Needed, bad: &BadRows) -> Result<ShardReader, Failure> {
        let Place { inputs, file, shard } = at;
        let rows = match &shard.part {
            Part::Bytes { start, end, sha256 } => {
                let range = inputs.open_checked(file, *start..*end, sha256)?;
                let reader = Box::new(BufReader::with_capacity(1 << 18, range));
                Rows::Lines { reader, number: shard.first_row - 1 }
            }
            Part::RowGroups { start, end } => {
                let columns = needed.columns();
                let copy = local(inputs, file, *start..*end, &columns)?;
                let rows = ParquetRows::open_groups(copy.path(), &columns, *start..*end)?;
                Rows::Parquet { rows: Box::new(rows), _copy: copy }
            }
        };
        Ok(ShardReader { rows, name: file.name.clone(), bad: bad.clone() })
    }

    /// The texts of the rows: of `field`. `pair_field` must be a string too.
    pub(crate) fn texts(
        self,
        field: String,
        pair_field: Option<String>,
    ) -> impl Iterator<Item = Result<Text, Failure>> + Send {
        let bad = self.bad.clone();
        self.filter_map(move |row| {
            let ShardRow { record, number } = match row {
                Ok(row) => row,
                Err(e) => return Some(Err(e)),
            };
            let origin = record.origin.clone();
            let text = record.into_text(&field).and_then(|text| {
                pair_field.as_deref().map_or(Ok(()), |name| text.field(name, "--pair-field").map(drop))?;
                Ok(text)
            });
            match text {
                Ok(text) => Some(Ok(Text { number: Some(number), ..text })),
                Err(e) => {
                    bad.add(number, without_origin(&e.to_string(), &origin));
                    None
                }
            }
        })
    }

    /// The next row; `None` at the end. Bad rows are set aside.
    fn read(&mut self) -> Result<Option<ShardRow>, Failure> {
        match &mut self.rows {
            Rows::Parquet { rows, _copy } => {
                let Some((row, origin, bytes)) = rows.next().transpose()? else { return Ok(None) };
                let record = Record { content: Content::Row(Row::Parquet(row)), origin, bytes };
                Ok(Some(ShardRow { record, number: rows.row_number() }))
            }
            Rows::Lines { reader, number } => loop {
                *number += 1;
                let line = read_line(reader).map_err(|e| format!("{}:{number}: {e}", self.name))?;
                let line = match line {
                    Line::End => return Ok(None),
                    Line::TooLong => {
                        let why = format!("the line is longer than {} MiB", MAX_ROW_BYTES >> 20);
                        self.bad.add(*number, &why);
                        continue;
                    }
                    // As the manifest counts them.
                    Line::Content(line) if line.iter().all(u8::is_ascii_whitespace) => continue,
                    Line::Content(line) => line,
                };
                match serde_json::from_slice::<Map<String, Value>>(&line) {
                    Ok(object) => {
                        let origin = format!("{}:{number}", self.name);
                        let (content, bytes) = (Content::Row(Row::Object(object)), line.len() as u64);
                        return Ok(Some(ShardRow { record: Record { content, origin, bytes }, number: *number }));
                    }
                    Err(e) => self.bad.add(*number, &format!("not a JSON object: {e}")),
                }
            },
        }
    }
}

impl Iterator for ShardReader {
    type Item = Result<ShardRow, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

/// Reads a line with its end. Of a line that is too long, all is read and nothing kept.
fn read_line(reader: &mut impl BufRead) -> io::Result<Line> {
    let mut line = Vec::new();
    let limit = MAX_ROW_BYTES as u64 + 1;
    if reader.by_ref().take(limit).read_until(b'\n', &mut line)? == 0 {
        return Ok(Line::End);
    }
    if line.len() as u64 != limit || line.ends_with(b"\n") {
        return Ok(Line::Content(line));
    }
    loop {
        let (found, used) = {
            let buffer = reader.fill_buf()?;
            let end = buffer.iter().position(|byte| *byte == b'\n');
            (end.is_some() || buffer.is_empty(), end.map_or(buffer.len(), |end| end + 1))
        };
        reader.consume(used);
        if found {
            return Ok(Line::TooLong);
        }
    }
}

/// A message without the name of the file and row, which differs between machines.
pub(super) fn without_origin<'a>(message: &'a str, origin: &str) -> &'a str {
    message.strip_prefix(origin).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needed() -> Needed {
        Needed { field: "text".into(), pair_field: None, keep: Vec::new() }
    }

    /// Texts and bad rows of a shard of lines.
    fn read(content: &[u8], first_row: u64) -> (Vec<(u64, String)>, String) {
        let file = tempfile::NamedTempFile::with_suffix(".jsonl").unwrap();
        std::fs::write(file.path(), content).unwrap();
        let name = file.path().to_str().unwrap().to_string();
        let listed = Listed { name, size: content.len() as u64, etag: None };
        let mut splitter = sconce_shards::LineSplitter::new(
            sconce_shards::SplitLimits { rows: u64::MAX, bytes: u64::MAX, line: 0 },
            |_, _| {},
        );
        splitter.feed(content);
        let (parts, size) = splitter.finish();
        let part = Part::Bytes { start: 0, end: size, sha256: parts[0].sha256.clone() };
        let shard = Shard { input: 0, first_row, rows: parts[0].rows, part };
        let bad = BadRows::default();
        let reader =
            ShardReader::open(&Place { inputs: &InputStore::Disk, file: &listed, shard: &shard }, &needed(), &bad)
                .unwrap();
        let texts: Result<Vec<Text>, Failure> = reader.texts("text".into(), None).collect();
        let texts: Vec<_> = texts.unwrap().into_iter().map(|text| (text.number.unwrap(), text.text)).collect();
        assert_eq!(texts.len() as u64 + bad.count(), shard.rows);
        (texts, bad.lines())
    }

    #[test]
    fn bad_rows_are_set_aside_with_their_numbers() {
        let content = b"{\"text\": \"a\"}\n\n{\"text\": 3}\nnot json\n{\"body\": \"x\"}\r\n{\"text\": \"b\xff\"}\n[1]\n{\"text\": \"c\"}";
        let (texts, bad) = read(content, 11);
        assert_eq!(texts, [(11, "a".to_string()), (18, "c".to_string())]);
        let bad: Vec<Value> = bad.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let rows: Vec<u64> = bad.iter().map(|row| row["row"].as_u64().unwrap()).collect();
        assert_eq!(rows, [13, 14, 15, 16, 17]);
        for (row, why) in
            bad.iter().zip(["is 3, not a string", "not a JSON object", "no field `text`", "not a JSON", "not a JSON"])
        {
            let reason = row["reason"].as_str().unwrap();
            assert!(reason.contains(why) && !reason.contains(".jsonl"), "{reason}");
        }
    }

    #[test]
    fn line_that_is_too_long_is_a_bad_row() {
        let mut content = b"{\"text\": \"a\"}\n".to_vec();
        content.resize(content.len() + MAX_ROW_BYTES + 5, b'x');
        content.extend_from_slice(b"\n{\"text\": \"b\"}\n");
        let (texts, bad) = read(&content, 1);
        assert_eq!(texts, [(1, "a".to_string()), (3, "b".to_string())]);
        assert!(bad.contains("\"row\":2") && bad.contains("longer than 64 MiB"), "{bad}");
    }
}
