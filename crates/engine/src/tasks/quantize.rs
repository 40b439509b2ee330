//! Quantized embeddings, as sentence-transformers defines them.

use super::embed::Embeddings;
use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// The format of quantized embeddings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Not quantized.
    #[default]
    Float32,
    /// One of 256 steps between the minimum and the maximum of its dimension, from −128.
    Int8,
    /// The same, from 0.
    Uint8,
    /// One bit per number, set if it is above zero; eight in a signed byte (the byte minus 128).
    Binary,
    /// The same, in an unsigned byte.
    Ubinary,
}

impl Precision {
    /// All formats.
    pub const ALL: [Precision; 5] =
        [Precision::Float32, Precision::Int8, Precision::Uint8, Precision::Binary, Precision::Ubinary];
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Precision::Float32 => "float32",
            Precision::Int8 => "int8",
            Precision::Uint8 => "uint8",
            Precision::Binary => "binary",
            Precision::Ubinary => "ubinary",
        })
    }
}

impl FromStr for Precision {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        let known = || Precision::ALL.map(|p| p.to_string()).join(", ");
        let found = Precision::ALL.into_iter().find(|p| p.to_string() == s);
        found.ok_or_else(|| Error::Input(format!("unknown precision `{s}`; use one of {}", known())))
    }
}

/// The minimum and maximum of each dimension, from embeddings like those to be quantized.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranges {
    low: Vec<f32>,
    high: Vec<f32>,
}

impl Ranges {
    /// The ranges of these embeddings. A single one has no range.
    pub fn of(embeddings: &Embeddings) -> Result<Ranges> {
        if embeddings.rows().count() < 2 {
            let what = "int8 and uint8 need the range of each dimension, and a single vector has none; give more vectors, or ranges";
            return Err(Error::Input(what.into()));
        }
        let fold = |start: f32, f: fn(f32, f32) -> f32| {
            let mut all = vec![start; embeddings.dimension];
            embeddings.rows().for_each(|row| all.iter_mut().zip(row).for_each(|(a, v)| *a = f(*a, *v)));
            all
        };
        Ok(Ranges { low: fold(f32::INFINITY, f32::min), high: fold(f32::NEG_INFINITY, f32::max) })
    }

    /// The minimum of each dimension.
    pub fn low(&self) -> &[f32] {
        &self.low
    }

    /// The maximum of each dimension.
    pub fn high(&self) -> &[f32] {
        &self.high
    }

    /// Ranges from known bounds.
    pub fn new(low: Vec<f32>, high: Vec<f32>) -> Result<Ranges> {
        if low.len() != high.len() || !low.iter().zip(&high).all(|(l, h)| l <= h) {
            return Err(Error::Input(
                "ranges need a lower and an upper bound for each dimension, in this order".into(),
            ));
        }
        Ok(Ranges { low, high })
    }
}

/// Quantized embeddings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantized {
    /// All rows, one after another. Signed formats are two's complement: [`Quantized::signed`]
    /// reads them.
    pub bytes: Vec<u8>,
    /// Bytes per row.
    pub dimension: usize,
    /// Whether the bytes are signed.
    pub is_signed: bool,
}

impl Quantized {
    /// The rows as bytes.
    pub fn rows(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks_exact(self.dimension.max(1))
    }

    /// The bytes of a row as signed numbers.
    pub fn signed(row: &[u8]) -> impl Iterator<Item = i8> {
        row.iter().map(|b| b.cast_signed())
    }
}

impl Embeddings {
    /// Quantizes the embeddings. `ranges` are for int8 and uint8; by default they are those of the
    /// embeddings.
    pub fn quantize(&self, precision: Precision, ranges: Option<&Ranges>) -> Result<Quantized> {
        let own_ranges;
        let is_signed = matches!(precision, Precision::Int8 | Precision::Binary);
        let flip = if is_signed { 128 } else { 0 };
        let (bytes, dimension): (Vec<u8>, usize) = match precision {
            Precision::Float32 => return Err(Error::Input("the vectors are float32 already".into())),
            Precision::Int8 | Precision::Uint8 => {
                let ranges = match ranges {
                    Some(ranges) => ranges,
                    None => {
                        own_ranges = Ranges::of(self)?;
                        &own_ranges
                    }
                };
                if ranges.low.len() != self.dimension {
                    let what = format!("ranges of {} dimensions for vectors of {}", ranges.low.len(), self.dimension);
                    return Err(Error::Input(what));
                }
                let bounds = || ranges.low.iter().zip(&ranges.high);
                let step = |(v, (low, high)): (&f32, (&f32, &f32))| {
                    let step = (high - low) / 255.0;
                    let steps = (v - low) / if step == 0.0 { 1.0 } else { step };
                    // `as` truncates the fraction and saturates.
                    (steps as u8).wrapping_sub(flip)
                };
                (self.rows().flat_map(|row| row.iter().zip(bounds()).map(step)).collect(), self.dimension)
            }
            Precision::Binary | Precision::Ubinary => {
                let byte = |bits: &[f32]| {
                    let set = bits.iter().enumerate().filter(|(_, v)| **v > 0.0);
                    set.fold(0u8, |byte, (i, _)| byte | 0x80 >> i).wrapping_sub(flip)
                };
                (self.rows().flat_map(|row| row.chunks(8).map(byte)).collect(), self.dimension.div_ceil(8))
            }
        };
        Ok(Quantized { bytes, dimension, is_signed })
    }
}
