//! The [`Format`] trait: how a product unpacks a format's lines to bytes and its header to scales.
#![allow(unsafe_code, reason = "SIMD lanes; chunks are whole by `Packed`")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "the trait's own contract is the reason for every block")]

use super::Quant;
use crate::cpu::Lanes;
use crate::cpu::ints::{Ints, ROWS};

/// A vector with one f32 per row of a strip.
pub(super) type Floats<S> = <<S as Ints>::L as Lanes>::V;

/// What a product must correct besides codes and scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Correction {
    /// Codes stand for `code − offset` (zero point): sums of products start at −offset · Σ x, in
    /// `parts` parts per 32 elements.
    Start { offset: i32, parts: usize },
    /// Each part has a minimum: it is multiplied by the scale of x times Σ x.
    Sums { parts: usize },
}

impl Correction {
    /// Number of parts per 32 elements.
    #[inline(always)]
    pub(super) fn parts(self) -> usize {
        match self {
            Correction::Start { parts, .. } | Correction::Sums { parts } => parts,
        }
    }
}

/// The scales of 32 elements and their minimums; one or two of each.
pub(super) struct Scales<S: Ints> {
    pub(super) scale: [Floats<S>; 2],
    pub(super) min: [Floats<S>; 2],
}

/// A block format, as [`super::product`] uses it. The steps of a chunk are its runs of 32 elements.
///
/// # Safety
/// `chunk` points to a whole chunk (see [`super::packed`]), `step` lies in it and `strip` in the
/// line; the contract of [`Ints`].
pub(super) trait Format {
    const QUANT: Quant;
    /// Elements of a block.
    const BLOCK: usize;
    /// Bits of the bytes that `lines` returns; 8 means signed bytes.
    const BITS: u32;
    /// Scales per 32 elements: 1 or 2.
    const PARTS: usize;
    /// Zero point that is subtracted from each byte, unless it is wide; `None` for formats with
    /// minimums.
    const OFFSET: Option<i32>;
    /// The unpacked scales of a chunk.
    type Head;

    unsafe fn head(chunk: *const u8) -> Self::Head;
    /// The eight lines of a step, 4 elements per row each.
    unsafe fn lines<S: Ints>(chunk: *const u8, step: usize, strip: usize) -> [S::B; 8];
    unsafe fn scales<S: Ints>(chunk: *const u8, head: &Self::Head, step: usize, strip: usize) -> Scales<S>;
}

/// Bytes of a chunk.
pub(super) fn chunk_bytes<F: Format>() -> usize {
    ROWS * F::QUANT.block().1
}

/// Runs the body with `$f` as the format that `$quant` names.
macro_rules! with_format {
    ($quant:expr, $f:ident => $body:expr) => {
        with_format!($quant, $f, $body, Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2K Q3K Q4K Q5K Q6K Iq4Nl Iq4Xs Mxfp4 Tq2_0)
    };
    ($quant:expr, $f:ident, $body:expr, $($name:ident)*) => {
        match $quant {
            $(Quant::$name => {
                type $f = $crate::quant::formats::$name;
                $body
            })*
            _ => unreachable!("formats that do not pack are refused by `Packed::pack`"),
        }
    };
}
pub(super) use with_format;

/// The correction that products with `quant` need on `S`.
pub(super) fn correction<S: Ints>(quant: Quant) -> Correction {
    fn of<S: Ints, F: Format>() -> Correction {
        match F::OFFSET {
            Some(_) if F::BITS == 8 => Correction::Start { offset: S::RAISE.into(), parts: F::PARTS },
            Some(offset) => Correction::Start { offset, parts: F::PARTS },
            None => Correction::Sums { parts: F::PARTS },
        }
    }
    with_format!(quant, F => of::<S, F>())
}
