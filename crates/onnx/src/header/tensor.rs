//! Weights: their shapes and sizes, without their numbers.

use super::wire::{Fields, Value, message, numbers, string};
use super::{LONGEST_NAME, MOST_DIMS};

/// A shape that a weight holds has at most this many numbers.
const LONGEST_SHAPE: usize = 16;

/// The part of another file that holds a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    /// The file, relative to that of the graph.
    pub location: String,
    /// Where the weight begins.
    pub offset: u64,
    /// Its size in bytes.
    pub length: u64,
}

/// A weight without its numbers.
pub(super) struct Weight {
    pub(super) name: String,
    /// Its values, if it is a short list of integers: a shape.
    pub(super) shape: Option<Vec<i64>>,
    pub(super) external: Option<External>,
}

/// Bits of an element, by the number of its type; 0 for strings, which have any size.
fn bits(element: u64) -> Result<u64, String> {
    Ok(match element {
        2 | 3 | 9 | 17..=20 | 24 => 8,
        4 | 5 | 10 | 16 => 16,
        1 | 6 | 12 => 32,
        7 | 11 | 13 | 14 => 64,
        15 => 128,
        21..=23 => 4,
        25 | 26 => 2,
        8 => 0,
        other => return Err(format!("a weight of element type {other}, which does not exist")),
    })
}

/// Reads a weight. Fails if its shape and its size differ.
pub(super) fn read(mut fields: Fields<'_>) -> Result<Weight, String> {
    let (mut dims, mut name, mut element) = (Vec::new(), String::new(), 0);
    let (mut raw, mut inline, mut is_external) = (None, Vec::new(), false);
    let (mut location, mut offset, mut length) = (None, 0, None);
    while let Some((number, value)) = fields.next()? {
        match (number, value) {
            (1, value) => numbers(value, MOST_DIMS, &mut dims)?,
            (2, Value::Varint(n)) => element = n,
            (7, Value::Bytes(packed)) if packed.len() <= 10 * LONGEST_SHAPE => {
                numbers(value, 10 * LONGEST_SHAPE, &mut inline)?;
            }
            (7, Value::Varint(_)) if inline.len() < LONGEST_SHAPE => numbers(value, LONGEST_SHAPE, &mut inline)?,
            (8, value) => name = string(value, LONGEST_NAME)?,
            (9, Value::Bytes(bytes)) => raw = Some(bytes),
            (13, value) => match entry(message(value)?)? {
                (key, value) if key == "location" => location = Some(value),
                (key, value) if key == "offset" => offset = bytes(&name, &value)?,
                (key, value) if key == "length" => length = Some(bytes(&name, &value)?),
                _ => {}
            },
            (14, Value::Varint(1)) => is_external = true,
            _ => {}
        }
    }
    let bits = bits(element)?;
    let absurd = || format!("weight {name} has the shape {dims:?}, which is absurd");
    let elements = dims.iter().try_fold(1u64, |n, dim| n.checked_mul(u64::try_from(*dim).ok()?)).ok_or_else(absurd)?;
    let size = elements.checked_mul(bits).ok_or_else(absurd)?.div_ceil(8);
    let wrong = |held: u64| format!("weight {name} of shape {dims:?} has {held} bytes instead of {size}");
    let external = match (is_external, location) {
        (false, _) => None,
        (true, None) => return Err(format!("weight {name} is in another file, which the model does not name")),
        (true, Some(_)) if length.is_some_and(|held| held != size) => return Err(wrong(length.unwrap_or(0))),
        (true, Some(location)) => Some(External { location, offset, length: size }),
    };
    if let (Some(raw), None) = (raw, &external)
        && raw.len() as u64 != size
    {
        return Err(wrong(raw.len() as u64));
    }
    let is_shape = element == 7 && dims.len() <= 1 && elements <= LONGEST_SHAPE as u64;
    let shape = match raw {
        Some(raw) if is_shape => Some(raw.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()),
        None if is_shape && inline.len() as u64 == elements => Some(inline),
        _ => None,
    };
    Ok(Weight { name, shape, external })
}

/// A key and its value.
fn entry(mut fields: Fields<'_>) -> Result<(String, String), String> {
    let (mut key, mut text) = (String::new(), String::new());
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => key = string(value, LONGEST_NAME)?,
            2 => text = string(value, LONGEST_NAME)?,
            _ => {}
        }
    }
    Ok((key, text))
}

fn bytes(name: &str, text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("weight {name} is at `{text}` in another file, which is not a number"))
}
