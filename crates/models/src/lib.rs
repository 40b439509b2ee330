//! Architectures, written against `ops` alone: one file an architecture, in the order of its paper, the same file for every
//! device, dtype and quantisation. A model never asks where it is.

mod batch;
mod bert;
mod config;

pub use batch::{Batch, Limits, Sequence};

use sconce_ops::{Tensor, Weights};
use serde_json::Value;

/// What can go wrong in making a model from its files.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration asks for something that is not built, or contradicts itself.
    #[error("config.json: {0}")]
    Config(String),
    /// The tokens do not fit the model.
    #[error("{0}")]
    Input(String),
    /// From an op or a weight.
    #[error(transparent)]
    Op(#[from] sconce_ops::Error),
}

/// Shorthand used throughout the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A model that turns tokens into one vector each.
pub trait Encoder: Send {
    /// Hidden states of the last layer, `[tokens, hidden]`; `watch` sees those of every layer, the embeddings first.
    fn forward(&self, batch: &Batch, watch: &mut dyn FnMut(usize, &Tensor)) -> Result<Tensor>;
    /// The width of a hidden state.
    fn hidden_size(&self) -> usize;
    /// The largest ids it can take.
    fn limits(&self) -> Limits;
}

/// Makes the encoder that `config` describes. The architecture is what the configuration says, never the model's name.
pub fn encoder(config: &Value, weights: &Weights) -> Result<Box<dyn Encoder>> {
    match config.get("model_type").and_then(Value::as_str) {
        Some("bert") => Ok(Box::new(bert::Bert::load(config, weights)?)),
        Some(other) => Err(Error::Config(format!("model_type `{other}` is not supported yet; bert is"))),
        None => Err(Error::Config("no model_type; is this a transformers model?".into())),
    }
}
