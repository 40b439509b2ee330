//! Architectures, written against `ops` alone: one file an architecture, in the order of its paper, the same file for every
//! device, dtype and quantisation. A model never asks where it is.

mod batch;
mod bert;
mod block;
mod clip;
mod config;
mod deberta;
mod deberta_v2;
mod distilbert;
mod dual;
mod electra;
mod gte;
mod head;
mod jina_bert;
mod modernbert;
mod mpnet;
mod nomic_bert;
mod registry;
mod roberta;
mod siglip;
mod static_model;
mod t5;
mod tower;

pub use batch::{Batch, Limits, Positions, Sequence};
pub use dual::{Dual, Image, Images, Kind as DualKind, TextTower, VisionTower, dual};
pub use head::{Head, Task};
pub use registry::{encoder, head, spare};

use sconce_ops::Tensor;

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

/// Sees the hidden states of every layer, the embeddings first.
pub type Watch<'a> = &'a mut dyn FnMut(usize, &Tensor);

/// A model that turns tokens into one vector each.
pub trait Encoder: Send {
    /// Hidden states of the last layer, `[tokens, hidden]`, behind the final norm where there is one.
    fn forward(&self, batch: &Batch, watch: Watch<'_>) -> Result<Tensor>;
    /// The width of a hidden state.
    fn hidden_size(&self) -> usize;
    /// The largest ids it can take.
    fn limits(&self) -> Limits;
}
