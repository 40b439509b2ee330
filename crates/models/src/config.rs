//! Reading `config.json`.

use crate::{Error, Result};
use sconce_ops::Activation;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The fields an architecture names, from the whole configuration.
pub(crate) fn parse<T: DeserializeOwned>(config: &Value) -> Result<T> {
    T::deserialize(config).map_err(|e| Error::Config(e.to_string()))
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
