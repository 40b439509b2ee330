//! One row at a time: x + residual goes to an f32 row in the L1 cache, then the statistics and the
//! result are computed from it.
#![allow(unsafe_code, reason = "SIMD lanes")]

use super::LayerNormOp;
use crate::Result;
use crate::cpu::elem::{Elem, get, put, vectors, with_elem};
use crate::cpu::rows::{Reading, fill_rows};
use crate::cpu::{Isa, Kernel, Lanes};
use crate::tensor::host;

pub(super) fn run(op: &LayerNormOp, isa: Isa) -> Result<candle_core::Tensor> {
    with_elem!("layer_norm", op.x.dtype(), T => {
        let (x, weight) = (Reading::of(&op.x)?, Reading::of(&op.norm.weight)?);
        let residual = op.residual.as_ref().map(Reading::of).transpose()?;
        let bias = op.norm.bias.as_ref().map(Reading::of).transpose()?;
        let (x, weight) = (x.lines::<T>()?, weight.slice::<T>()?);
        let residual = residual.as_ref().map(|r| r.rows::<T>()).transpose()?;
        let bias = bias.as_ref().map(|b| b.slice::<T>()).transpose()?;
        let y = fill_rows::<T>(x.rows, x.cols, x.cols, |i, out, scratch| {
            isa.run(Row {
                x: x.row(i),
                residual: residual.map(|r| r.row(i)),
                // One row of weights per head, or one for all.
                weight: &weight[i * x.cols % weight.len()..][..x.cols],
                bias,
                eps: op.norm.eps,
                scratch,
                out,
            });
        });
        host(y, op.x.dims())
    })
}

struct Row<'a, T> {
    x: &'a [T],
    residual: Option<&'a [T]>,
    weight: &'a [T],
    bias: Option<&'a [T]>,
    eps: f32,
    scratch: &'a mut [f32],
    out: &'a mut [T],
}

impl<T: Elem> Row<'_, T> {
    /// x + residual, also stored in the scratch row.
    ///
    /// # Safety
    /// The contract of Lanes.
    #[inline(always)]
    unsafe fn take<S: Lanes>(&mut self, at: usize, lanes: usize) -> S::V {
        let mut v = get::<S, T>(self.x, at, lanes, 0.0);
        if let Some(residual) = self.residual {
            // SAFETY: the caller's.
            v = unsafe { S::add(v, get::<S, T>(residual, at, lanes, 0.0)) };
        }
        put::<S, f32>(self.scratch, at, lanes, v);
        v
    }
}

impl<T: Elem> Kernel for Row<'_, T> {
    type Output = ();
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    fn run<S: Lanes>(mut self) {
        let n = self.x.len();
        let per = 1.0 / n as f32;
        // SAFETY: the contract of Lanes, kept by Isa::run.
        unsafe {
            // Four independent sums, because an addition takes four cycles.
            let (mut sums, mut squares) = ([S::splat(0.0); 4], [S::splat(0.0); 4]);
            let many = n / (4 * S::WIDTH) * (4 * S::WIDTH);
            for first in (0..many).step_by(4 * S::WIDTH) {
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = S::add(*sum, self.take::<S>(first + v * S::WIDTH, S::WIDTH));
                }
            }
            vectors!(S, n - many, |i, lanes| { sums[0] = S::add(sums[0], self.take::<S>(many + i, lanes)) });
            let mean = S::sum(S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3]))) * per;
            for first in (0..many).step_by(4 * S::WIDTH) {
                for (v, squares) in squares.iter_mut().enumerate() {
                    let d = S::sub(get::<S, f32>(self.scratch, first + v * S::WIDTH, S::WIDTH, mean), S::splat(mean));
                    *squares = S::fma(d, d, *squares);
                }
            }
            vectors!(S, n - many, |i, lanes| {
                // Lanes beyond the row are the mean, so that they add nothing.
                let d = S::sub(get::<S, f32>(self.scratch, many + i, lanes, mean), S::splat(mean));
                squares[0] = S::fma(d, d, squares[0]);
            });
            let squares = S::add(S::add(squares[0], squares[1]), S::add(squares[2], squares[3]));
            let scale = 1.0 / (S::sum(squares) * per + self.eps).sqrt();
            vectors!(S, n, |i, lanes| {
                let d = S::sub(get::<S, f32>(self.scratch, i, lanes, mean), S::splat(mean));
                let normal = S::mul(d, S::splat(scale));
                let bias = match self.bias {
                    Some(bias) => get::<S, T>(bias, i, lanes, 0.0),
                    None => S::splat(0.0),
                };
                put::<S, T>(self.out, i, lanes, S::fma(normal, get::<S, T>(self.weight, i, lanes, 0.0), bias));
            });
        }
    }
}
