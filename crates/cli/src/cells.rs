//! Vectors as they are written: numbers, bytes, base64, weights by token, several a text.

use crate::input::Text;
use crate::output::Cell;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sconce_engine::{MultiVector, Quantized, SparseVector};
use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};
use std::fmt::{Display, Write};

/// Numbers.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Floats<'a>(pub(crate) &'a [f32]);

impl Cell for Floats<'_> {
    fn lines(&self, _: &Text) -> String {
        spaced(self.0) + "\n"
    }
    fn bytes(&self) -> Vec<u8> {
        little_endian(self.0)
    }
}

/// Numbers, as the base64 of their little-endian bytes.
pub(crate) struct Base64<'a>(pub(crate) &'a [f32]);

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&STANDARD.encode(little_endian(self.0)))
    }
}

impl Cell for Base64<'_> {
    fn lines(&self, _: &Text) -> String {
        STANDARD.encode(little_endian(self.0)) + "\n"
    }
}

/// A row of bytes, which may be signed.
pub(crate) struct Small<'a> {
    pub(crate) row: &'a [u8],
    pub(crate) is_signed: bool,
}

impl Serialize for Small<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if self.is_signed { s.collect_seq(Quantized::signed(self.row)) } else { s.collect_seq(self.row) }
    }
}

impl Cell for Small<'_> {
    fn lines(&self, _: &Text) -> String {
        (if self.is_signed { spaced(Quantized::signed(self.row)) } else { spaced(self.row) }) + "\n"
    }
    fn bytes(&self) -> Vec<u8> {
        self.row.to_vec()
    }
}

/// Weights of tokens.
#[derive(Serialize)]
pub(crate) struct Weights<'a> {
    ids: &'a [u32],
    tokens: Vec<Option<String>>,
    weights: &'a [f32],
}

impl<'a> Weights<'a> {
    pub(crate) fn new(v: &'a SparseVector, token: impl Fn(u32) -> Option<String>) -> Weights<'a> {
        Weights { ids: &v.ids, tokens: v.ids.iter().map(|id| token(*id)).collect(), weights: &v.weights }
    }
}

impl Cell for Weights<'_> {
    /// The heaviest first.
    fn lines(&self, _: &Text) -> String {
        let mut order: Vec<usize> = (0..self.ids.len()).collect();
        order.sort_by(|a, b| self.weights[*b].total_cmp(&self.weights[*a]));
        let named = |i: usize| match &self.tokens[i] {
            Some(token) => format!("{token}:{:.4}", self.weights[i]),
            None => format!("#{}:{:.4}", self.ids[i], self.weights[i]),
        };
        order.into_iter().map(named).collect::<Vec<_>>().join(" ") + "\n"
    }
}

/// A vector a token.
pub(crate) struct Several<'a>(pub(crate) &'a MultiVector);

impl Serialize for Several<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut list = s.serialize_seq(None)?;
        self.0.rows().try_for_each(|row| list.serialize_element(row))?;
        list.end()
    }
}

impl Cell for Several<'_> {
    /// A vector a line, and an empty line behind each text.
    fn lines(&self, _: &Text) -> String {
        self.0.rows().map(|row| spaced(row) + "\n").collect::<String>() + "\n"
    }
}

/// bge-m3's three.
#[derive(Serialize)]
pub(crate) struct Three<'a> {
    dense: Floats<'a>,
    sparse: Weights<'a>,
    multi: Several<'a>,
}

impl<'a> Three<'a> {
    pub(crate) fn new(three: &'a sconce_engine::M3Embedding, token: impl Fn(u32) -> Option<String>) -> Three<'a> {
        Three { dense: Floats(&three.dense), sparse: Weights::new(&three.sparse, token), multi: Several(&three.multi) }
    }
}

impl Cell for Three<'_> {
    /// One behind the other.
    fn lines(&self, of: &Text) -> String {
        self.dense.lines(of) + &self.sparse.lines(of) + &self.multi.lines(of)
    }
}

fn spaced<T: Display>(numbers: impl IntoIterator<Item = T>) -> String {
    let mut line = String::new();
    for number in numbers {
        if !line.is_empty() {
            line.push(' ');
        }
        // A string takes all that is written.
        let _ = write!(line, "{number}");
    }
    line
}

fn little_endian(row: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; size_of_val(row)];
    bytes.chunks_exact_mut(4).zip(row).for_each(|(four, v)| four.copy_from_slice(&v.to_le_bytes()));
    bytes
}
