//! One row at a time through an f32 row in the L1 cache. Attention shares `exp_row`.
#![allow(unsafe_code, reason = "SIMD lanes")]

use super::SoftmaxOp;
use crate::Result;
use crate::cpu::elem::{Elem, get, put, vectors, with_elem};
use crate::cpu::gemm::copy_widened;
use crate::cpu::rows::{Reading, fill_rows};
use crate::cpu::{Isa, Kernel, Lanes, math};
use crate::tensor::host;

pub(super) fn run(op: &SoftmaxOp, isa: Isa) -> Result<candle_core::Tensor> {
    with_elem!("softmax", op.x.dtype(), T => {
        let x = Reading::of(&op.x)?;
        let x = x.rows::<T>()?;
        let y = fill_rows::<T>(x.rows, x.cols, x.cols, |i, out, e| isa.run(Row { x: x.row(i), e, out }));
        host(y, op.x.dims())
    })
}

struct Row<'a, T> {
    x: &'a [T],
    e: &'a mut [f32],
    out: &'a mut [T],
}

impl<T: Elem> Kernel for Row<'_, T> {
    type Output = ();
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    fn run<S: Lanes>(self) {
        copy_widened::<S, T>(self.x, self.e);
        let sum = exp_row::<S>(self.e, 1.0, None);
        vectors!(S, self.x.len(), |i, lanes| {
            // SAFETY: the contract of Lanes, kept by Isa::run.
            let v = unsafe { S::div(get::<S, f32>(self.e, i, lanes, 0.0), S::splat(sum)) };
            put::<S, T>(self.out, i, lanes, v);
        });
    }
}

/// Replaces scores by exp(scale · score + bias − largest) and returns their sum. Subtracting first
/// keeps exp from overflowing.
#[inline(always)]
pub(crate) fn exp_row<S: Lanes>(scores: &mut [f32], scale: f32, bias: Option<&[f32]>) -> f32 {
    // SAFETY: the contract of Lanes, kept by Isa::run.
    unsafe {
        let largest = match bias {
            // Without a bias, scaling keeps the largest score the largest, so that the next pass
            // can scale.
            None if scale > 0.0 => {
                let mut largest = S::splat(f32::NEG_INFINITY);
                vectors!(S, scores.len(), |i, lanes| {
                    // Lanes beyond the row repeat one of its scores, which does not change the
                    // maximum.
                    largest = S::max(largest, get::<S, f32>(scores, i, lanes, scores[i]));
                });
                S::largest(largest) * scale
            }
            _ => {
                let mut largest = S::splat(f32::NEG_INFINITY);
                vectors!(S, scores.len(), |i, lanes| {
                    let mut v = S::mul(get::<S, f32>(scores, i, lanes, scores[i]), S::splat(scale));
                    if let Some(bias) = bias {
                        v = S::add(v, get::<S, f32>(bias, i, lanes, bias[i]));
                    }
                    put::<S, f32>(scores, i, lanes, v);
                    largest = S::max(largest, v);
                });
                S::largest(largest)
            }
        };
        let scale = S::splat(if bias.is_none() && scale > 0.0 { scale } else { 1.0 });
        let below = S::splat(-largest);
        let mut sum = S::splat(0.0);
        let mut done = 0;
        while done + 4 * S::WIDTH <= scores.len() {
            let mut four = [sum; 4];
            for (i, x) in four.iter_mut().enumerate() {
                *x = S::fma(get::<S, f32>(scores, done + i * S::WIDTH, S::WIDTH, 0.0), scale, below);
            }
            let four = math::exp::<S, 4>(four);
            for (i, e) in four.iter().enumerate() {
                put::<S, f32>(scores, done + i * S::WIDTH, S::WIDTH, *e);
            }
            sum = S::add(sum, S::add(S::add(four[0], four[1]), S::add(four[2], four[3])));
            done += 4 * S::WIDTH;
        }
        while done + S::WIDTH <= scores.len() {
            let [e] = math::exp::<S, 1>([S::fma(get::<S, f32>(scores, done, S::WIDTH, 0.0), scale, below)]);
            put::<S, f32>(scores, done, S::WIDTH, e);
            sum = S::add(sum, e);
            done += S::WIDTH;
        }
        let mut rest = 0.0;
        if done < scores.len() {
            let lanes = scores.len() - done;
            let [e] = math::exp::<S, 1>([S::fma(get::<S, f32>(scores, done, lanes, 0.0), scale, below)]);
            put::<S, f32>(scores, done, lanes, e);
            // Lanes beyond the row hold no scores and are left out of the sum.
            rest = scores[done..].iter().sum();
        }
        S::sum(sum) + rest
    }
}
