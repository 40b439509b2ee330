//! One head of a sequence's keys or values, wherever its rows are and whatever they are kept in: kernels read f32 lanes of them.
#![allow(unsafe_code, reason = "SIMD lanes")]

use crate::cpu::Lanes;
use crate::cpu::elem::{Elem, get, put, vectors};
use crate::cpu::rows::{Reading, Rows};
use crate::kv_write::{BLOCK, KvTensor};
use crate::{Error, Result};
use half::f16;
use std::ops::Range;

/// Keys or values, kept readable.
pub(super) enum Source<'a> {
    Float(Reading<'a>),
    Q8 { codes: Reading<'a>, scales: Reading<'a> },
}

impl<'a> Source<'a> {
    pub(super) fn of(vectors: &'a KvTensor) -> Result<Self> {
        Ok(match vectors {
            KvTensor::Float(floats) => Source::Float(Reading::of(floats)?),
            KvTensor::Q8 { codes, scales } => Source::Q8 { codes: Reading::of(codes)?, scales: Reading::of(scales)? },
        })
    }

    /// The floats, for what is made for no others.
    pub(super) fn floats(&self) -> Result<&Reading<'a>> {
        match self {
            Source::Float(floats) => Ok(floats),
            Source::Q8 { .. } => Err(Error::call("attention", "needs floats, not blocks")),
        }
    }
}

/// `[tokens, heads, size]` with elements of a head next to each other.
#[derive(Clone, Copy)]
pub(super) struct Heads<'a, T> {
    data: &'a [T],
    token: usize,
    head: usize,
    size: usize,
}

impl<'a, T: candle_core::WithDType> Heads<'a, T> {
    pub(super) fn of(reading: &'a Reading<'_>, size: usize) -> Result<Self> {
        match *reading.strides() {
            [token, head, 1] => Ok(Heads { data: reading.onwards()?, token, head, size }),
            // An axis of length one may carry any stride.
            [token, head, _] if size == 1 => Ok(Heads { data: reading.onwards()?, token, head, size }),
            ref other => Err(Error::call("attention", format!("heads with strides {other:?}"))),
        }
    }

    pub(super) fn rows(&self, head: usize, segment: Range<usize>) -> Rows<'a, T> {
        let data = &self.data[segment.start * self.token + head * self.head..];
        Rows { data, rows: segment.len(), cols: self.size, stride: self.token }
    }
}

/// One head of a sequence's keys or values.
pub(super) struct Lines<'a> {
    pub(super) from: &'a Source<'a>,
    pub(super) head: usize,
    pub(super) size: usize,
    pub(super) runs: &'a [Range<usize>],
}

impl Lines<'_> {
    pub(super) fn floats<T: Elem>(&self) -> Result<Vec<Rows<'_, T>>> {
        let heads = Heads::<T>::of(self.from.floats()?, self.size)?;
        Ok(self.runs.iter().map(|run| heads.rows(self.head, run.clone())).collect())
    }

    pub(super) fn blocks(&self) -> Result<Vec<Blocks<'_>>> {
        let Source::Q8 { codes, scales } = self.from else {
            return Err(Error::call("attention", "needs blocks, not floats"));
        };
        let (codes, scales) = (Heads::<u8>::of(codes, self.size)?, Heads::<f16>::of(scales, self.size / BLOCK)?);
        let of = |run: &Range<usize>| Blocks {
            codes: codes.rows(self.head, run.clone()),
            scales: scales.rows(self.head, run.clone()),
        };
        Ok(self.runs.iter().map(of).collect())
    }
}

/// Runs the body with `$k` and `$v` standing for the runs of rows of two [`Lines`], in whatever both are kept in.
macro_rules! with_runs {
    ([$k:ident, $v:ident] = $lines:expr => $body:expr) => {{
        let [k, v] = $lines;
        match k.from {
            $crate::attention::kv_view::Source::Float(floats) => {
                $crate::cpu::elem::with_elem!("attention", floats.dtype()?, C => {
                    let ($k, $v) = (&*k.floats::<C>()?, &*v.floats::<C>()?);
                    $body;
                    Ok(())
                })
            }
            $crate::attention::kv_view::Source::Q8 { .. } => {
                let ($k, $v) = (&*k.blocks()?, &*v.blocks()?);
                $body;
                Ok(())
            }
        }
    }};
}
pub(super) use with_runs;

/// Rows next to each other.
pub(super) trait Run: Copy {
    /// One of them.
    type Line: Line;
    fn len(self) -> usize;
    /// Elements of a row.
    fn size(self) -> usize;
    fn line(self, i: usize) -> Self::Line;
}

/// The elements of one key or value.
pub(super) trait Line: Copy {
    fn size(self) -> usize;
    /// `lanes` elements from `at` on, and zeros in the lanes beyond them.
    fn at<S: Lanes>(self, at: usize, lanes: usize) -> S::V;
}

impl<'a, T: Elem> Run for Rows<'a, T> {
    type Line = &'a [T];

    #[inline(always)]
    fn len(self) -> usize {
        self.rows
    }
    #[inline(always)]
    fn size(self) -> usize {
        self.cols
    }
    #[inline(always)]
    fn line(self, i: usize) -> &'a [T] {
        self.row(i)
    }
}

impl<T: Elem> Line for &[T] {
    #[inline(always)]
    fn size(self) -> usize {
        self.len()
    }
    #[inline(always)]
    fn at<S: Lanes>(self, at: usize, lanes: usize) -> S::V {
        get::<S, T>(self, at, lanes, 0.0)
    }
}

/// Rows in blocks.
#[derive(Clone, Copy)]
pub(super) struct Blocks<'a> {
    codes: Rows<'a, u8>,
    scales: Rows<'a, f16>,
}

/// One of them.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    codes: &'a [u8],
    scales: &'a [f16],
}

impl<'a> Run for Blocks<'a> {
    type Line = Block<'a>;

    #[inline(always)]
    fn len(self) -> usize {
        self.codes.rows
    }
    #[inline(always)]
    fn size(self) -> usize {
        self.codes.cols
    }
    #[inline(always)]
    fn line(self, i: usize) -> Block<'a> {
        Block { codes: self.codes.row(i), scales: self.scales.row(i) }
    }
}

impl Line for Block<'_> {
    #[inline(always)]
    fn size(self) -> usize {
        self.codes.len()
    }

    /// Vectors begin at multiples of their width, which a block is a multiple of: each lies in one block and is whole.
    #[inline(always)]
    fn at<S: Lanes>(self, at: usize, lanes: usize) -> S::V {
        const { assert!(BLOCK.is_multiple_of(S::WIDTH)) };
        debug_assert!(lanes == S::WIDTH && at.is_multiple_of(S::WIDTH));
        let codes = &self.codes[at..at + S::WIDTH];
        // SAFETY: the slice holds a vector; the contract of Lanes, kept by Isa::run.
        unsafe { S::mul(S::load_i8(codes.as_ptr().cast()), S::splat_f16(self.scales[at / BLOCK])) }
    }
}

/// `to` becomes the elements of `line`.
#[inline(always)]
pub(super) fn widen<S: Lanes>(line: impl Line, to: &mut [f32]) {
    vectors!(S, line.size(), |i, lanes| {
        put::<S, f32>(to, i, lanes, line.at::<S>(i, lanes));
    });
}
