//! Architectures, written against `ops` alone: one file an architecture, in the order of its paper, the same file for every
//! device, dtype and quantisation. A model never asks where it is.

mod batch;
mod bert;
mod block;
mod clip;
mod config;
mod deberta;
mod deberta_v2;
mod decoder;
mod distilbert;
mod dual;
mod electra;
mod falcon;
mod gemma;
mod gpt2;
mod gte;
mod head;
mod jina_bert;
mod llama;
mod mlp;
mod modernbert;
mod mpnet;
mod nomic_bert;
mod registry;
mod roberta;
mod rope;
mod seq2seq;
mod siglip;
mod stablelm;
mod static_model;
mod t5;
mod t5_decoder;
mod tower;

pub use batch::{Batch, KvView, Limits, Positions, Sequence, TokenChunk};
pub use config::CONTEXT;
pub use dual::{Dual, Image, Images, Kind as DualKind, TextTower, VisionTower, dual};
pub use head::{Head, LmHead, Task};
pub use registry::{binary_head, encoder, head, is_ignorable, lm_head, seq2seq};
pub use seq2seq::{Read, Seq2Seq};

use sconce_ops::{KvCacheShape, Tensor};

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
pub type LayerHook<'a> = &'a mut dyn FnMut(usize, &Tensor);

/// A model that turns tokens into one vector each.
pub trait Encoder: Send {
    /// Hidden states of the last layer, `[tokens, hidden]`, behind the final norm where there is one.
    fn forward(&self, batch: &Batch, watch: LayerHook<'_>) -> Result<Tensor>;
    /// The width of a hidden state.
    fn hidden_size(&self) -> usize;
    /// The largest ids it can take.
    fn limits(&self) -> Limits;
    /// What it keeps of each token, if it can go on from there: a language model.
    fn cache(&self) -> Option<KvCacheShape> {
        None
    }
}
