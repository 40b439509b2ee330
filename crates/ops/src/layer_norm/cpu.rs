//! One row at a time: the sum goes to an f32 row that stays in the first-level cache, the statistics and the result follow.
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
                // A row of weights for each head, or one for all.
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

impl<T: Elem> Kernel for Row<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let n = self.x.len();
        let per = 1.0 / n as f32;
        // SAFETY: the contract of Lanes, kept by Isa::run.
        unsafe {
            let mut sum = S::splat(0.0);
            vectors!(S, n, |i, lanes| {
                let mut v = get::<S, T>(self.x, i, lanes, 0.0);
                if let Some(residual) = self.residual {
                    v = S::add(v, get::<S, T>(residual, i, lanes, 0.0));
                }
                put::<S, f32>(self.scratch, i, lanes, v);
                sum = S::add(sum, v);
            });
            let mean = S::sum(sum) * per;
            let mut squares = S::splat(0.0);
            vectors!(S, n, |i, lanes| {
                // The lanes beyond the row are the mean, so that they add nothing.
                let d = S::sub(get::<S, f32>(self.scratch, i, lanes, mean), S::splat(mean));
                squares = S::fma(d, d, squares);
            });
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
