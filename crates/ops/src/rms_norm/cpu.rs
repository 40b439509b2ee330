//! Two passes over a row: the sum of squares, then the scaling, with a rounding to T before the
//! weight.
#![allow(unsafe_code, reason = "SIMD lanes")]

use super::RmsNormOp;
use crate::Result;
use crate::cpu::elem::{Elem, get, put, vectors, with_elem};
use crate::cpu::rows::{Reading, fill_rows};
use crate::cpu::{Isa, Kernel, Lanes};
use crate::tensor::host;

pub(super) fn run(op: &RmsNormOp, isa: Isa) -> Result<candle_core::Tensor> {
    with_elem!("rms_norm", op.x.dtype(), T => {
        let (x, weight) = (Reading::of(&op.x)?, Reading::of(&op.norm.weight)?);
        let (x, weight) = (x.lines::<T>()?, weight.slice::<T>()?);
        let residual = op.residual.as_ref().map(Reading::of).transpose()?;
        let residual = residual.as_ref().map(|r| r.lines::<T>()).transpose()?;
        let y = fill_rows::<T>(x.rows, x.cols, 0, |i, out, _| {
            let residual = residual.map(|r| r.row(i));
            isa.run(Row { x: x.row(i), weight, eps: op.norm.eps, from_one: op.norm.from_one, residual, out });
        });
        host(y, op.x.dims())
    })
}

struct Row<'a, T> {
    x: &'a [T],
    weight: &'a [T],
    eps: f32,
    from_one: bool,
    residual: Option<&'a [T]>,
    out: &'a mut [T],
}

impl<T: Elem> Kernel for Row<'_, T> {
    type Output = ();
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let n = self.x.len();
        // SAFETY: the contract of Lanes, kept by Isa::run.
        unsafe {
            let mut squares = S::splat(0.0);
            vectors!(S, n, |i, lanes| {
                let v = get::<S, T>(self.x, i, lanes, 0.0);
                squares = S::fma(v, v, squares);
            });
            let scale = 1.0 / (S::sum(squares) / n as f32 + self.eps).sqrt();
            vectors!(S, n, |i, lanes| {
                let mut v = S::mul(get::<S, T>(self.x, i, lanes, 0.0), S::splat(scale));
                let mut w = get::<S, T>(self.weight, i, lanes, 0.0);
                if self.from_one {
                    w = S::add(S::splat(1.0), w);
                } else {
                    // Writing and reading it again rounds it to T.
                    put::<S, T>(self.out, i, lanes, v);
                    v = get::<S, T>(self.out, i, lanes, 0.0);
                }
                put::<S, T>(self.out, i, lanes, S::mul(v, w));
                if let Some(residual) = self.residual {
                    let v = S::add(get::<S, T>(self.out, i, lanes, 0.0), get::<S, T>(residual, i, lanes, 0.0));
                    put::<S, T>(self.out, i, lanes, v);
                }
            });
        }
    }
}
