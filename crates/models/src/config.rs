//! Reading `config.json`.

use crate::{Error, Result};
use sconce_ops::Activation;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The fields an architecture names, from the whole configuration. A null where it needs a value is the field left out.
pub(crate) fn parse<T: DeserializeOwned>(config: &Value) -> Result<T> {
    T::deserialize(config).or_else(|e| {
        let mut config = config.clone();
        if let Value::Object(fields) = &mut config {
            fields.retain(|_, value| !value.is_null());
        }
        T::deserialize(config).map_err(|_| Error::Config(e.to_string()))
    })
}

/// A struct of fields that a configuration may leave out, each with what it is then.
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

/// For serde: what a field is that is left out beside fields that may not be.
pub(crate) fn usually<const N: usize>() -> usize {
    N
}

/// For serde: 10⁻ᴺ.
pub(crate) fn ten_to_minus<const N: i32>() -> f32 {
    10f64.powi(-N) as f32
}

/// For serde.
pub(crate) fn yes() -> bool {
    true
}

/// `hidden_act` as transformers spells it.
pub(crate) fn activation(name: &str) -> Result<Activation> {
    Ok(match name {
        "gelu" | "gelu_python" => Activation::Gelu,
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" | "gelu_python_tanh" | "gelu_accurate" => Activation::GeluTanh,
        "quick_gelu" => Activation::QuickGelu,
        "relu" => Activation::Relu,
        "silu" | "swish" => Activation::Silu,
        "tanh" => Activation::Tanh,
        "sigmoid" => Activation::Sigmoid,
        "linear" => Activation::None,
        other => return Err(Error::Config(format!("activation `{other}` is not supported"))),
    })
}

/// Head size, or why there is none.
pub(crate) fn head_size(hidden: usize, heads: usize) -> Result<usize> {
    match hidden.checked_rem(heads) {
        Some(0) if hidden > 0 => Ok(hidden / heads),
        _ => Err(Error::Config(format!("hidden_size {hidden} does not divide into {heads} heads"))),
    }
}

/// An error with that sentence if `unsupported`.
pub(crate) fn refuse(unsupported: bool, why: impl FnOnce() -> String) -> Result<()> {
    if unsupported { Err(Error::Config(why())) } else { Ok(()) }
}

/// Rows of a table of angles for heads of `size`, which a model works out for itself: no file bounds it, so this does.
pub(crate) fn table_rows(positions: usize, size: usize) -> Result<usize> {
    const MOST: usize = 1 << 20;
    const NUMBERS: usize = 1 << 27;
    let fits = (1..=MOST).contains(&positions) && positions.checked_mul(size).is_some_and(|n| n <= NUMBERS);
    refuse(!fits, || {
        format!("{positions} positions in heads of {size}; 1 to {MOST} are supported, {NUMBERS} numbers in all")
    })?;
    Ok(positions)
}

/// The longest sequence: what the model was made for, or less where the engine has made less room (`context`, which no file has).
pub(crate) fn context(config: &Value, trained: usize) -> usize {
    let room = config.get(CONTEXT).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    room.map_or(trained, |room| room.min(trained))
}

/// The field by which the engine tells how long sequences may get.
pub const CONTEXT: &str = "sconce:context";

/// Rotary parameters, in transformers 5's spelling (`rope_parameters`) and in the older one (`rope_scaling`).
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Rope {
    pub rope_theta: Option<f64>,
    pub rope_type: Option<String>,
    /// The older spelling; some files have both.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub factor: Option<f64>,
    pub mixed_b: Option<f64>,
    pub partial_rotary_factor: Option<f64>,
}

impl Rope {
    /// The kind of scaling, if there is one.
    pub(crate) fn scaling(&self) -> Option<&str> {
        self.rope_type.as_deref().or(self.kind.as_deref()).filter(|kind| *kind != "default")
    }

    /// That the angles are positions times the usual frequencies.
    pub(crate) fn plain(&self) -> Result<()> {
        refuse(self.scaling().is_some(), || {
            format!("rotary scaling `{}` is not supported here", self.scaling().unwrap_or_default())
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
    fn powers_of_ten_are_those_that_are_written() {
        assert_eq!((ten_to_minus::<5>(), ten_to_minus::<6>(), ten_to_minus::<7>()), (1e-5, 1e-6, 1e-7));
    }
}
