//! Views of the KV cache: one head of a sequence's keys or values. Kernels read f32 lanes from
//! them, whether rows are packed or paged, floats or Q8 blocks.
#![allow(unsafe_code, reason = "SIMD lanes")]

use crate::cpu::Lanes;
use crate::cpu::elem::{Elem, get, put, vectors};
use crate::cpu::rows::{Reading, Rows};
use crate::kv_write::{BLOCK, KvTensor};
use crate::{Error, Result};
use half::f16;
use std::ops::Range;

/// Keys or values, open for reading.
pub(super) enum Source<'a> {
    Float(Reading<'a>),
    Q8 { codes: Reading<'a>, scales: Reading<'a> },
}

impl<'a> Source<'a> {
    pub(super) fn of(tensor: &'a KvTensor) -> Result<Self> {
        Ok(match tensor {
            KvTensor::Float(floats) => Source::Float(Reading::of(floats)?),
            KvTensor::Q8 { codes, scales } => Source::Q8 { codes: Reading::of(codes)?, scales: Reading::of(scales)? },
        })
    }

    /// The floats; an error for Q8.
    pub(super) fn floats(&self) -> Result<&Reading<'a>> {
        match self {
            Source::Float(floats) => Ok(floats),
            Source::Q8 { .. } => Err(Error::call("attention", "needs keys and values as floats, not in Q8 blocks")),
        }
    }
}

/// `[tokens, heads, size]` with the elements of a head contiguous.
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
            ref other => Err(Error::call(
                "attention",
                format!("the elements of a head must be contiguous, not in strides {other:?}"),
            )),
        }
    }

    pub(super) fn rows(&self, head: usize, segment: Range<usize>) -> Rows<'a, T> {
        let data = &self.data[segment.start * self.token + head * self.head..];
        Rows { data, rows: segment.len(), cols: self.size, stride: self.token }
    }
}

/// One head of a sequence's keys or values.
pub(super) struct HeadView<'a> {
    pub(super) source: &'a Source<'a>,
    pub(super) head: usize,
    pub(super) size: usize,
    pub(super) runs: &'a [Range<usize>],
}

impl HeadView<'_> {
    pub(super) fn floats<T: Elem>(&self) -> Result<Vec<Rows<'_, T>>> {
        let heads = Heads::<T>::of(self.source.floats()?, self.size)?;
        Ok(self.runs.iter().map(|run| heads.rows(self.head, run.clone())).collect())
    }

    pub(super) fn blocks(&self) -> Result<Vec<Q8Run<'_>>> {
        let Source::Q8 { codes, scales } = self.source else {
            return Err(Error::call("attention", "needs keys and values in Q8 blocks, not floats"));
        };
        let (codes, scales) = (Heads::<u8>::of(codes, self.size)?, Heads::<f16>::of(scales, self.size / BLOCK)?);
        let of = |run: &Range<usize>| Q8Run {
            codes: codes.rows(self.head, run.clone()),
            scales: scales.rows(self.head, run.clone()),
        };
        Ok(self.runs.iter().map(of).collect())
    }
}

/// Runs the body with `$k` and `$v` bound to the row runs of two [`HeadView`]s, in the element type
/// of both.
macro_rules! with_runs {
    ([$k:ident, $v:ident] = $views:expr => $body:expr) => {{
        let [k, v] = $views;
        match k.source {
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

/// Contiguous rows of one head.
pub(super) trait RowRun: Copy {
    type Row: KvRow;
    fn len(self) -> usize;
    /// Elements of a row.
    fn size(self) -> usize;
    fn kv_row(self, i: usize) -> Self::Row;
}

/// One key or one value.
pub(super) trait KvRow: Copy {
    fn size(self) -> usize;
    /// `lanes` elements from `at` on, zeros in the lanes beyond.
    fn at<S: Lanes>(self, at: usize, lanes: usize) -> S::V;
}

impl<'a, T: Elem> RowRun for Rows<'a, T> {
    type Row = &'a [T];

    #[inline(always)]
    fn len(self) -> usize {
        self.rows
    }
    #[inline(always)]
    fn size(self) -> usize {
        self.cols
    }
    #[inline(always)]
    fn kv_row(self, i: usize) -> &'a [T] {
        self.row(i)
    }
}

impl<T: Elem> KvRow for &[T] {
    #[inline(always)]
    fn size(self) -> usize {
        self.len()
    }
    #[inline(always)]
    fn at<S: Lanes>(self, at: usize, lanes: usize) -> S::V {
        get::<S, T>(self, at, lanes, 0.0)
    }
}

/// Rows in Q8 blocks.
#[derive(Clone, Copy)]
pub(super) struct Q8Run<'a> {
    codes: Rows<'a, u8>,
    scales: Rows<'a, f16>,
}

/// One row in Q8 blocks.
#[derive(Clone, Copy)]
pub(super) struct Q8Row<'a> {
    codes: &'a [u8],
    scales: &'a [f16],
}

impl<'a> RowRun for Q8Run<'a> {
    type Row = Q8Row<'a>;

    #[inline(always)]
    fn len(self) -> usize {
        self.codes.rows
    }
    #[inline(always)]
    fn size(self) -> usize {
        self.codes.cols
    }
    #[inline(always)]
    fn kv_row(self, i: usize) -> Q8Row<'a> {
        Q8Row { codes: self.codes.row(i), scales: self.scales.row(i) }
    }
}

impl KvRow for Q8Row<'_> {
    #[inline(always)]
    fn size(self) -> usize {
        self.codes.len()
    }

    /// Vectors start at multiples of their width, which divides a block: each lies in one block.
    #[inline(always)]
    fn at<S: Lanes>(self, at: usize, lanes: usize) -> S::V {
        const { assert!(BLOCK.is_multiple_of(S::WIDTH)) };
        debug_assert!(lanes == S::WIDTH && at.is_multiple_of(S::WIDTH));
        let codes = &self.codes[at..at + S::WIDTH];
        // SAFETY: the slice holds a vector; the contract of Lanes, kept by Isa::run.
        unsafe { S::mul(S::load_i8(codes.as_ptr().cast()), S::splat_f16(self.scales[at / BLOCK])) }
    }
}

/// Copies the elements of `row` to `to` as f32.
#[inline(always)]
pub(super) fn widen<S: Lanes>(row: impl KvRow, to: &mut [f32]) {
    vectors!(S, row.size(), |i, lanes| {
        put::<S, f32>(to, i, lanes, row.at::<S>(i, lanes));
    });
}
