//! One row at a time.
#![allow(unsafe_code, reason = "SIMD lanes")]

use super::{Gate, GluOp};
use crate::buffer_pool::PooledBuffer;
use crate::cpu::elem::{Elem, get, put, vectors, with_elem};
use crate::cpu::rows::{Reading, fill_rows};
use crate::cpu::{Isa, Kernel, Lanes, math};
use crate::tensor::host;
use crate::{Activation, Result};

pub(super) fn run(op: &GluOp, isa: Isa) -> Result<candle_core::Tensor> {
    with_elem!("glu", op.x.dtype(), T => {
        let x = Reading::of(&op.x)?;
        let x = x.rows::<T>()?;
        let scales = op.scales.as_ref().map(Reading::of).transpose()?;
        let scales = scales.as_ref().map(|s| s.rows::<T>()).transpose()?;
        let y = fill_rows::<T>(x.rows, op.width(), 0, |i, out, _| {
            let (first, second) = x.row(i).split_at(op.width());
            let (gate, value) = match op.gate {
                Some(Gate::First) => (first, Some(second)),
                Some(Gate::Second) => (second, Some(first)),
                None => (first, None),
            };
            let scale = scales.as_ref().map_or(1.0, |s| s.row(i)[0].wide());
            isa.run(Row { gate, value, scale, activation: op.activation, out });
        });
        host(y, &[x.rows, op.width()])
    })
}

/// act(gate) · value of rows of `half` gates followed by `half` values.
pub(crate) fn gated<T: Elem>(isa: Isa, x: &[T], half: usize, activation: Activation) -> PooledBuffer<T> {
    fill_rows::<T>(x.len() / (2 * half).max(1), half, 0, |i, out, _| {
        let (gate, value) = x[2 * i * half..][..2 * half].split_at(half);
        isa.run(Row { gate, value: Some(value), scale: 1.0, activation, out });
    })
}

struct Row<'a, T> {
    gate: &'a [T],
    /// Ones, if there is none.
    value: Option<&'a [T]>,
    scale: f32,
    activation: Activation,
    out: &'a mut [T],
}

impl<T: Elem> Kernel for Row<'_, T> {
    type Output = ();
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    fn run<S: Lanes>(self) {
        vectors!(S, self.out.len(), |i, lanes| {
            let gate = get::<S, T>(self.gate, i, lanes, 0.0);
            // SAFETY: the contract of Lanes, kept by Isa::run.
            let y = unsafe {
                let active = math::activate::<S, 1>(self.activation, T::TYPE, [gate])[0];
                let product = match self.value {
                    Some(value) => S::mul(active, get::<S, T>(value, i, lanes, 0.0)),
                    None => active,
                };
                S::mul(product, S::splat(self.scale))
            };
            put::<S, T>(self.out, i, lanes, y);
        });
    }
}
