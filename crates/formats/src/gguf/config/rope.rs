//! RoPE parameters, in both of transformers' forms: `rope_theta` with `rope_scaling`, and since
//! version 5 `rope_parameters` with both.

use super::super::metadata::decimal;
use super::{Config, Keys, object};
use crate::FileError;
use serde_json::{Value, json};
use std::f64::consts::TAU;

/// The RoPE parameters of a model.
pub(super) struct Rope {
    pub(super) theta: f64,
    /// RoPE scaling, with `rope_type`.
    pub(super) scaling: Option<Config>,
    /// Partial rotary factor: the fraction of a head that is rotated.
    pub(super) partial: Option<f64>,
}

impl Rope {
    pub(super) fn read(keys: &Keys, size: usize) -> Result<Rope, FileError> {
        // Several converters omit the base; llama.cpp uses the same default.
        let theta = keys.float("rope.freq_base")?.unwrap_or(10_000.0);
        let rotary_dims = keys.number("rope.dimension_count")?.filter(|&n| n > 0).unwrap_or(size as u64);
        if rotary_dims > size as u64 || rotary_dims % 2 != 0 {
            return Err(keys.fault(format!(
                "has a rope.dimension_count of {rotary_dims}; it must be even and at most the head size, {size}"
            )));
        }
        let partial = (rotary_dims != size as u64).then(|| rotary_dims as f64 / size as f64);
        Ok(Rope { theta, scaling: scaling(keys, theta, rotary_dims as usize)?, partial })
    }

    /// Writes the parameters into `config`.
    pub(super) fn write(self, config: &mut Config) {
        let parameters = self.parameters();
        let Rope { theta, scaling, partial } = self;
        config.insert("rope_theta".into(), json!(theta));
        if let Some(partial) = partial {
            config.insert("partial_rotary_factor".into(), json!(partial));
        }
        config.insert("rope_scaling".into(), scaling.map_or(Value::Null, Value::Object));
        config.insert("rope_parameters".into(), Value::Object(parameters));
    }

    /// The parameters in the form of version 5.
    pub(super) fn parameters(&self) -> Config {
        let mut all = self.scaling.clone().unwrap_or_else(|| object(json!({"rope_type": "default"})));
        all.insert("rope_theta".into(), json!(self.theta));
        if let Some(partial) = self.partial {
            all.insert("partial_rotary_factor".into(), json!(partial));
        }
        all
    }
}

fn scaling(keys: &Keys, theta: f64, rotary_dims: usize) -> Result<Option<Config>, FileError> {
    let factor = match keys.float("rope.scaling.factor")? {
        // The older key; files with it have no type.
        None => keys.float("rope.scale_linear")?,
        found => found,
    };
    let kind = keys.metadata.str(&keys.name("rope.scaling.type"))?;
    if let Some(factors) = keys.config_tensor("rope_freqs.weight")? {
        return if factors.iter().all(|&f| f == 1.0) {
            Ok(None)
        } else {
            llama3(keys, &factors, theta, rotary_dims).map(Some)
        };
    }
    if keys.has("rope_factors_long.weight") || kind == Some("longrope") {
        return longrope(keys, rotary_dims).map(Some);
    }
    // transformers has no equivalent for these.
    for name in ["rope.scaling.attn_factor", "rope.scaling.yarn_ext_factor"] {
        if let Some(value) = keys.float(name)?.filter(|&value| value != 1.0) {
            return Err(keys.fault(format!("sets `{}` to {value}, which is not supported", keys.name(name))));
        }
    }
    match (kind, factor) {
        (None | Some("none"), None) | (Some("none"), _) => Ok(None),
        (None | Some("linear"), Some(1.0) | None) => Ok(None),
        (None | Some("linear"), Some(factor)) => Ok(Some(object(json!({"rope_type": "linear", "factor": factor})))),
        (Some("yarn"), Some(factor)) => yarn(keys, factor).map(Some),
        (Some(kind), _) => Err(keys.fault(format!("has the RoPE scaling `{kind}`, which is not supported"))),
    }
}

fn yarn(keys: &Keys, factor: f64) -> Result<Config, FileError> {
    let mut yarn = object(json!({
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": keys.need("rope.scaling.original_context_length")?,
    }));
    for (name, key) in [
        ("attention_factor", "yarn_attn_factor"),
        ("beta_fast", "yarn_beta_fast"),
        ("beta_slow", "yarn_beta_slow"),
        ("mscale_all_dim", "yarn_log_multiplier"),
    ] {
        if let Some(value) = keys.float(&format!("rope.scaling.{key}"))? {
            yarn.insert(name.into(), json!(value));
        }
    }
    // transformers needs both; Mistral's files have only this one.
    if yarn.contains_key("mscale_all_dim") {
        yarn.insert("mscale".into(), json!(1.0));
    }
    Ok(yarn)
}

fn longrope(keys: &Keys, rotary_dims: usize) -> Result<Config, FileError> {
    let factors = |which: &str| {
        let name = format!("rope_factors_{which}.weight");
        let found = keys.config_tensor(&name)?.filter(|factors| factors.len() == rotary_dims / 2);
        let found = found.ok_or_else(|| keys.fault(format!("holds no `{name}` of {} factors", rotary_dims / 2)))?;
        Ok(Value::from(found.into_iter().map(decimal).collect::<Vec<f64>>()))
    };
    Ok(object(json!({
        "rope_type": "longrope",
        "long_factor": factors("long")?,
        "short_factor": factors("short")?,
        "original_max_position_embeddings": keys.need("rope.scaling.original_context_length")?,
    })))
}

/// Recovers Llama 3.1's parameters from the divisors of the frequencies. With wavelength λ, context
/// c and frequency factors l, h: 1 where λ < c/h, `factor` where λ > c/l, else
/// `1 / ((1 − s)/factor + s)` with s = (c/λ − l)/(h − l). Only c/l and c/h matter, so l = 1
/// suffices; Llama's own values are tried first.
fn llama3(keys: &Keys, divisors: &[f32], theta: f64, rotary_dims: usize) -> Result<Config, FileError> {
    // The file has as many divisors, so this bounds the work below.
    if divisors.len() != rotary_dims / 2 {
        return Err(keys.fault(format!(
            "divides {} frequencies (`rope_freqs.weight`) of {}",
            divisors.len(),
            rotary_dims / 2
        )));
    }
    let factor = divisors.iter().fold(1.0, |max: f64, &d| max.max(decimal(d)));
    let waves: Vec<f64> = (0..rotary_dims / 2).map(|i| TAU * theta.powf(2.0 * i as f64 / rotary_dims as f64)).collect();
    let fits = |&(low, high, context): &(f64, f64, f64)| {
        waves.iter().zip(divisors).all(|(wave, &divisor)| {
            let smooth = ((context / wave - low) / (high - low)).clamp(0.0, 1.0);
            let expected = 1.0 / ((1.0 - smooth) / factor + smooth);
            (expected - f64::from(divisor)).abs() <= 1e-4 * expected
        })
    };
    let found = Some((1.0, 4.0, 8192.0)).filter(fits).or_else(|| fitted(divisors, &waves, factor).filter(fits));
    let (low, high, context) = found.ok_or_else(|| {
        keys.fault(
            "divides rotary frequencies (`rope_freqs.weight`) in another way than Llama 3, which is not supported",
        )
    })?;
    Ok(object(json!({
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": context as u64,
    })))
}

/// Fits the line s = a/λ + b through the values between the two bands; gives low, high and context
/// with low = 1.
fn fitted(divisors: &[f32], waves: &[f64], factor: f64) -> Option<(f64, f64, f64)> {
    let between: Vec<(f64, f64)> = divisors
        .iter()
        .zip(waves)
        .map(|(&divisor, wave)| (1.0 / wave, (1.0 / f64::from(divisor) - 1.0 / factor) / (1.0 - 1.0 / factor)))
        .filter(|(_, smooth)| (1e-3..=0.999).contains(smooth))
        .collect();
    let (&(x0, y0), &(x1, y1)) = (between.first()?, between.last()?);
    let slope = (y1 - y0) / (x1 - x0);
    // Where the line crosses 0 and 1.
    let (longest, shortest) = (1.0 / (x0 - y0 / slope), 1.0 / (x0 + (1.0 - y0) / slope));
    let whole = longest.round();
    // The ratio is a round number in practice.
    let high = (longest / shortest * 1024.0).round() / 1024.0;
    ((1.0..1e9).contains(&whole) && high > 1.0 && high.is_finite()).then_some((1.0, high, whole))
}
