//! One head of one token at a time.
#![allow(unsafe_code, reason = "SIMD lanes")]

use super::RotaryOp;
use crate::cpu::elem::{Elem, get, put, vectors, with_elem};
use crate::cpu::rows::{Reading, fill_rows};
use crate::cpu::{Isa, Kernel, Lanes};
use crate::tensor::host;
use crate::{Error, Result};

pub(super) fn run(op: &RotaryOp, isa: Isa) -> Result<candle_core::Tensor> {
    let [tokens, heads, size] = *op.x.dims() else { return Err(Error::call("rotary", "x must have three axes")) };
    let (cos, sin) = (Reading::of(&op.rotary.cos)?, Reading::of(&op.rotary.sin)?);
    let (cos, sin) = (cos.rows::<f32>()?, sin.rows::<f32>()?);
    let positions = Reading::of(&op.positions)?;
    let positions = positions.slice::<u32>()?;
    if let Some(p) = positions.iter().find(|p| **p as usize >= cos.rows) {
        return Err(Error::call("rotary", format!("position {p} is beyond the table of {} positions", cos.rows)));
    }
    with_elem!("rotary", op.x.dtype(), T => {
        let x = Reading::of(&op.x)?;
        let [token, head, 1] = *x.strides() else {
            return Err(Error::call("rotary", format!("the elements of a head must be contiguous, not in strides {:?}", x.strides())));
        };
        let data = x.onwards::<T>()?;
        let y = fill_rows::<T>(tokens * heads, size, 0, |i, out, _| {
            let position = positions[i / heads] as usize;
            let x = &data[i / heads * token + i % heads * head..][..size];
            isa.run(Head { x, cos: cos.row(position), sin: sin.row(position), out });
        });
        host(y, op.x.dims())
    })
}

struct Head<'a, T> {
    x: &'a [T],
    cos: &'a [f32],
    sin: &'a [f32],
    out: &'a mut [T],
}

impl<T: Elem> Kernel for Head<'_, T> {
    type Output = ();
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let half = self.cos.len();
        let (x1, rest) = self.x.split_at(half);
        let (x2, rest) = rest.split_at(half);
        let (y1, after) = self.out.split_at_mut(half);
        let (y2, after) = after.split_at_mut(half);
        after.copy_from_slice(rest);
        vectors!(S, half, |i, lanes| {
            let (a, b) = (get::<S, T>(x1, i, lanes, 0.0), get::<S, T>(x2, i, lanes, 0.0));
            let (cos, sin) = (get::<S, f32>(self.cos, i, lanes, 0.0), get::<S, f32>(self.sin, i, lanes, 0.0));
            // SAFETY: the contract of Lanes, kept by Isa::run.
            unsafe {
                put::<S, T>(y1, i, lanes, S::sub(S::mul(a, cos), S::mul(b, sin)));
                put::<S, T>(y2, i, lanes, S::fma(a, sin, S::mul(b, cos)));
            }
        });
    }
}
