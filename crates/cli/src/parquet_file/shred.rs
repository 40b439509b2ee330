//! JSON values as entries of Parquet columns (record shredding of Dremel).

use super::leaf::{Leaf, Values, count_leaves};
use parquet::basic::{ConvertedType, LogicalType, Repetition};
use parquet::data_type::ByteArray;
use parquet::schema::types::{Type, TypePtr};
use serde_json::{Map, Value};

/// The levels at which a field stands, and the repetition level of its first entry.
#[derive(Clone, Copy)]
struct Level {
    def: i16,
    rep: i16,
    first: i16,
}

/// Appends one row: the fields of an object, to the leaves of `fields`. Returns its bytes.
pub(super) fn append_object(
    fields: &[TypePtr],
    object: &Map<String, Value>,
    leaves: &mut [Leaf],
) -> Result<usize, String> {
    members(fields, object, leaves, Level { def: 0, rep: 0, first: 0 })
}

fn members(fields: &[TypePtr], object: &Map<String, Value>, leaves: &mut [Leaf], at: Level) -> Result<usize, String> {
    let (mut leaves, mut bytes) = (leaves, 0);
    for field in fields {
        let (own, rest) = leaves.split_at_mut(count_leaves(field));
        leaves = rest;
        let value = object.get(field.name()).unwrap_or(&Value::Null);
        bytes += append(field, value, own, at)?;
    }
    Ok(bytes)
}

fn append(field: &Type, value: &Value, leaves: &mut [Leaf], at: Level) -> Result<usize, String> {
    let inside = Level { def: at.def + 1, ..at };
    match (field.get_basic_info().repetition(), value) {
        (Repetition::OPTIONAL, Value::Null) => Ok(append_null(leaves, at)),
        (Repetition::OPTIONAL, value) => append_present(field, value, leaves, inside),
        (Repetition::REQUIRED, value) => append_present(field, value, leaves, at),
        (Repetition::REPEATED, Value::Array(all)) => {
            append_elements(all, leaves, at, |element, leaves, at| append_present(field, element, leaves, at))
        }
        (Repetition::REPEATED, other) => Err(mismatch(field, other)),
    }
}

/// An entry without a value.
fn append_null(leaves: &mut [Leaf], at: Level) -> usize {
    leaves.iter_mut().for_each(|leaf| leaf.push_levels(at.def, at.first));
    4 * leaves.len()
}

fn append_elements(
    all: &[Value],
    leaves: &mut [Leaf],
    at: Level,
    append: impl Fn(&Value, &mut [Leaf], Level) -> Result<usize, String>,
) -> Result<usize, String> {
    if all.is_empty() {
        return Ok(append_null(leaves, at));
    }
    let rep = at.rep + 1;
    let level = |i: usize| Level { def: at.def + 1, rep, first: if i == 0 { at.first } else { rep } };
    all.iter().enumerate().map(|(i, element)| append(element, leaves, level(i))).sum()
}

fn append_present(field: &Type, value: &Value, leaves: &mut [Leaf], at: Level) -> Result<usize, String> {
    if field.is_primitive() {
        let leaf = leaves.first_mut().ok_or_else(|| mismatch(field, value))?;
        leaf.push_levels(at.def, at.first);
        return push(&mut leaf.values, field, value).ok_or_else(|| mismatch(field, value));
    }
    match (value, field.get_fields()) {
        // A list of three levels: the repeated group holds the element.
        (Value::Array(all), [list]) if !list.is_primitive() => match list.get_fields() {
            [element] => append_elements(all, leaves, at, |value, leaves, at| append(element, value, leaves, at)),
            _ => Err(mismatch(field, value)),
        },
        (Value::Object(object), fields) => members(fields, object, leaves, at),
        _ => Err(mismatch(field, value)),
    }
}

/// Appends a value and returns its bytes; `None` if it has another type.
fn push(values: &mut Values, field: &Type, value: &Value) -> Option<usize> {
    let info = field.get_basic_info();
    let is_json = info.logical_type_ref() == Some(&LogicalType::Json) || info.converted_type() == ConvertedType::JSON;
    match values {
        Values::Bool(all) => all.push(value.as_bool()?),
        // Unsigned values keep their bits.
        Values::Int32(all) => {
            let n = value.as_i64()?;
            all.push(i32::try_from(n).ok().or_else(|| u32::try_from(n).ok().map(u32::cast_signed))?);
        }
        Values::Int64(all) => all.push(value.as_i64().or_else(|| value.as_u64().map(u64::cast_signed))?),
        Values::Float(all) => all.push(value.as_f64()? as f32),
        Values::Double(all) => all.push(value.as_f64()?),
        Values::Bytes(all) => {
            let bytes = if is_json { value.to_string().into_bytes() } else { value.as_str()?.as_bytes().to_vec() };
            let size = bytes.len() + size_of::<u32>();
            all.push(ByteArray::from(bytes));
            return Some(size);
        }
        Values::Int96(_) | Values::Fixed(_) => return None,
    }
    Some(8)
}

fn mismatch(field: &Type, value: &Value) -> String {
    let mut value = value.to_string();
    if let Some((end, _)) = value.char_indices().nth(60) {
        value.truncate(end);
        value.push('…');
    }
    format!("{value} does not fit column `{}`", field.name())
}
