//! Typed access to the metadata keys of a GGUF file. Texts and arrays are borrowed from the file: a
//! vocabulary of 256 000 tokens is iterated in place.

use super::header::{Array, Item, Value, quoted};
use crate::FileError;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::Path;

/// The metadata keys of a model. A missing key is `None`, a key of another type an error.
#[derive(Clone, Copy)]
pub struct Metadata<'a> {
    pub(super) path: &'a Path,
    pub(super) bytes: &'a [u8],
    pub(super) values: &'a BTreeMap<String, Value>,
}

impl<'a> Metadata<'a> {
    /// A text.
    pub fn str(&self, key: &str) -> Result<Option<&'a str>, FileError> {
        match self.values.get(key) {
            None => Ok(None),
            // It was UTF-8 when the file was opened; if the mapped file has changed since, the text
            // is empty.
            Some(Value::Text(at)) => Ok(Some(text(self.bytes.get(at.clone()).unwrap_or_default()))),
            Some(_) => Err(self.wrong_type(key, "a text")),
        }
    }

    /// A non-negative integer, signed or unsigned in the file.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, FileError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Unsigned(n)) => Ok(Some(*n)),
            Some(Value::Signed(n)) if *n >= 0 => Ok(Some(n.unsigned_abs())),
            Some(_) => Err(self.wrong_type(key, "a whole number that is not negative")),
        }
    }

    /// A number. An F32 becomes the shortest decimal that rounds to it: a converter that read 1e-5
    /// from JSON and rounded it gives 1e-5 again.
    pub fn f64(&self, key: &str) -> Result<Option<f64>, FileError> {
        let number = match self.values.get(key) {
            None => return Ok(None),
            Some(Value::F32(n)) => decimal(*n),
            Some(Value::F64(n)) => *n,
            Some(Value::Unsigned(n)) => *n as f64,
            Some(Value::Signed(n)) => *n as f64,
            Some(_) => return Err(self.wrong_type(key, "a number")),
        };
        if number.is_finite() { Ok(Some(number)) } else { Err(self.wrong_type(key, "a finite number")) }
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, FileError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(_) => Err(self.wrong_type(key, "true or false")),
        }
    }

    /// An array of texts.
    pub fn strs(&self, key: &str) -> Result<Option<Texts<'a>>, FileError> {
        let found = self.array(key, &[Item::Text], "an array of texts")?;
        Ok(found.map(|array| Texts { rest: self.slice(array), left: array.count }))
    }

    /// An array of F32.
    pub fn f32s(&self, key: &str) -> Result<Option<Numbers<'a, f32>>, FileError> {
        let found = self.array(key, &[Item::F32], "an array of F32")?;
        Ok(found.map(|array| Numbers::new(self.slice(array))))
    }

    /// An array of I32 or U32.
    pub fn i32s(&self, key: &str) -> Result<Option<Numbers<'a, i32>>, FileError> {
        // Converters differ in signedness; a token id or token type fits both.
        let found = self.array(key, &[Item::I32, Item::U32], "an array of I32")?;
        Ok(found.map(|array| Numbers::new(self.slice(array))))
    }

    /// An array of booleans.
    pub fn bools(&self, key: &str) -> Result<Option<impl ExactSizeIterator<Item = bool> + 'a>, FileError> {
        let found = self.array(key, &[Item::Bool], "an array of booleans")?;
        Ok(found.map(|array| self.slice(array).iter().map(|&byte| byte != 0)))
    }

    /// An array of bytes.
    pub fn bytes(&self, key: &str) -> Result<Option<&'a [u8]>, FileError> {
        Ok(self.array(key, &[Item::U8, Item::I8], "an array of bytes")?.map(|array| self.slice(array)))
    }

    /// Whether the key holds an array.
    pub(super) fn is_array(&self, key: &str) -> bool {
        matches!(self.values.get(key), Some(Value::Array(_)))
    }

    pub(super) fn fault(&self, what: impl Into<String>) -> FileError {
        FileError { path: self.path.to_path_buf(), what: what.into() }
    }

    fn array(&self, key: &str, items: &[Item], wanted: &str) -> Result<Option<&'a Array>, FileError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) if items.contains(&array.item) => Ok(Some(array)),
            Some(_) => Err(self.wrong_type(key, wanted)),
        }
    }

    fn slice(&self, array: &Array) -> &'a [u8] {
        self.bytes.get(array.bytes.clone()).unwrap_or_default()
    }

    fn wrong_type(&self, key: &str, wanted: &str) -> FileError {
        self.fault(format!("has a {} that is not {wanted}", quoted(key)))
    }
}

/// Iterator over length-prefixed texts in the file.
#[derive(Clone, Debug)]
pub struct Texts<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Iterator for Texts<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.left = self.left.checked_sub(1)?;
        // The header parser has checked these bytes; if the mapped file has changed since, the rest
        // reads as empty.
        let Some((length, rest)) = self.rest.split_first_chunk::<8>() else { return Some("") };
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let (found, rest) = rest.split_at_checked(length).unwrap_or_default();
        self.rest = rest;
        Some(text(found))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Texts<'_> {}

/// Iterator over four-byte numbers in the file.
#[derive(Clone, Debug)]
pub struct Numbers<'a, T> {
    chunks: std::slice::Iter<'a, [u8; 4]>,
    of: PhantomData<T>,
}

impl<'a, T> Numbers<'a, T> {
    fn new(bytes: &'a [u8]) -> Numbers<'a, T> {
        Numbers { chunks: bytes.as_chunks().0.iter(), of: PhantomData }
    }
}

/// A number of four bytes.
pub trait FourBytes {
    /// From little-endian bytes.
    fn read(bytes: [u8; 4]) -> Self;
}

impl FourBytes for f32 {
    fn read(bytes: [u8; 4]) -> f32 {
        f32::from_le_bytes(bytes)
    }
}

impl FourBytes for i32 {
    fn read(bytes: [u8; 4]) -> i32 {
        i32::from_le_bytes(bytes)
    }
}

impl<T: FourBytes> Iterator for Numbers<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.chunks.next().map(|bytes| T::read(*bytes))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.chunks.size_hint()
    }
}

impl<T: FourBytes> ExactSizeIterator for Numbers<'_, T> {}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// The shortest decimal that rounds to `n`, as the nearest f64.
pub(super) fn decimal(n: f32) -> f64 {
    n.to_string().parse().unwrap_or(f64::from(n))
}
