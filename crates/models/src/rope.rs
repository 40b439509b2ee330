//! Rotary frequencies, as `config.json` scales them for texts longer than a model was first trained on.

use crate::config::{refuse, table_rows};
use crate::{Error, Result};
use sconce_ops::{Rotary, Weights};
use serde::Deserialize;
use std::f64::consts::TAU;

/// `rope_scaling`, or `rope_parameters` in transformers 5's spelling.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Scaling {
    pub rope_theta: Option<f64>,
    pub rope_type: Option<String>,
    /// The older spelling of the type; some files have both.
    #[serde(rename = "type")]
    kind: Option<String>,
    pub partial_rotary_factor: Option<f64>,
    factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    attention_factor: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    truncate: Option<bool>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    short_factor: Option<Vec<f64>>,
    long_factor: Option<Vec<f64>>,
}

/// What a model's angles depend on.
pub(crate) struct Rope<'a> {
    pub theta: f64,
    /// Elements of a head that are turned.
    pub dims: usize,
    /// The longest sequence there is room for, and the longest the model was made for.
    pub positions: usize,
    pub trained: usize,
    /// The longest of its first training, where it is told beside the scaling and not in it.
    pub original: Option<f64>,
    pub scaling: Option<&'a Scaling>,
}

impl Rope<'_> {
    /// Tables for all positions.
    pub(crate) fn rotary(&self, w: &Weights) -> Result<Rotary> {
        refuse(self.dims == 0 || !self.dims.is_multiple_of(2), || {
            format!("rotary positions need an even number of elements, not {}", self.dims)
        })?;
        refuse(!(self.theta > 0.0 && self.theta.is_finite()), || format!("a rope_theta of {}", self.theta))?;
        let (frequencies, amplitude) = self.frequencies()?;
        let sound = amplitude.is_finite() && frequencies.iter().all(|f| f.is_finite());
        refuse(!sound, || "rotary scaling that leads to no numbers".into())?;
        Ok(Rotary::scaled(w, &frequencies, table_rows(self.positions, self.dims)?, amplitude)?)
    }

    /// Of each pair of elements, and what sines and cosines are multiplied with.
    fn frequencies(&self) -> Result<(Vec<f32>, f64)> {
        let usual = Rotary::frequencies(self.theta, self.dims);
        let Some(s) = self.scaling else { return Ok((usual, 1.0)) };
        let kind = s.rope_type.as_deref().or(s.kind.as_deref()).unwrap_or("default");
        let factor = || match s.factor {
            Some(factor) if factor >= 1.0 && factor.is_finite() => Ok(factor),
            other => Err(Error::Config(format!("rotary scaling `{kind}` with a factor of {other:?}"))),
        };
        // Within the trained length the dynamic form is the usual one, and sequences are not longer.
        Ok(match kind {
            "default" | "dynamic" | "mrope" => (usual, 1.0),
            "linear" => {
                let factor = factor()? as f32;
                (usual.iter().map(|f| f / factor).collect(), 1.0)
            }
            "llama3" => (self.by_wavelength(s, &usual, factor()?)?, 1.0),
            "yarn" => self.yarn(s, &usual, factor()?)?,
            "longrope" | "su" => self.long(s, &usual)?,
            other => return Err(Error::Config(format!("rotary scaling `{other}` is not supported"))),
        })
    }

    /// The longest sequence of the first training.
    fn original(&self, s: &Scaling) -> f64 {
        s.original_max_position_embeddings.or(self.original).unwrap_or(self.trained as f64)
    }

    /// Llama 3.1: long waves are slowed by the factor, short ones not, and those between in between.
    fn by_wavelength(&self, s: &Scaling, usual: &[f32], factor: f64) -> Result<Vec<f32>> {
        let (low, high) = (s.low_freq_factor.unwrap_or(1.0), s.high_freq_factor.unwrap_or(4.0));
        let original = s.original_max_position_embeddings.unwrap_or(8192.0);
        refuse(!(high > low && low > 0.0 && original > 0.0), || {
            format!("llama3 scaling between {low} and {high} of {original} positions")
        })?;
        let scaled = |f: &f32| {
            let wavelength = TAU / f64::from(*f);
            if wavelength < original / high {
                *f
            } else if wavelength > original / low {
                (f64::from(*f) / factor) as f32
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                ((1.0 - smooth) * f64::from(*f) / factor + smooth * f64::from(*f)) as f32
            }
        };
        Ok(usual.iter().map(scaled).collect())
    }

    /// YaRN (Peng et al. 2023, arXiv:2309.00071): a ramp between frequencies that turn often and those that turn rarely.
    fn yarn(&self, s: &Scaling, usual: &[f32], factor: f64) -> Result<(Vec<f32>, f64)> {
        let (dims, original) = (self.dims as f64, self.original(s));
        let (fast, slow) = (s.beta_fast.unwrap_or(32.0), s.beta_slow.unwrap_or(1.0));
        refuse(!(original > 0.0 && fast > 0.0 && slow > 0.0 && self.theta > 1.0), || {
            format!("yarn from {original} positions, {fast} and {slow} turns, theta {}", self.theta)
        })?;
        // The pair that turns so often over the original length.
        let pair = |turns: f64| dims * (original / (turns * TAU)).ln() / (2.0 * self.theta.ln());
        let (mut low, mut high) = (pair(fast), pair(slow));
        if s.truncate.unwrap_or(true) {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dims - 1.0));
        if low == high {
            high += 0.001;
        }
        let scaled = |(i, f): (usize, &f32)| {
            let kept = 1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            (f64::from(*f) / factor * (1.0 - kept) + f64::from(*f) * kept) as f32
        };
        let grown = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
        let amplitude = s.attention_factor.unwrap_or(match (s.mscale, s.mscale_all_dim) {
            (Some(m), Some(all)) if m != 0.0 && all != 0.0 => grown(m) / grown(all),
            _ => grown(1.0),
        });
        Ok((usual.iter().enumerate().map(scaled).collect(), amplitude))
    }

    /// LongRoPE (Ding et al. 2024, arXiv:2402.13753): a divisor for each pair, of two lists by the longest sequence there is
    /// room for, so that what a cache keeps never changes with a sequence's length.
    fn long(&self, s: &Scaling, usual: &[f32]) -> Result<(Vec<f32>, f64)> {
        let original = self.original(s);
        let factors = if self.positions as f64 > original { &s.long_factor } else { &s.short_factor };
        let factors = factors.as_deref().unwrap_or_default();
        refuse(factors.len() != usual.len() || original <= 1.0, || {
            format!("longrope with {} factors for {} pairs, from {original} positions", factors.len(), usual.len())
        })?;
        let longer = s.factor.unwrap_or(self.trained as f64 / original);
        let amplitude =
            s.attention_factor.unwrap_or(if longer <= 1.0 { 1.0 } else { (1.0 + longer.ln() / original.ln()).sqrt() });
        Ok((usual.iter().zip(factors).map(|(f, by)| (f64::from(*f) / by) as f32).collect(), amplitude))
    }
}

/// Elements of a head of `size` that are turned, when it is a part of them.
pub(crate) fn transposed(size: usize, part: f64) -> Result<usize> {
    refuse(!(part > 0.0 && part <= 1.0), || format!("a partial_rotary_factor of {part}"))?;
    Ok((size as f64 * part) as usize)
}
