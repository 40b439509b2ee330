//! The number formats of tensors.

use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// How a tensor's elements are stored. Sums are always accumulated in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DType {
    /// IEEE single.
    F32,
    /// Brain float: f32's exponent, 8 bits of precision.
    BF16,
    /// IEEE half: 11 bits of precision, largest value 65,504.
    F16,
    /// Ids and positions.
    U32,
    /// Bytes of quantized blocks; their values depend on the blocks' scales.
    U8,
}

impl DType {
    /// The three formats of activations and weights.
    pub const FLOATS: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::BF16 | DType::F16 => 2,
            DType::U8 => 1,
        }
    }

    /// Half the distance from 1.0 to the next number: the largest relative error of one rounding.
    pub fn unit_roundoff(self) -> f64 {
        match self {
            DType::F32 => 2f64.powi(-24),
            DType::BF16 => 2f64.powi(-8),
            DType::F16 => 2f64.powi(-11),
            DType::U32 | DType::U8 => 0.0,
        }
    }

    pub(crate) fn candle(self) -> candle_core::DType {
        match self {
            DType::F32 => candle_core::DType::F32,
            DType::BF16 => candle_core::DType::BF16,
            DType::F16 => candle_core::DType::F16,
            DType::U32 => candle_core::DType::U32,
            DType::U8 => candle_core::DType::U8,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DType::F32 => "f32",
            DType::BF16 => "bf16",
            DType::F16 => "f16",
            DType::U32 => "u32",
            DType::U8 => "u8",
        })
    }
}

impl FromStr for DType {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        DType::FLOATS
            .into_iter()
            .find(|d| d.to_string() == s)
            .ok_or_else(|| Error::Parse(format!("unknown dtype `{s}`; one of f32, bf16, f16")))
    }
}
