//! Rows of Parquet columns as JSON objects (record assembly of Dremel).

use super::leaf::{Leaf, count_leaves};
use super::value::scalar;
use parquet::basic::{ConvertedType, LogicalType, Repetition};
use parquet::schema::types::{Type, TypePtr};
use serde_json::{Map, Value};
use std::ops::Range;

/// A part of a leaf: the entries of one instance of a field, and the first value in them.
#[derive(Clone)]
struct Part<'a> {
    leaf: &'a Leaf,
    entries: Range<usize>,
    value: usize,
}

impl Part<'_> {
    /// Definition level of the first entry.
    fn def(&self) -> Result<i16, String> {
        if self.entries.is_empty() { Err(disagree(self.leaf)) } else { Ok(self.leaf.def(self.entries.start)) }
    }
}

/// The levels at which a field stands.
#[derive(Clone, Copy)]
struct Level {
    def: i16,
    rep: i16,
}

/// The value of one element of a repeated field.
type ElementValue<'a> = dyn Fn(&[Part<'_>], Level) -> Result<Value, String> + 'a;

/// The object of one row. `place` gives a leaf with the row's entries and values.
pub(super) fn object_of<'a>(
    fields: &[TypePtr],
    place: &dyn Fn(usize) -> (&'a Leaf, (Range<usize>, Range<usize>)),
) -> Result<Map<String, Value>, String> {
    let part = |i: usize| {
        let (leaf, (entries, values)) = place(i);
        Part { leaf, entries, value: values.start }
    };
    let count = fields.iter().map(|f| count_leaves(f)).sum();
    let parts: Vec<Part<'_>> = (0..count).map(part).collect();
    members(fields, &parts, Level { def: 0, rep: 0 })
}

/// The fields of a group, each with its leaves.
fn members(fields: &[TypePtr], parts: &[Part<'_>], at: Level) -> Result<Map<String, Value>, String> {
    let (mut object, mut parts) = (Map::new(), parts);
    for field in fields {
        let (own, rest) = parts.split_at(count_leaves(field));
        parts = rest;
        object.insert(field.name().to_string(), field_value(field, own, at)?);
    }
    Ok(object)
}

/// A field that may be null or repeated.
fn field_value(field: &Type, parts: &[Part<'_>], at: Level) -> Result<Value, String> {
    // A group without columns has no levels.
    let Some(first) = parts.first() else { return Ok(Value::Object(Map::new())) };
    match field.get_basic_info().repetition() {
        Repetition::REQUIRED => present(field, parts, at),
        Repetition::OPTIONAL if first.def()? <= at.def => Ok(Value::Null),
        Repetition::OPTIONAL => present(field, parts, Level { def: at.def + 1, ..at }),
        Repetition::REPEATED => elements(parts, at, &|element, at| present(field, element, at)),
    }
}

/// A field that is not null, or one element of a repeated field.
fn present(field: &Type, parts: &[Part<'_>], at: Level) -> Result<Value, String> {
    if field.is_primitive() {
        return match parts {
            [part] if part.def()? == part.leaf.descr.max_def_level() => scalar(part.leaf, part.value),
            [part, ..] => Err(disagree(part.leaf)),
            [] => Ok(Value::Null),
        };
    }
    let info = field.get_basic_info();
    let is_list = matches!(info.logical_type_ref(), Some(LogicalType::List | LogicalType::Map))
        || matches!(info.converted_type(), ConvertedType::LIST | ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE);
    match field.get_fields() {
        [list] if is_list && list.get_basic_info().repetition() == Repetition::REPEATED => {
            elements(parts, at, &|element, at| match inner_field(list) {
                Some(inner) => field_value(inner, element, at),
                None => present(list, element, at),
            })
        }
        fields => members(fields, parts, at).map(Value::Object),
    }
}

/// The element of a list of three levels. Lists of two levels, which old writers make, have none:
/// their repeated field is the element.
fn inner_field(list: &Type) -> Option<&Type> {
    if list.is_primitive() || list.name() == "array" || list.name().ends_with("_tuple") {
        return None;
    }
    match list.get_fields() {
        [inner] => Some(inner),
        _ => None,
    }
}

/// The elements of a repeated field: each begins where the repetition level is the field's own.
fn elements(parts: &[Part<'_>], at: Level, element: &ElementValue<'_>) -> Result<Value, String> {
    let at_element = Level { def: at.def + 1, rep: at.rep + 1 };
    let Some(first) = parts.first() else { return Ok(Value::Array(Vec::new())) };
    if first.def()? < at_element.def {
        return Ok(Value::Array(Vec::new()));
    }
    let split: Vec<Vec<Part<'_>>> = parts.iter().map(|part| split_part(part, at_element.rep)).collect();
    let count = split[0].len();
    if let Some(other) = split.iter().position(|parts| parts.len() != count) {
        return Err(disagree(parts[other].leaf));
    }
    let one = |i: usize| element(&split.iter().map(|parts| parts[i].clone()).collect::<Vec<_>>(), at_element);
    (0..count).map(one).collect::<Result<Vec<_>, _>>().map(Value::Array)
}

fn split_part<'a>(part: &Part<'a>, rep: i16) -> Vec<Part<'a>> {
    let (mut all, mut start, mut value, mut next_value) = (Vec::new(), part.entries.start, part.value, part.value);
    for entry in part.entries.clone() {
        if entry > start && part.leaf.rep(entry) <= rep {
            all.push(Part { leaf: part.leaf, entries: start..entry, value });
            (start, value) = (entry, next_value);
        }
        next_value += usize::from(part.leaf.has_value(entry));
    }
    all.push(Part { leaf: part.leaf, entries: start..part.entries.end, value });
    all
}

fn disagree(leaf: &Leaf) -> String {
    format!("damaged: column `{}` does not fit the schema", leaf.descr.path())
}
