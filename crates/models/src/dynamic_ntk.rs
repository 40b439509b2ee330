//! Dynamic NTK scaling of RoPE (bloc97 and emozilla, 2023): a sequence longer than those of the
//! training has a larger base, θ · (f · n / t − (f − 1))^(d / (d − 2)) for a factor f, n tokens, a
//! trained length of t and d rotated elements. It depends on the length of a sequence, so that a
//! batch with a long one has RoPE tables of its own.

use crate::block::{Layer, Stack};
use crate::config::refuse;
use crate::{Backbone, Batch, LayerHook, Limits, Result};
use sconce_ops::{Rotary, Tensor};

/// The parameters of the scaling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DynamicNtk {
    theta: f64,
    dims: usize,
    trained: usize,
    factor: f64,
}

impl DynamicNtk {
    /// The scaling by `factor`, which the configuration has in `field`, for the base `theta` and
    /// `dims` rotated elements of a head, beyond `trained` tokens.
    pub(crate) fn new((field, factor): (&str, f64), theta: f64, dims: usize, trained: usize) -> Result<DynamicNtk> {
        refuse(!(factor > 0.0 && factor.is_finite()), || {
            format!("{field} must be above 0 for dynamic NTK scaling, not {factor}")
        })?;
        refuse(dims <= 2, || format!("{field} is not supported for RoPE that rotates {dims} elements of a head"))?;
        refuse(trained == 0, || format!("{field} needs a trained length of at least one token"))?;
        Ok(DynamicNtk { theta, dims, trained, factor })
    }

    /// The frequencies for a sequence of so many tokens.
    pub(crate) fn frequencies(&self, tokens: usize) -> Vec<f32> {
        let (dims, length) = (self.dims as f64, tokens.max(self.trained) as f64 / self.trained as f64);
        let stretch = self.factor * length - (self.factor - 1.0);
        Rotary::frequencies(self.theta * stretch.powf(dims / (dims - 2.0)), self.dims)
    }

    /// The batch with tables of its own, if one of its sequences is longer than the trained length.
    fn batch(&self, batch: &Batch) -> Result<Option<Batch>> {
        // The number of tokens is part of a CUDA graph's shape. The lengths are not: reading them
        // would keep every batch out of the graphs.
        let is_short = batch.segments.tokens() <= self.trained
            || batch.segments.observe().iter().all(|tokens| tokens.len() <= self.trained);
        if is_short { Ok(None) } else { batch.with_rotary(|tokens| self.frequencies(tokens)).map(Some) }
    }
}

/// An encoder with dynamic NTK scaling.
pub(crate) struct Scaled<L> {
    pub encoder: Stack<L>,
    pub scaling: DynamicNtk,
}

impl<L: Layer> Backbone for Scaled<L> {
    fn forward(&self, batch: &Batch, hook: LayerHook<'_>) -> Result<Tensor> {
        match self.scaling.batch(batch)? {
            Some(batch) => self.encoder.forward(&batch, hook),
            None => self.encoder.forward(batch, hook),
        }
    }

    fn hidden_size(&self) -> usize {
        self.encoder.hidden_size()
    }

    fn limits(&self) -> Limits {
        self.encoder.limits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_sequences_have_a_larger_base() {
        let scaling = DynamicNtk::new(("factor", 2.0), 1000.0, 12, 16).unwrap();
        assert_eq!(scaling.frequencies(1), Rotary::frequencies(1000.0, 12));
        assert_eq!(scaling.frequencies(16), Rotary::frequencies(1000.0, 12));
        // 2 · 40 / 16 − 1 = 4, to the power of 12 / 10.
        assert_eq!(scaling.frequencies(40), Rotary::frequencies(1000.0 * 4f64.powf(1.2), 12));
        for (factor, dims, trained) in [(0.0, 12, 16), (f64::NAN, 12, 16), (2.0, 2, 16), (2.0, 12, 0)] {
            let error = DynamicNtk::new(("factor", factor), 1000.0, dims, trained).unwrap_err().to_string();
            assert!(error.contains("factor"), "{error}");
        }
    }
}
