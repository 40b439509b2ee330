//! RoPE (rotary position embedding) frequencies, with the scalings of `config.json` for sequences
//! longer than those of the original training.

use crate::config::{refuse, table_rows};
use crate::{Error, Result};
use sconce_ops::{Rotary, Weights};
use serde::Deserialize;
use std::f64::consts::TAU;

/// `rope_scaling`, or `rope_parameters` as transformers 5 spells it.
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

/// The parameters of a model's RoPE table.
pub(crate) struct Rope<'a> {
    pub theta: f64,
    /// The number of elements of a head that RoPE rotates.
    pub dims: usize,
    /// The longest sequence that the engine allows, and the longest that the model was trained for.
    pub positions: usize,
    pub trained: usize,
    /// The length of the original training, if the file has it beside the scaling and not in it.
    pub original: Option<f64>,
    pub scaling: Option<&'a Scaling>,
}

impl Rope<'_> {
    /// Builds the tables of cosines and sines for all positions.
    pub(crate) fn rotary(&self, w: &Weights) -> Result<Rotary> {
        refuse(self.dims == 0 || !self.dims.is_multiple_of(2), || {
            format!("RoPE needs an even number of elements per head, not {}", self.dims)
        })?;
        refuse(!(self.theta > 0.0 && self.theta.is_finite()), || {
            format!("rope_theta must be positive, not {}", self.theta)
        })?;
        let (frequencies, amplitude) = self.frequencies()?;
        let finite = amplitude.is_finite() && frequencies.iter().all(|f| f.is_finite());
        refuse(!finite, || "RoPE scaling gives infinite or NaN frequencies".into())?;
        Ok(Rotary::scaled(w, &frequencies, table_rows(self.positions, self.dims)?, amplitude)?)
    }

    /// The frequency of each pair of elements, and the factor of sines and cosines.
    fn frequencies(&self) -> Result<(Vec<f32>, f64)> {
        let unscaled = Rotary::frequencies(self.theta, self.dims);
        let Some(s) = self.scaling else { return Ok((unscaled, 1.0)) };
        let kind = s.rope_type.as_deref().or(s.kind.as_deref()).unwrap_or("default");
        let factor = || match s.factor {
            Some(factor) if factor >= 1.0 && factor.is_finite() => Ok(factor),
            other => Err(Error::Config(format!("RoPE scaling `{kind}` needs a factor of at least 1, not {other:?}"))),
        };
        // Dynamic scaling changes nothing within the trained length, and no sequence is longer.
        Ok(match kind {
            "default" | "dynamic" | "mrope" => (unscaled, 1.0),
            "linear" => {
                let factor = factor()? as f32;
                (unscaled.iter().map(|f| f / factor).collect(), 1.0)
            }
            "llama3" => (self.llama3(s, &unscaled, factor()?)?, 1.0),
            "yarn" => self.yarn(s, &unscaled, factor()?)?,
            "longrope" | "su" => self.longrope(s, &unscaled)?,
            other => {
                return Err(Error::Config(format!(
                    "the RoPE scaling `{other}` (rope_type in rope_parameters or rope_scaling) is not supported"
                )));
            }
        })
    }

    /// The longest sequence of the original training.
    fn original(&self, s: &Scaling) -> f64 {
        s.original_max_position_embeddings.or(self.original).unwrap_or(self.trained as f64)
    }

    /// Llama 3.1: divides the frequencies of long wavelengths by the factor, keeps those of short
    /// ones, and interpolates between.
    fn llama3(&self, s: &Scaling, unscaled: &[f32], factor: f64) -> Result<Vec<f32>> {
        let (low, high) = (s.low_freq_factor.unwrap_or(1.0), s.high_freq_factor.unwrap_or(4.0));
        let original = s.original_max_position_embeddings.unwrap_or(8192.0);
        refuse(!(high > low && low > 0.0 && original > 0.0), || {
            format!(
                "llama3 RoPE scaling needs 0 < low_freq_factor ({low}) < high_freq_factor ({high}) and original_max_position_embeddings ({original}) > 0"
            )
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
        Ok(unscaled.iter().map(scaled).collect())
    }

    /// YaRN (Peng et al. 2023, arXiv:2309.00071): a ramp between high frequencies, which are kept,
    /// and low ones, which are divided by the factor.
    fn yarn(&self, s: &Scaling, unscaled: &[f32], factor: f64) -> Result<(Vec<f32>, f64)> {
        let (dims, original) = (self.dims as f64, self.original(s));
        let (fast, slow) = (s.beta_fast.unwrap_or(32.0), s.beta_slow.unwrap_or(1.0));
        refuse(!(original > 0.0 && fast > 0.0 && slow > 0.0 && self.theta > 1.0), || {
            format!(
                "yarn RoPE scaling of {original} positions with beta_fast {fast}, beta_slow {slow} and rope_theta {} is not supported",
                self.theta
            )
        })?;
        // The pair that makes `turns` full turns over the original length.
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
            let extrapolation = 1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            (f64::from(*f) / factor * (1.0 - extrapolation) + f64::from(*f) * extrapolation) as f32
        };
        let mscale = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
        let amplitude = s.attention_factor.unwrap_or(match (s.mscale, s.mscale_all_dim) {
            (Some(m), Some(all)) if m != 0.0 && all != 0.0 => mscale(m) / mscale(all),
            _ => mscale(1.0),
        });
        Ok((unscaled.iter().enumerate().map(scaled).collect(), amplitude))
    }

    /// LongRoPE (Ding et al. 2024, arXiv:2402.13753): a divisor for each pair, from one of two
    /// lists. The longest allowed sequence selects the list, so that keys in the KV cache stay
    /// valid while a sequence grows.
    fn longrope(&self, s: &Scaling, unscaled: &[f32]) -> Result<(Vec<f32>, f64)> {
        let original = self.original(s);
        let factors = if self.positions as f64 > original { &s.long_factor } else { &s.short_factor };
        let factors = factors.as_deref().unwrap_or_default();
        refuse(factors.len() != unscaled.len() || original <= 1.0, || {
            format!(
                "longrope has {} factors for {} frequencies, from {original} positions",
                factors.len(),
                unscaled.len()
            )
        })?;
        let extension = s.factor.unwrap_or(self.trained as f64 / original);
        let amplitude = s.attention_factor.unwrap_or(if extension <= 1.0 {
            1.0
        } else {
            (1.0 + extension.ln() / original.ln()).sqrt()
        });
        Ok((unscaled.iter().zip(factors).map(|(f, by)| (f64::from(*f) / by) as f32).collect(), amplitude))
    }
}

/// The number of elements of a head of `size` that RoPE rotates, for a `partial_rotary_factor` of
/// `part`.
pub(crate) fn rotary_dims(size: usize, part: f64) -> Result<usize> {
    refuse(!(part > 0.0 && part <= 1.0), || {
        format!("partial_rotary_factor must be above 0 and at most 1, not {part}")
    })?;
    Ok((size as f64 * part) as usize)
}
