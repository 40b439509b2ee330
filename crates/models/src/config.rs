//! Reads `config.json`.

use crate::{Error, Result};
use sconce_ops::Activation;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Deserializes the fields that an architecture needs. A null in a required type counts as a
/// missing field.
pub(crate) fn parse<T: DeserializeOwned>(config: &Value) -> Result<T> {
    T::deserialize(config).or_else(|e| {
        let mut config = config.clone();
        if let Value::Object(fields) = &mut config {
            fields.retain(|_, value| !value.is_null());
        }
        T::deserialize(config).map_err(|_| Error::Config(e.to_string()))
    })
}

/// A struct of optional `config.json` fields, each with its default.
macro_rules! defaults {
    ($(#[$of:meta])* $v:vis struct $name:ident {
        $($(#[$meta:meta])* $fv:vis $field:ident: $type:ty = $value:expr,)*
    }) => {
        $(#[$of])*
        #[derive(serde::Deserialize)]
        #[serde(default)]
        $v struct $name {
            $($(#[$meta])* $fv $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $value,)* }
            }
        }
    };
}
pub(crate) use defaults;

/// For serde: the default of a field in a struct that also has required fields.
pub(crate) fn default_usize<const N: usize>() -> usize {
    N
}

/// For serde: 10⁻ᴺ.
pub(crate) fn ten_to_minus<const N: i32>() -> f32 {
    10f64.powi(-N) as f32
}

/// For serde.
pub(crate) fn default_true() -> bool {
    true
}

/// The activation `name`, as transformers spells it in `field`.
pub(crate) fn activation(field: &str, name: &str) -> Result<Activation> {
    Ok(match name {
        "gelu" | "gelu_python" => Activation::Gelu,
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" | "gelu_python_tanh" | "gelu_accurate" => Activation::GeluTanh,
        "quick_gelu" => Activation::QuickGelu,
        "relu" => Activation::Relu,
        "silu" | "swish" => Activation::Silu,
        "tanh" => Activation::Tanh,
        "sigmoid" => Activation::Sigmoid,
        "linear" => Activation::None,
        other => return Err(Error::Config(format!("the activation `{other}` ({field}) is not supported"))),
    })
}

/// Whether a language model's configuration replaces causal attention by attention in both
/// directions, as embedding models that were made from language models do.
pub(crate) fn is_bidirectional(config: &Value) -> bool {
    let declares = |key: &str, value: bool| config.get(key).and_then(Value::as_bool) == Some(value);
    declares("is_causal", false) || declares("use_bidirectional_attention", true)
}

/// Fails unless `layer_types` names full or sliding-window attention for each of so many layers.
pub(crate) fn check_layer_types(types: &[String], layers: usize) -> Result<()> {
    let other = types.iter().find(|kind| !["full_attention", "sliding_attention"].contains(&kind.as_str()));
    refuse(other.is_some(), || format!("`{}` in layer_types is not supported", other.map_or("", String::as_str)))?;
    refuse(types.len() != layers, || format!("layer_types has {} entries for {layers} layers", types.len()))
}

/// The size of a head; an error if the hidden size is not a multiple of the number of heads.
pub(crate) fn head_size(hidden: usize, heads: usize) -> Result<usize> {
    match hidden.checked_rem(heads) {
        Some(0) if hidden > 0 => Ok(hidden / heads),
        _ => Err(Error::Config(format!("hidden_size {hidden} does not divide into {heads} heads"))),
    }
}

/// Fails with `why()` if `unsupported`.
pub(crate) fn refuse(unsupported: bool, why: impl FnOnce() -> String) -> Result<()> {
    if unsupported { Err(Error::Config(why())) } else { Ok(()) }
}

/// Checks the size of the rotary table (cosines and sines) for heads of `size`. The model computes
/// the table, so no file bounds its size; this function does.
pub(crate) fn table_rows(positions: usize, size: usize) -> Result<usize> {
    const MOST: usize = 1 << 20;
    const NUMBERS: usize = 1 << 27;
    let fits = (1..=MOST).contains(&positions) && positions.checked_mul(size).is_some_and(|n| n <= NUMBERS);
    refuse(!fits, || {
        format!(
            "a RoPE table of {positions} positions (max_position_embeddings, n_positions) × {size} elements is not supported; at most {MOST} positions and {NUMBERS} elements are"
        )
    })?;
    Ok(positions)
}

/// The longest sequence: `trained`, or less if the engine limits the context length (field
/// [`CONTEXT`], which no model file has).
pub(crate) fn context(config: &Value, trained: usize) -> usize {
    let limit = config.get(CONTEXT).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    limit.map_or(trained, |limit| limit.min(trained))
}

/// The `config.json` field in which the engine passes its limit on the context length.
pub const CONTEXT: &str = "sconce:context";

/// RoPE parameters, as transformers 5 (`rope_parameters`) and older versions (`rope_scaling`) spell
/// them.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct RopeConfig {
    pub rope_theta: Option<f64>,
    pub rope_type: Option<String>,
    /// The older spelling; some files have both.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub factor: Option<f64>,
    pub mixed_b: Option<f64>,
    pub partial_rotary_factor: Option<f64>,
}

impl RopeConfig {
    /// The type of RoPE scaling, if any.
    pub(crate) fn scaling(&self) -> Option<&str> {
        self.rope_type.as_deref().or(self.kind.as_deref()).filter(|kind| *kind != "default")
    }

    /// Fails unless RoPE is unscaled and applies to the whole head.
    pub(crate) fn check_unscaled(&self) -> Result<()> {
        refuse(self.scaling().is_some(), || {
            let kind = self.scaling().unwrap_or_default();
            format!(
                "the RoPE scaling `{kind}` (rope_type in rope_parameters or rope_scaling) is not supported for this architecture"
            )
        })?;
        refuse(self.partial_rotary_factor.is_some_and(|f| f != 1.0), || {
            "partial_rotary_factor other than 1 is not supported".into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::ten_to_minus;

    #[test]
    fn ten_to_minus_equals_the_float_literal() {
        assert_eq!((ten_to_minus::<5>(), ten_to_minus::<6>(), ten_to_minus::<7>()), (1e-5, 1e-6, 1e-7));
    }
}
