//! The Dense module of sentence-transformers: a linear layer and an activation after the pooling.

use crate::error::{Error, Result};
use sconce_formats::gguf::Gguf;
use sconce_formats::json;
use sconce_ops::{Activation, Linear, Weights};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// A dense layer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Dense {
    /// The file that describes it.
    path: PathBuf,
    /// Where its weights are.
    pub(crate) weights: DenseWeights,
    pub(crate) outputs: usize,
    inputs: usize,
    bias: bool,
    activation: Activation,
}

/// Where the weights of a dense layer are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DenseWeights {
    /// In a folder of their own.
    Folder(PathBuf),
    /// Among the encoder's, under this prefix.
    Encoder(String),
}

impl Dense {
    /// Loads its weights, for inputs of this width.
    pub(crate) fn load(&self, inputs: usize, w: &Weights) -> Result<Linear> {
        if self.inputs != inputs {
            let what = format!("in_features is {}, but its input has {inputs}", self.inputs);
            return Err(Error::file(&self.path, what));
        }
        Ok(Linear::load(&w.sub("linear"), inputs, self.outputs, self.bias)?.with(self.activation))
    }
}

#[derive(Deserialize)]
struct DenseConfig {
    in_features: usize,
    out_features: usize,
    #[serde(default = "default_true")]
    bias: bool,
    activation_function: Option<String>,
    #[serde(default)]
    use_residual: bool,
}

fn default_true() -> bool {
    true
}

/// Reads the configuration of the dense layer in `dir`.
pub(crate) fn dense(dir: &Path) -> Result<Dense> {
    let path = dir.join("config.json");
    let config: DenseConfig = json(&path)?;
    if config.use_residual {
        return Err(Error::file(&path, "a Dense module with use_residual is not supported"));
    }
    let activation = match config.activation_function.as_deref() {
        None | Some("torch.nn.modules.activation.Tanh") => Activation::Tanh,
        Some("torch.nn.modules.linear.Identity") => Activation::None,
        Some("torch.nn.modules.activation.ReLU") => Activation::Relu,
        Some("torch.nn.modules.activation.GELU") => Activation::Gelu,
        Some("torch.nn.modules.activation.SiLU") => Activation::Silu,
        Some("torch.nn.modules.activation.Sigmoid") => Activation::Sigmoid,
        Some(other) => {
            return Err(Error::file(&path, format!("activation_function `{other}` is not supported")));
        }
    };
    Ok(Dense {
        path,
        weights: DenseWeights::Folder(dir.to_path_buf()),
        inputs: config.in_features,
        outputs: config.out_features,
        bias: config.bias,
        activation,
    })
}

/// The dense layers in a GGUF file, in order: matrices alone, without bias and activation.
pub(crate) fn dense_in_gguf(gguf: &Gguf) -> Result<Vec<Dense>> {
    let mut layers = Vec::new();
    loop {
        let prefix = format!("dense.{}", layers.len());
        let Some((_, dims)) = gguf.shape(&format!("{prefix}.linear.weight")) else { return Ok(layers) };
        let [outputs, inputs] = *dims else {
            let what = format!("holds a dense layer of the shape {dims:?}; two dimensions are expected");
            return Err(Error::file(gguf.path(), what));
        };
        layers.push(Dense {
            path: gguf.path().to_path_buf(),
            weights: DenseWeights::Encoder(prefix),
            inputs,
            outputs,
            bias: false,
            activation: Activation::None,
        });
    }
}
