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
    /// IEEE double, for [eager arrays](crate::eager) only.
    F64,
    /// Signed integers, for [eager arrays](crate::eager) only.
    I64,
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
            DType::F64 | DType::I64 => 8,
        }
    }

    /// Half the distance from 1.0 to the next number: the largest relative error of one rounding.
    pub fn unit_roundoff(self) -> f64 {
        match self {
            DType::F32 => 2f64.powi(-24),
            DType::BF16 => 2f64.powi(-8),
            DType::F16 => 2f64.powi(-11),
            DType::F64 => 2f64.powi(-53),
            DType::U32 | DType::U8 | DType::I64 => 0.0,
        }
    }

    /// Whether elements have a fraction.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::BF16 | DType::F16 | DType::F64)
    }

    /// Whether a number is within the range of the integers of this format; true for floats.
    pub(crate) fn holds(self, number: f64) -> bool {
        match self {
            DType::U32 => (0.0..=f64::from(u32::MAX)).contains(&number),
            DType::U8 => (0.0..=255.0).contains(&number),
            // 2^63 itself is the first number outside.
            DType::I64 => (-(2f64.powi(63))..2f64.powi(63)).contains(&number),
            DType::F32 | DType::BF16 | DType::F16 | DType::F64 => true,
        }
    }

    pub(crate) fn candle(self) -> candle_core::DType {
        match self {
            DType::F32 => candle_core::DType::F32,
            DType::BF16 => candle_core::DType::BF16,
            DType::F16 => candle_core::DType::F16,
            DType::U32 => candle_core::DType::U32,
            DType::U8 => candle_core::DType::U8,
            DType::F64 => candle_core::DType::F64,
            DType::I64 => candle_core::DType::I64,
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
            DType::F64 => "f64",
            DType::I64 => "i64",
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
