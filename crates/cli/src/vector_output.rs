//! Output formats of vectors: numbers, bytes, base64, sparse (weights by token) and multi-vector.

use crate::input::Text;
use crate::output::ResultRow;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sconce_engine::{MultiVector, Quantized, SparseVector};
use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};
use std::fmt::{Display, Write};

/// Parquet columns of embeddings.
pub(crate) const FLOAT_COLUMN: &str =
    "required group embedding (LIST) { repeated group list { required float element; } }";
pub(crate) const INT8_COLUMN: &str =
    "required group embedding (LIST) { repeated group list { required int32 element (INTEGER(8,true)); } }";
pub(crate) const UINT8_COLUMN: &str =
    "required group embedding (LIST) { repeated group list { required int32 element (INTEGER(8,false)); } }";
pub(crate) const SPARSE_COLUMN: &str = "required group embedding {
    required group ids (LIST) { repeated group list { required int32 element (INTEGER(32,false)); } }
    required group tokens (LIST) { repeated group list { optional binary element (STRING); } }
    required group weights (LIST) { repeated group list { required float element; } } }";
pub(crate) const MULTI_COLUMN: &str = "required group embedding (LIST) { repeated group list {
    required group element (LIST) { repeated group list { required float element; } } } }";
pub(crate) const M3_COLUMN: &str = "required group embedding {
    required group dense (LIST) { repeated group list { required float element; } }
    required group sparse {
        required group ids (LIST) { repeated group list { required int32 element (INTEGER(32,false)); } }
        required group tokens (LIST) { repeated group list { optional binary element (STRING); } }
        required group weights (LIST) { repeated group list { required float element; } } }
    required group multi (LIST) { repeated group list {
        required group element (LIST) { repeated group list { required float element; } } } } }";

/// A dense vector as numbers.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Floats<'a>(pub(crate) &'a [f32]);

impl ResultRow for Floats<'_> {
    fn lines(&self, _: &Text) -> String {
        join_numbers(self.0) + "\n"
    }
    fn bytes(&self) -> Vec<u8> {
        little_endian(self.0)
    }
}

/// A dense vector as base64 of its little-endian bytes.
pub(crate) struct Base64<'a>(pub(crate) &'a [f32]);

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&STANDARD.encode(little_endian(self.0)))
    }
}

impl ResultRow for Base64<'_> {
    fn lines(&self, _: &Text) -> String {
        STANDARD.encode(little_endian(self.0)) + "\n"
    }
}

/// A quantized vector: bytes, signed or not.
pub(crate) struct QuantizedRow<'a> {
    pub(crate) row: &'a [u8],
    pub(crate) is_signed: bool,
}

impl Serialize for QuantizedRow<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if self.is_signed { s.collect_seq(Quantized::signed(self.row)) } else { s.collect_seq(self.row) }
    }
}

impl ResultRow for QuantizedRow<'_> {
    fn lines(&self, _: &Text) -> String {
        (if self.is_signed { join_numbers(Quantized::signed(self.row)) } else { join_numbers(self.row) }) + "\n"
    }
    fn bytes(&self) -> Vec<u8> {
        self.row.to_vec()
    }
}

/// A sparse embedding: weights of tokens.
#[derive(Serialize)]
pub(crate) struct SparseWeights<'a> {
    ids: &'a [u32],
    tokens: Vec<Option<String>>,
    weights: &'a [f32],
}

impl<'a> SparseWeights<'a> {
    pub(crate) fn new(v: &'a SparseVector, token: impl Fn(u32) -> Option<String>) -> SparseWeights<'a> {
        SparseWeights { ids: &v.ids, tokens: v.ids.iter().map(|id| token(*id)).collect(), weights: &v.weights }
    }
}

impl ResultRow for SparseWeights<'_> {
    /// Highest weight first.
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

/// A multi-vector embedding: one vector per token.
pub(crate) struct MultiVectorRows<'a>(pub(crate) &'a MultiVector);

impl Serialize for MultiVectorRows<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut list = s.serialize_seq(None)?;
        self.0.rows().try_for_each(|row| list.serialize_element(row))?;
        list.end()
    }
}

impl ResultRow for MultiVectorRows<'_> {
    /// One vector per line, and an empty line after each text.
    fn lines(&self, _: &Text) -> String {
        self.0.rows().map(|row| join_numbers(row) + "\n").collect::<String>() + "\n"
    }
}

/// The dense, sparse and multi-vector embeddings of bge-m3.
#[derive(Serialize)]
pub(crate) struct M3Rows<'a> {
    dense: Floats<'a>,
    sparse: SparseWeights<'a>,
    multi: MultiVectorRows<'a>,
}

impl<'a> M3Rows<'a> {
    pub(crate) fn new(m3: &'a sconce_engine::M3Embedding, token: impl Fn(u32) -> Option<String>) -> M3Rows<'a> {
        M3Rows {
            dense: Floats(&m3.dense),
            sparse: SparseWeights::new(&m3.sparse, token),
            multi: MultiVectorRows(&m3.multi),
        }
    }
}

impl ResultRow for M3Rows<'_> {
    /// Dense, sparse, multi-vector, in this order.
    fn lines(&self, of: &Text) -> String {
        self.dense.lines(of) + &self.sparse.lines(of) + &self.multi.lines(of)
    }
}

fn join_numbers<T: Display>(numbers: impl IntoIterator<Item = T>) -> String {
    let mut line = String::new();
    for number in numbers {
        if !line.is_empty() {
            line.push(' ');
        }
        // Writing to a string cannot fail.
        let _ = write!(line, "{number}");
    }
    line
}

fn little_endian(row: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; size_of_val(row)];
    bytes.chunks_exact_mut(4).zip(row).for_each(|(four, v)| four.copy_from_slice(&v.to_le_bytes()));
    bytes
}
