//! A leaf column: values, and the levels that say where they stand in rows.

use parquet::basic::Type as PhysicalType;
use parquet::column::reader::ColumnReader;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::{ByteArray, FixedLenByteArray, Int96};
use parquet::errors::{ParquetError, Result};
use parquet::schema::types::{ColumnDescPtr, Type};
use std::ops::Range;

/// Some rows of a leaf column.
#[derive(Debug)]
pub(super) struct Leaf {
    pub(super) descr: ColumnDescPtr,
    pub(super) values: Values,
    /// Definition level of each entry; empty if all are 0.
    pub(super) def: Vec<i16>,
    /// Repetition level of each entry; empty if all are 0.
    pub(super) rep: Vec<i16>,
}

/// Values of a column, without its nulls.
#[derive(Debug)]
pub(super) enum Values {
    Bool(Vec<bool>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Int96(Vec<Int96>),
    Float(Vec<f32>),
    Double(Vec<f64>),
    Bytes(Vec<ByteArray>),
    Fixed(Vec<FixedLenByteArray>),
}

macro_rules! for_values {
    ($values:expr, $v:ident => $body:expr) => {
        match $values {
            Values::Bool($v) => $body,
            Values::Int32($v) => $body,
            Values::Int64($v) => $body,
            Values::Int96($v) => $body,
            Values::Float($v) => $body,
            Values::Double($v) => $body,
            Values::Bytes($v) => $body,
            Values::Fixed($v) => $body,
        }
    };
}

impl Values {
    fn new(of: PhysicalType) -> Values {
        match of {
            PhysicalType::BOOLEAN => Values::Bool(Vec::new()),
            PhysicalType::INT32 => Values::Int32(Vec::new()),
            PhysicalType::INT64 => Values::Int64(Vec::new()),
            PhysicalType::INT96 => Values::Int96(Vec::new()),
            PhysicalType::FLOAT => Values::Float(Vec::new()),
            PhysicalType::DOUBLE => Values::Double(Vec::new()),
            PhysicalType::BYTE_ARRAY => Values::Bytes(Vec::new()),
            PhysicalType::FIXED_LEN_BYTE_ARRAY => Values::Fixed(Vec::new()),
        }
    }

    pub(super) fn len(&self) -> usize {
        for_values!(self, v => v.len())
    }

    fn bytes(&self) -> usize {
        match self {
            Values::Bytes(v) => v.iter().map(|b| b.len() + size_of::<ByteArray>()).sum(),
            Values::Fixed(v) => v.iter().map(|b| b.len() + size_of::<FixedLenByteArray>()).sum(),
            other => for_values!(other, v => size_of_val(&v[..])),
        }
    }

    fn clear(&mut self) {
        for_values!(self, v => v.clear());
    }

    /// Appends a range of `from`; returns its bytes.
    fn extend(&mut self, from: &Values, range: Range<usize>) -> Option<usize> {
        let count = range.len();
        let bytes = |sizes: &mut dyn Iterator<Item = usize>| sizes.map(|n| n + size_of::<u32>()).sum::<usize>();
        macro_rules! append {
            ($to:ident, $v:ident, $size:expr) => {{
                let new = $v.get(range)?;
                $to.extend_from_slice(new);
                $size(new)
            }};
        }
        Some(match (self, from) {
            (Values::Bool(to), Values::Bool(v)) => append!(to, v, |_| count),
            (Values::Int32(to), Values::Int32(v)) => append!(to, v, |_| count * 4),
            (Values::Int64(to), Values::Int64(v)) => append!(to, v, |_| count * 8),
            (Values::Int96(to), Values::Int96(v)) => append!(to, v, |_| count * 12),
            (Values::Float(to), Values::Float(v)) => append!(to, v, |_| count * 4),
            (Values::Double(to), Values::Double(v)) => append!(to, v, |_| count * 8),
            (Values::Bytes(to), Values::Bytes(v)) => {
                append!(to, v, |new: &[ByteArray]| bytes(&mut new.iter().map(ByteArray::len)))
            }
            (Values::Fixed(to), Values::Fixed(v)) => {
                append!(to, v, |new: &[FixedLenByteArray]| bytes(&mut new.iter().map(|b| b.len())))
            }
            _ => return None,
        })
    }
}

impl Leaf {
    pub(super) fn new(descr: &ColumnDescPtr) -> Leaf {
        let values = Values::new(descr.physical_type());
        Leaf { descr: descr.clone(), values, def: Vec::new(), rep: Vec::new() }
    }

    /// Reads whole rows; returns how many there were.
    pub(super) fn read(&mut self, from: &mut ColumnReader, rows: usize) -> Result<usize> {
        macro_rules! read {
            ($reader:ident, $values:ident) => {
                $reader.read_records(rows, Some(&mut self.def), Some(&mut self.rep), $values)?
            };
        }
        let (records, ..) = match (from, &mut self.values) {
            (ColumnReader::BoolColumnReader(r), Values::Bool(v)) => read!(r, v),
            (ColumnReader::Int32ColumnReader(r), Values::Int32(v)) => read!(r, v),
            (ColumnReader::Int64ColumnReader(r), Values::Int64(v)) => read!(r, v),
            (ColumnReader::Int96ColumnReader(r), Values::Int96(v)) => read!(r, v),
            (ColumnReader::FloatColumnReader(r), Values::Float(v)) => read!(r, v),
            (ColumnReader::DoubleColumnReader(r), Values::Double(v)) => read!(r, v),
            (ColumnReader::ByteArrayColumnReader(r), Values::Bytes(v)) => read!(r, v),
            (ColumnReader::FixedLenByteArrayColumnReader(r), Values::Fixed(v)) => read!(r, v),
            _ => return Err(ParquetError::General("a column has another type than the schema".into())),
        };
        Ok(records)
    }

    /// Writes all entries to a column of this type and clears them.
    pub(super) fn write(&mut self, to: &mut ColumnWriter<'_>) -> Result<()> {
        let def = (self.descr.max_def_level() > 0).then_some(&self.def[..]);
        let rep = (self.descr.max_rep_level() > 0).then_some(&self.rep[..]);
        match (to, &self.values) {
            (ColumnWriter::BoolColumnWriter(w), Values::Bool(v)) => w.write_batch(v, def, rep)?,
            (ColumnWriter::Int32ColumnWriter(w), Values::Int32(v)) => w.write_batch(v, def, rep)?,
            (ColumnWriter::Int64ColumnWriter(w), Values::Int64(v)) => w.write_batch(v, def, rep)?,
            (ColumnWriter::Int96ColumnWriter(w), Values::Int96(v)) => w.write_batch(v, def, rep)?,
            (ColumnWriter::FloatColumnWriter(w), Values::Float(v)) => w.write_batch(v, def, rep)?,
            (ColumnWriter::DoubleColumnWriter(w), Values::Double(v)) => w.write_batch(v, def, rep)?,
            (ColumnWriter::ByteArrayColumnWriter(w), Values::Bytes(v)) => w.write_batch(v, def, rep)?,
            (ColumnWriter::FixedLenByteArrayColumnWriter(w), Values::Fixed(v)) => w.write_batch(v, def, rep)?,
            _ => return Err(ParquetError::General("a column has another type than the schema".into())),
        };
        self.values.clear();
        self.def.clear();
        self.rep.clear();
        Ok(())
    }

    /// Bytes in memory, if no page is shared.
    pub(super) fn bytes(&self) -> usize {
        self.values.bytes() + size_of_val(&self.def[..]) + size_of_val(&self.rep[..])
    }

    /// Entries: values and nulls.
    pub(super) fn entries(&self) -> usize {
        if self.descr.max_def_level() > 0 { self.def.len() } else { self.values.len() }
    }

    pub(super) fn def(&self, entry: usize) -> i16 {
        self.def.get(entry).copied().unwrap_or(0)
    }

    pub(super) fn rep(&self, entry: usize) -> i16 {
        self.rep.get(entry).copied().unwrap_or(0)
    }

    /// Whether an entry has a value.
    pub(super) fn has_value(&self, entry: usize) -> bool {
        self.def(entry) == self.descr.max_def_level()
    }

    /// Appends the levels of an entry.
    pub(super) fn push_levels(&mut self, def: i16, rep: i16) {
        if self.descr.max_def_level() > 0 {
            self.def.push(def);
        }
        if self.descr.max_rep_level() > 0 {
            self.rep.push(rep);
        }
    }

    /// Appends entries of a leaf of the same type; returns their bytes.
    pub(super) fn extend(&mut self, from: &Leaf, entries: Range<usize>, values: Range<usize>) -> Option<usize> {
        if self.descr.max_def_level() > 0 {
            self.def.extend_from_slice(from.def.get(entries.clone())?);
        }
        if self.descr.max_rep_level() > 0 {
            self.rep.extend_from_slice(from.rep.get(entries.clone())?);
        }
        Some(self.values.extend(&from.values, values)? + 4 * entries.len())
    }
}

/// Leaf columns of a field.
pub(super) fn count_leaves(field: &Type) -> usize {
    if field.is_primitive() { 1 } else { field.get_fields().iter().map(|f| count_leaves(f)).sum() }
}
