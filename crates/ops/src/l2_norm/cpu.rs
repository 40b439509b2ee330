//! L2-normalizes in two passes over a row: the sum of squares, then the scaling.
#![allow(unsafe_code, reason = "SIMD lanes")]

use super::{L2NormOp, MIN_NORM};
use crate::Result;
use crate::cpu::elem::{Elem, get, put, vectors, with_elem};
use crate::cpu::rows::{Reading, fill_rows};
use crate::cpu::{Isa, Kernel, Lanes};
use crate::tensor::host;

pub(super) fn run(op: &L2NormOp, isa: Isa) -> Result<candle_core::Tensor> {
    with_elem!("l2_norm", op.x.dtype(), T => {
        let x = Reading::of(&op.x)?;
        let x = x.rows::<T>()?;
        let y = fill_rows::<T>(x.rows, x.cols, 0, |i, out, _| isa.run(Row { x: x.row(i), out }));
        host(y, op.x.dims())
    })
}

struct Row<'a, T> {
    x: &'a [T],
    out: &'a mut [T],
}

impl<T: Elem> Kernel for Row<'_, T> {
    type Output = ();
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    fn run<S: Lanes>(self) {
        // SAFETY: the contract of Lanes, kept by Isa::run.
        unsafe {
            let mut squares = S::splat(0.0);
            vectors!(S, self.x.len(), |i, lanes| {
                let v = get::<S, T>(self.x, i, lanes, 0.0);
                squares = S::fma(v, v, squares);
            });
            let norm = S::sum(squares).sqrt();
            // Not `max`, which would drop a NaN.
            let norm = S::splat(if norm < MIN_NORM { MIN_NORM } else { norm });
            vectors!(S, self.x.len(), |i, lanes| {
                put::<S, T>(self.out, i, lanes, S::div(get::<S, T>(self.x, i, lanes, 0.0), norm));
            });
        }
    }
}
