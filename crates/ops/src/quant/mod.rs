//! Quantized weights: the block formats of GGUF files, and y = x · Wᵀ on them, mostly without
//! dequantizing them first (see `Quant::becomes_floats`).
//!
//! A block is 32 or 256 consecutive elements of a row with their scales. [`dequantize`] supports
//! every format; formats that [`Quant::packs`] stay quantized in memory, rearranged ([`Packed`])
//! for integer dot products ([`multiply`]).

mod activations;
mod blocks;
#[cfg(cuda)]
pub(crate) mod cuda;
mod dequantize;
mod format;
mod formats;
mod grids;
mod iq;
#[cfg(metal)]
pub(crate) mod metal;
mod packed;
mod product;
mod quantize;
mod random_blocks;
#[cfg(test)]
mod test_matmul;
#[cfg(test)]
mod tests;
mod unpack;

pub(crate) use activations::Activations;
pub use dequantize::dequantize;
pub(crate) use packed::{PASS_BYTES, Packed};
pub(crate) use product::{Split, multiply};
pub(crate) use quantize::{q8_0_apart, quantize};
pub(crate) use random_blocks::make_scales_finite;

use crate::DType;
use crate::{Device, Error, Result};
use std::fmt;
use std::str::FromStr;

/// A block format of GGML.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Quant {
    /// 4 bits, a scale per 32.
    Q4_0,
    /// 4 bits, a scale and a minimum per 32.
    Q4_1,
    /// 5 bits, a scale per 32.
    Q5_0,
    /// 5 bits, a scale and a minimum per 32.
    Q5_1,
    /// 8 bits, a scale per 32.
    Q8_0,
    /// 2 bits, 4-bit scales and minimums per 16.
    Q2K,
    /// 3 bits, 6-bit scales per 16.
    Q3K,
    /// 4 bits, 6-bit scales and minimums per 32.
    Q4K,
    /// 5 bits, 6-bit scales and minimums per 32.
    Q5K,
    /// 6 bits, 8-bit scales per 16.
    Q6K,
    /// 4 bits that index a non-linear codebook, a scale per 32.
    Iq4Nl,
    /// 4 bits that index a non-linear codebook, 6-bit scales per 32.
    Iq4Xs,
    /// 4-bit floats, a power of two per 32.
    Mxfp4,
    /// 2 bits for −1, 0 and 1, a scale per 256.
    Tq2_0,
    /// 1.69 bits for −1, 0 and 1, a scale per 256.
    Tq1_0,
    /// 1.56 bits: groups of eight −1, 0 and 1 from a grid.
    Iq1S,
    /// 1.75 bits: groups of eight −1, 0 and 1 from a grid.
    Iq1M,
    /// 2.06 bits: groups of eight from a grid, with signs.
    Iq2Xxs,
    /// 2.31 bits: groups of eight from a grid, with signs.
    Iq2Xs,
    /// 2.56 bits: groups of eight from a grid, with signs.
    Iq2S,
    /// 3.06 bits: groups of four from a grid, with signs.
    Iq3Xxs,
    /// 3.44 bits: groups of four from a grid, with signs.
    Iq3S,
}

/// Format, its name, GGML's type number, elements and bytes of a block.
static TABLE: [(Quant, &str, u32, usize, usize); 22] = [
    (Quant::Q4_0, "q4_0", 2, 32, 18),
    (Quant::Q4_1, "q4_1", 3, 32, 20),
    (Quant::Q5_0, "q5_0", 6, 32, 22),
    (Quant::Q5_1, "q5_1", 7, 32, 24),
    (Quant::Q8_0, "q8_0", 8, 32, 34),
    (Quant::Q2K, "q2_k", 10, 256, 84),
    (Quant::Q3K, "q3_k", 11, 256, 110),
    (Quant::Q4K, "q4_k", 12, 256, 144),
    (Quant::Q5K, "q5_k", 13, 256, 176),
    (Quant::Q6K, "q6_k", 14, 256, 210),
    (Quant::Iq4Nl, "iq4_nl", 20, 32, 18),
    (Quant::Iq4Xs, "iq4_xs", 23, 256, 136),
    (Quant::Mxfp4, "mxfp4", 39, 32, 17),
    (Quant::Tq2_0, "tq2_0", 35, 256, 66),
    (Quant::Tq1_0, "tq1_0", 34, 256, 54),
    (Quant::Iq1S, "iq1_s", 19, 256, 50),
    (Quant::Iq1M, "iq1_m", 29, 256, 56),
    (Quant::Iq2Xxs, "iq2_xxs", 16, 256, 66),
    (Quant::Iq2Xs, "iq2_xs", 17, 256, 74),
    (Quant::Iq2S, "iq2_s", 22, 256, 82),
    (Quant::Iq3Xxs, "iq3_xxs", 18, 256, 98),
    (Quant::Iq3S, "iq3_s", 21, 256, 110),
];

impl Quant {
    /// Every format.
    pub fn all() -> impl Iterator<Item = Quant> {
        TABLE.into_iter().map(|(quant, ..)| quant)
    }

    /// Elements and bytes of a block.
    pub fn block(self) -> (usize, usize) {
        let (.., elements, bytes) = TABLE[self as usize];
        (elements, bytes)
    }

    /// Bytes of `elements` elements, or `None` if they are not whole blocks.
    pub fn bytes(self, elements: usize) -> Option<usize> {
        let (per_block, bytes) = self.block();
        if elements.is_multiple_of(per_block) { (elements / per_block).checked_mul(bytes) } else { None }
    }

    /// The format of this GGML type number.
    pub fn from_ggml(number: u32) -> Option<Quant> {
        TABLE.iter().find(|row| row.2 == number).map(|row| row.0)
    }

    /// The GGML type number.
    pub fn ggml(self) -> u32 {
        TABLE[self as usize].2
    }

    /// Whether a weight in this format stays in its blocks on this device; in any other format it
    /// becomes floats at load.
    pub(crate) fn stays(self, device: Device) -> bool {
        match device {
            Device::Cpu => self.packs(),
            Device::Metal(_) | Device::Cuda(_) => true,
        }
    }

    /// Whether a product on CUDA with this many rows of activations dequantizes the blocks, a part
    /// at a time, for cuBLASLt: many rows share the cost. bf16 rounds weights of 8 bits visibly,
    /// but its rounding is small beside the error of formats with fewer bits.
    pub(crate) fn becomes_floats(self, activations: DType, rows: usize) -> bool {
        let has_few_bits = self.bytes(256).is_some_and(|bytes| bytes < 256 * 7 / 8);
        let is_close = activations == DType::F16 || activations == DType::BF16 && has_few_bits;
        is_close && rows >= DEQUANTIZE_ROWS
    }

    /// Whether CPU kernels multiply the format without dequantizing it.
    pub fn packs(self) -> bool {
        blocks::Shape::of(self).is_some()
    }
}

/// Rows of x from which a product on CUDA in half precision dequantizes its blocks.
pub(crate) const DEQUANTIZE_ROWS: usize = 128;

/// Rows of W that such a product dequantizes at a time, for k inputs: whole tiles of the products
/// in floats, in at most this many bytes.
pub(crate) fn rows_as_floats(k: usize, dtype: DType) -> usize {
    const BYTES: usize = 128 << 20;
    const TILE: usize = 256;
    (BYTES / (k * dtype.size()).max(1) / TILE * TILE).max(TILE)
}

/// Bytes of 8-bit activations as CUDA kernels read them: with a scale per 32 and a sum per 16.
pub(crate) fn activation_bytes(rows: usize, k: usize) -> usize {
    rows * k + 4 * (rows * k / 32 + rows * k / 16)
}

impl fmt::Display for Quant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(TABLE[*self as usize].1)
    }
}

impl FromStr for Quant {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        TABLE.iter().find(|row| row.1 == s).map(|row| row.0).ok_or_else(|| {
            let names = TABLE.iter().map(|row| row.1).collect::<Vec<_>>().join(", ");
            Error::Parse(format!("unknown quantization `{s}`; one of {names}"))
        })
    }
}
