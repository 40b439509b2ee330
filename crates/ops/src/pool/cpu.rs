//! One sequence and mode at a time; a vector of columns stays in a register during the loop over
//! tokens.
#![allow(unsafe_code, reason = "SIMD lanes")]

use super::{PoolOp, Pooling};
use crate::Result;
use crate::cpu::elem::{Elem, get, put, vectors, with_elem};
use crate::cpu::rows::{Reading, Rows, fill_rows};
use crate::cpu::{Isa, Kernel, Lanes, math};
use crate::tensor::host;
use std::ops::Range;

pub(super) fn run(op: &PoolOp, isa: Isa) -> Result<candle_core::Tensor> {
    let (modes, n) = (op.modes.len(), op.size());
    with_elem!("pool", op.x.dtype(), T => {
        let x = Reading::of(&op.x)?;
        let x = x.rows::<T>()?;
        // A row of the result is one mode of one sequence.
        let y = fill_rows::<f32>(op.segments.count() * modes, n, 0, |i, out, _| {
            let sequence = i / modes;
            let first = op.skip[sequence];
            isa.run(Columns { x, rows: op.rows(sequence), first, mode: op.modes[i % modes], out });
        });
        host(y, &[op.segments.count(), modes * n])
    })
}

struct Columns<'a, T> {
    x: Rows<'a, T>,
    rows: Range<usize>,
    /// The position of the first of these rows in its sequence, for weighted-mean.
    first: usize,
    mode: Pooling,
    out: &'a mut [f32],
}

impl<T: Elem> Kernel for Columns<'_, T> {
    type Output = ();
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let Columns { x, rows, first, mode, out } = self;
        let count = rows.len() as f32;
        let weight = |row: usize| (first + row - rows.start + 1) as f32;
        let single = matches!(mode, Pooling::Cls | Pooling::LastToken);
        let total: f32 = match mode {
            Pooling::Mean => count,
            Pooling::MeanSqrtLen => count.sqrt(),
            Pooling::WeightedMean => rows.clone().map(weight).sum(),
            Pooling::Cls | Pooling::Max | Pooling::LastToken => 1.0,
        };
        vectors!(S, out.len(), |i, lanes| {
            // SAFETY: the contract of Lanes, kept by Isa::run.
            unsafe {
                let one = match mode {
                    Pooling::LastToken => rows.end - 1,
                    _ => rows.start,
                };
                let mut v = get::<S, T>(x.row(one), i, lanes, 0.0);
                if mode == Pooling::WeightedMean {
                    v = S::mul(v, S::splat(weight(one)));
                }
                for row in rows.start + 1..if single { rows.start } else { rows.end } {
                    let next = get::<S, T>(x.row(row), i, lanes, 0.0);
                    v = match mode {
                        Pooling::Max => math::larger::<S>(v, next),
                        Pooling::WeightedMean => S::fma(next, S::splat(weight(row)), v),
                        _ => S::add(v, next),
                    };
                }
                put::<S, f32>(out, i, lanes, S::div(v, S::splat(total)));
            }
        });
    }
}
