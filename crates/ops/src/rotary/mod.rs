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
use crate::{DType, Error, Place, Result, Tensor, Weights};

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
        Rotary::of(w.place(), &[(frequencies, positions)], amplitude)
    }

    /// Tables with a row for each token of a batch, for models whose frequencies depend on the
    /// length of a sequence: the frequencies of each sequence, and its number of tokens. Token i of
    /// the batch has position i in them.
    pub fn by_sequence(place: &Place, sequences: &[(&[f32], usize)]) -> Result<Rotary> {
        Rotary::of(place, sequences, 1.0)
    }

    /// Tables of several parts, one after another, each with its frequencies and its number of
    /// positions, which count from 0.
    fn of(place: &Place, parts: &[(&[f32], usize)], amplitude: f64) -> Result<Rotary> {
        let half = parts.first().map_or(0, |(frequencies, _)| frequencies.len());
        let rows = parts.iter().try_fold(0usize, |rows, (_, positions)| rows.checked_add(*positions));
        let rows = rows.filter(|rows| rows.checked_mul(half).is_some_and(|n| n > 0));
        let rows =
            rows.ok_or_else(|| Error::call("rotary", "the table needs at least one position and one frequency"))?;
        if parts.iter().any(|(frequencies, _)| frequencies.len() != half) {
            return Err(Error::call("rotary", "the parts of a table differ in their number of frequencies"));
        }
        let dims = [rows, half];
        let table = |f: fn(f64) -> f64| {
            Tensor::upload(&dims, DType::F32, place, || {
                let mut values = Vec::with_capacity(rows * half);
                for (frequencies, positions) in parts {
                    let angles = (0..*positions).flat_map(|i| frequencies.iter().map(move |f| i as f32 * f));
                    values.extend(angles.map(|angle| (amplitude * f(f64::from(angle))) as f32));
                }
                crate::tensor::host(values, &dims)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A sequence's rows are those of a table of its own.
    #[test]
    fn tables_by_sequence_have_the_rows_of_each() {
        let place = Place::cpu();
        let [slow, fast] = [10_000.0, 100.0].map(|base| Rotary::frequencies(base, 8));
        let joined = Rotary::by_sequence(&place, &[(&slow, 3), (&fast, 2)]).unwrap();
        let alone = [(&slow, 3), (&fast, 2)].map(|(f, n)| Rotary::by_sequence(&place, &[(f, n)]).unwrap());
        let values = |t: &Tensor| t.to_f32().unwrap();
        for (all, parts) in [
            (&joined.cos, alone.each_ref().map(|r| values(&r.cos))),
            (&joined.sin, alone.each_ref().map(|r| values(&r.sin))),
        ] {
            assert_eq!(values(all), parts.concat());
        }
        assert!((alone[1].sin.to_f32().unwrap()[4 + 1] - fast[1].sin()).abs() < 1e-7);
        assert!(Rotary::by_sequence(&place, &[]).is_err());
        assert!(Rotary::by_sequence(&place, &[(&slow, 3), (&fast[..2], 2)]).is_err());
    }
}
