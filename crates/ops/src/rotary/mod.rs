//! Rotary position embedding (RoPE; Su et al. 2021, arXiv:2104.09864): y₁ = x₁·cos − x₂·sin, y₂ =
//! x₂·cos + x₁·sin, angle = position · frequency, in f32 with one rounding to T.
//!
//! Element i of a head is paired with element i + dims/2. Angles are products in f32, as the models
//! were trained with: in f64 they would differ from every other implementation by 1e-5 after a few
//! hundred tokens.

mod cases;
mod composed;
mod cpu;
#[cfg(cuda)]
mod cuda;
#[cfg(metal)]
mod metal;
mod reference;
mod rotary_kv_write;

pub(crate) use cases::cases;
pub use rotary_kv_write::Projected;

use crate::ladder::{self, Op, Rung, own_kernels};
use crate::{DType, Error, Result, Tensor, Weights};

/// Cosines and sines of every position.
#[derive(Clone, Debug)]
pub struct Rotary {
    /// f32 `[positions, dims / 2]`.
    cos: Tensor,
    /// f32 `[positions, dims / 2]`.
    sin: Tensor,
}

impl Rotary {
    /// The standard frequencies, base^(−2i / dims).
    pub fn frequencies(base: f64, dims: usize) -> Vec<f32> {
        (0..dims / 2).map(|i| 1.0 / base.powf(f64::from((2 * i) as f32 / dims as f32)) as f32).collect()
    }

    /// Tables for `positions` positions, placed as `w` places its tensors. Models compute their own
    /// frequencies, because RoPE scalings differ.
    pub fn new(w: &Weights, frequencies: &[f32], positions: usize) -> Result<Rotary> {
        Rotary::scaled(w, frequencies, positions, 1.0)
    }

    /// The same with sines and cosines multiplied by `amplitude`, which some RoPE scalings use for
    /// long contexts.
    pub fn scaled(w: &Weights, frequencies: &[f32], positions: usize, amplitude: f64) -> Result<Rotary> {
        let angle = |i: usize| (i / frequencies.len()) as f32 * frequencies[i % frequencies.len()];
        let table = |f: fn(f64) -> f64| {
            let n = positions.checked_mul(frequencies.len()).filter(|n| *n > 0);
            let n =
                n.ok_or_else(|| Error::call("rotary", "the table needs at least one position and one frequency"))?;
            let dims = [positions, frequencies.len()];
            Tensor::upload(&dims, DType::F32, w.place(), || {
                crate::tensor::host(
                    (0..n).map(|i| (amplitude * f(f64::from(angle(i)))) as f32).collect::<Vec<_>>(),
                    &dims,
                )
            })
        };
        Ok(Rotary { cos: table(f64::cos)?, sin: table(f64::sin)? })
    }

    /// Rotates the first `dims` elements of each head of `x` `[tokens, heads, size]` by its token's
    /// position `[tokens]`.
    pub fn forward(&self, x: &Tensor, positions: &Tensor) -> Result<Tensor> {
        self.check(x, positions)?;
        ladder::run(RotaryOp { x: x.clone(), positions: positions.clone(), rotary: self.clone() })
    }

    fn check(&self, x: &Tensor, positions: &Tensor) -> Result<()> {
        let rotated = 2 * self.half();
        match *x.dims() {
            [tokens, _, size] if positions.dims() == [tokens] && rotated <= size && positions.dtype() == DType::U32 => {
                Ok(())
            }
            ref other => {
                let what = format!("x {other:?} with positions {:?}, to rotate {rotated} elements", positions.dims());
                Err(Error::call("rotary", what))
            }
        }
    }

    /// Rotated pairs of a head.
    fn half(&self) -> usize {
        self.cos.dims()[1]
    }

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Rotary> {
        Ok(Rotary { cos: to(&self.cos)?, sin: to(&self.sin)? })
    }
}

pub(crate) struct RotaryOp {
    x: Tensor,
    positions: Tensor,
    rotary: Rotary,
}

impl RotaryOp {
    fn half(&self) -> usize {
        self.rotary.half()
    }
}

impl Op for RotaryOp {
    const NAME: &'static str = "rotary";

    fn x(&self) -> &Tensor {
        &self.x
    }

    fn detail(&self) -> String {
        format!("{} of {} in {} heads", 2 * self.half(), self.x.dims()[2], self.x.dims()[1])
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Composed, in f32: x twice, two products and the result, and a row of each table per
        // token.
        let [tokens, heads, size] = *self.x.dims() else { return 0 };
        if rung == Rung::Composed { 4 * tokens * (5 * heads * size + 2 * self.half()) } else { 0 }
    }

    own_kernels!(cpu, cuda, metal, composed);

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(RotaryOp { x: to(&self.x)?, positions: to(&self.positions)?, rotary: self.rotary.map(to)? })
    }
}
