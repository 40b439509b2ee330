//! Metadata as columns: for each key its distinct values, sorted, and for each row the number of
//! its value.
//!
//! A filter is evaluated on the distinct values, by binary search where their order allows it, and
//! then on the rows by number. Null and NaN are stored as a missing key: no test distinguishes
//! them.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;

use super::Bitmap;
use super::footer::{ColumnParts, PartCheck};
use super::writer::Output;
use crate::document::{Metadata, Value};
use crate::error::Result;
use crate::filter::{Compare, Filter, Test};

/// A value as bytes, whose order is that of the values within a type. The first byte is the type.
/// `None`: null or NaN.
fn encode(value: &Value) -> Option<Vec<u8>> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(value) => vec![BOOL, u8::from(*value)],
        Value::Integer(value) => tagged(INTEGER, (*value as u64 ^ SIGN).to_be_bytes()),
        Value::Float(value) if value.is_nan() => return None,
        Value::Float(value) => {
            // Adding 0 turns −0 into 0, which is equal.
            let bits = (value + 0.0).to_bits();
            tagged(FLOAT, (if bits & SIGN != 0 { !bits } else { bits | SIGN }).to_be_bytes())
        }
        Value::Text(text) => [&[TEXT], text.as_bytes()].concat(),
    })
}

fn tagged(tag: u8, bytes: [u8; 8]) -> Vec<u8> {
    [&[tag], &bytes[..]].concat()
}

/// Decodes into `value`, whose memory is used again for texts. False: the bytes are damaged.
fn decode(bytes: &[u8], value: &mut Value) -> bool {
    let number = |bytes: &[u8]| bytes.try_into().map(u64::from_be_bytes).ok();
    let decoded = match bytes.split_first() {
        Some((&BOOL, [byte @ 0..=1])) => Value::Bool(*byte == 1),
        Some((&INTEGER, rest)) => match number(rest) {
            Some(number) => Value::Integer((number ^ SIGN) as i64),
            None => return false,
        },
        Some((&FLOAT, rest)) => match number(rest) {
            Some(bits) => Value::Float(f64::from_bits(if bits & SIGN != 0 { bits & !SIGN } else { !bits })),
            None => return false,
        },
        Some((&TEXT, rest)) => {
            let Ok(rest) = std::str::from_utf8(rest) else { return false };
            if let Value::Text(text) = value {
                text.clear();
                text.push_str(rest);
                return true;
            }
            Value::Text(rest.into())
        }
        _ => return false,
    };
    *value = decoded;
    true
}

const SIGN: u64 = 1 << 63;
const BOOL: u8 = 1;
const INTEGER: u8 = 2;
const FLOAT: u8 = 3;
const TEXT: u8 = 4;

/// Collects the metadata of rows.
#[derive(Default)]
pub(super) struct ColumnsWriter(BTreeMap<String, ColumnWriter>);

#[derive(Default)]
struct ColumnWriter {
    /// Numbers from 1 in the order of appearance.
    values: HashMap<Vec<u8>, u32>,
    rows: Vec<u32>,
    codes: Vec<u32>,
}

impl ColumnsWriter {
    /// Adds the metadata of a row; rows must ascend.
    pub(super) fn push(&mut self, row: u32, metadata: &Metadata) {
        for (key, value) in metadata {
            let Some(bytes) = encode(value) else { continue };
            let column = match self.0.get_mut(key) {
                Some(column) => column,
                None => self.0.entry(key.clone()).or_default(),
            };
            let next = column.values.len() as u32 + 1;
            column.rows.push(row);
            column.codes.push(*column.values.entry(bytes).or_insert(next));
        }
    }

    /// Writes the columns of a segment of `rows`.
    pub(super) fn write(self, rows: u32, output: &mut Output) -> io::Result<Vec<ColumnParts>> {
        self.0.into_iter().map(|(key, column)| column.write(key, rows, output)).collect()
    }
}

impl ColumnWriter {
    fn write(self, key: String, rows: u32, output: &mut Output) -> io::Result<ColumnParts> {
        let mut values: Vec<(Vec<u8>, u32)> = self.values.into_iter().collect();
        values.sort_unstable();
        let mut sorted = vec![0u32; values.len() + 1];
        let mut ends = Vec::with_capacity(values.len());
        let mut end = 0u64;
        for (number, (bytes, old)) in (1..).zip(&values) {
            sorted[*old as usize] = number;
            end += bytes.len() as u64;
            ends.push(end);
        }
        let values = output.part(values.iter().map(|(bytes, _)| &bytes[..]))?;
        let ends = output.part([bytemuck::cast_slice(&ends)])?;
        let codes = self.codes.iter().map(|old| sorted[*old as usize]);
        // A list of rows pays where most rows lack the key.
        if self.rows.len() * 2 < rows as usize {
            let codes: Vec<u32> = codes.collect();
            let rows = Some(output.part([bytemuck::cast_slice(&self.rows)])?);
            let codes = output.part([bytemuck::cast_slice(&codes)])?;
            return Ok(ColumnParts { key, values, ends, rows, codes });
        }
        let mut all = vec![0u32; rows as usize];
        self.rows.iter().zip(codes).for_each(|(row, code)| all[*row as usize] = code);
        let codes = output.part([bytemuck::cast_slice(&all)])?;
        Ok(ColumnParts { key, values, ends, rows: None, codes })
    }
}

/// Where the columns of a segment are, checked against the size of its file.
pub(super) struct Columns(BTreeMap<String, ColumnRanges>);

struct ColumnRanges {
    values: Range<usize>,
    ends: Range<usize>,
    rows: Option<Range<usize>>,
    codes: Range<usize>,
}

/// A column in the mapped file. The numbers in it are not to be trusted.
struct Column<'a> {
    values: &'a [u8],
    ends: &'a [u64],
    rows: Option<&'a [u32]>,
    codes: &'a [u32],
}

impl Columns {
    pub(super) fn new(parts: Vec<ColumnParts>, rows: u64, check: &PartCheck) -> Result<Columns> {
        let ranges = |parts: ColumnParts| -> Result<(String, ColumnRanges)> {
            let what = format!("the column `{}`", parts.key);
            let entries = parts.rows.map_or(rows, |rows| rows.bytes / 4);
            let ranges = ColumnRanges {
                values: check.range(parts.values, 1, &what)?,
                ends: check.range(parts.ends, 8, &what)?,
                rows: parts.rows.map(|rows| check.range(rows, 4, &what)).transpose()?,
                codes: check.exactly(parts.codes, entries.saturating_mul(4), &what)?,
            };
            Ok((parts.key, ranges))
        };
        parts.into_iter().map(ranges).collect::<Result<_>>().map(Columns)
    }

    /// The rows of the segment in `file` that pass a filter.
    pub(super) fn rows_matching(&self, file: &[u8], rows: usize, filter: &Filter) -> Bitmap {
        match filter {
            Filter::Compare(compare) => self.rows_passing(file, rows, compare),
            Filter::And(all) => all.iter().fold(Bitmap::all(rows), |mut passing, filter| {
                passing.intersect(&self.rows_matching(file, rows, filter));
                passing
            }),
            Filter::Or(any) => any.iter().fold(Bitmap::none(rows), |mut passing, filter| {
                passing.unite(&self.rows_matching(file, rows, filter));
                passing
            }),
        }
    }

    fn rows_passing(&self, file: &[u8], rows: usize, Compare { key, test }: &Compare) -> Bitmap {
        let missing = test.matches(None);
        let Some(column) = self.0.get(key).map(|ranges| ranges.column(file)) else {
            return if missing { Bitmap::all(rows) } else { Bitmap::none(rows) };
        };
        let passing = column.passing(test);
        let passes = |code: u32| passing.get(code as usize).copied().unwrap_or(false);
        match column.rows {
            None => Bitmap::of_values(column.codes, passes),
            Some(present) => {
                let mut bitmap = if missing { Bitmap::all(rows) } else { Bitmap::none(rows) };
                for (row, code) in present.iter().zip(column.codes) {
                    bitmap.set(*row as usize, passes(*code));
                }
                bitmap
            }
        }
    }

    /// The metadata of a row.
    pub(super) fn metadata(&self, file: &[u8], row: u32) -> Metadata {
        let entry = |(key, ranges): (&String, &ColumnRanges)| {
            let column = ranges.column(file);
            let at = match column.rows {
                None => row as usize,
                Some(rows) => rows.binary_search(&row).ok()?,
            };
            let number = (*column.codes.get(at)? as usize).checked_sub(1)?;
            let mut value = Value::Null;
            decode(column.value(number), &mut value).then(|| (key.clone(), value))
        };
        self.0.iter().filter_map(entry).collect()
    }
}

impl ColumnRanges {
    fn column<'a>(&self, file: &'a [u8]) -> Column<'a> {
        Column {
            values: &file[self.values.clone()],
            ends: cast(&file[self.ends.clone()]),
            rows: self.rows.clone().map(|rows| cast(&file[rows])),
            codes: cast(&file[self.codes.clone()]),
        }
    }
}

/// Numbers in a mapped file. They are aligned, because the map and the sections are.
pub(super) fn cast<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> &[T] {
    bytemuck::try_cast_slice(bytes).unwrap_or_default()
}

impl Column<'_> {
    /// The bytes of a value; none if the file is damaged.
    fn value(&self, i: usize) -> &[u8] {
        let start = match i.checked_sub(1) {
            None => Some(0),
            Some(before) => self.ends.get(before).copied(),
        };
        let range = start.zip(self.ends.get(i)).map(|(start, end)| start as usize..*end as usize);
        range.and_then(|range| self.values.get(range)).unwrap_or_default()
    }

    /// Whether rows pass whose number is the index.
    fn passing(&self, test: &Test) -> Vec<bool> {
        let mut passing = vec![false; self.ends.len() + 1];
        passing[0] = test.matches(None);
        let mut scratch = Value::Null;
        let mut matches = |i: usize, test: &Test| decode(self.value(i), &mut scratch) && test.matches(Some(&scratch));
        match test {
            Test::Eq(value) => self.find(value).for_each(|i| passing[i + 1] = matches(i, test)),
            Test::In(values) => {
                for value in values {
                    self.find(value).for_each(|i| passing[i + 1] = matches(i, test));
                }
            }
            Test::Ne(value) => {
                passing.fill(true);
                self.find(value).for_each(|i| passing[i + 1] = matches(i, test));
            }
            Test::Nin(values) => {
                passing.fill(true);
                for value in values {
                    self.find(value).for_each(|i| passing[i + 1] = matches(i, test));
                }
            }
            // Within a type, the values that pass are next to each other.
            Test::Gt(_) | Test::Gte(_) | Test::Lt(_) | Test::Lte(_) => {
                let upwards = matches!(test, Test::Gt(_) | Test::Gte(_));
                for tag in [BOOL, INTEGER, FLOAT, TEXT] {
                    let of_type = self.of_type(tag);
                    let turn = partition(of_type.clone(), |i| matches(i, test) != upwards);
                    let range = if upwards { turn..of_type.end } else { of_type.start..turn };
                    passing[range.start + 1..range.end + 1].fill(true);
                }
            }
            Test::Glob(pattern) => {
                let prefix = pattern.split(['*', '?']).next().unwrap_or_default();
                let prefix = [&[TEXT], prefix.as_bytes()].concat();
                let start = partition(0..self.ends.len(), |i| self.value(i) < &prefix[..]);
                for i in (start..self.ends.len()).take_while(|i| self.value(*i).starts_with(&prefix)) {
                    passing[i + 1] = matches(i, test);
                }
            }
        }
        passing
    }

    /// Where the values of a type are.
    fn of_type(&self, tag: u8) -> Range<usize> {
        let before =
            |tag: u8| partition(0..self.ends.len(), |i| self.value(i).first().is_none_or(|first| *first < tag));
        let (start, end) = (before(tag), before(tag + 1));
        // In a damaged file the values may not be sorted.
        start..end.max(start)
    }

    /// Where the values are that may equal a value: a number may be stored as either type.
    fn find(&self, value: &Value) -> impl Iterator<Item = usize> {
        let twin = match value {
            Value::Integer(value) => Some(Value::Float(*value as f64)),
            Value::Float(value) => Some(Value::Integer(*value as i64)),
            _ => None,
        };
        let at = |value: &Value| {
            let bytes = encode(value)?;
            let at = partition(0..self.ends.len(), |i| self.value(i) < &bytes[..]);
            (at < self.ends.len()).then_some(at)
        };
        [at(value), twin.as_ref().and_then(at)].into_iter().flatten()
    }
}

/// The first index of a range for which `before` is false, if it is true only at the range's start.
fn partition(range: Range<usize>, mut before: impl FnMut(usize) -> bool) -> usize {
    let (mut start, mut end) = (range.start, range.end.max(range.start));
    while start < end {
        let middle = start + (end - start) / 2;
        if before(middle) {
            start = middle + 1;
        } else {
            end = middle;
        }
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_and_keep_their_order() {
        let text = |text: &str| Value::Text(text.into());
        let integers = [i64::MIN, -1, 0, 1, i64::MAX].map(Value::Integer);
        let floats = [f64::NEG_INFINITY, -1.5, 0.0, 1e-300, 2.0, f64::INFINITY].map(Value::Float);
        let texts = ["", "a", "ab", "b", "ä"].map(text);
        for values in [&[Value::Bool(false), Value::Bool(true)][..], &integers, &floats, &texts] {
            let bytes: Vec<Vec<u8>> = values.iter().map(|value| encode(value).unwrap()).collect();
            assert!(bytes.is_sorted(), "{values:?}");
            for (bytes, value) in bytes.iter().zip(values) {
                for mut scratch in [Value::Null, text("before")] {
                    assert!(decode(bytes, &mut scratch));
                    assert_eq!(scratch, *value);
                }
            }
        }
        assert_eq!(encode(&Value::Float(-0.0)), encode(&Value::Float(0.0)));
        assert!(encode(&Value::Null).is_none() && encode(&Value::Float(f64::NAN)).is_none());
        for damaged in [&[][..], &[0], &[9, 1], &[BOOL], &[BOOL, 2], &[INTEGER, 1], &[FLOAT; 10], &[TEXT, 0xff]] {
            assert!(!decode(damaged, &mut Value::Null), "{damaged:?}");
        }
    }
}
