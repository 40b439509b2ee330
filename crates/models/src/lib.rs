//! Transformer architectures, written against `ops` alone: one file per architecture, in the order
//! of its paper, and the same file for every device, dtype and quantization. Model code does not
//! know which device it runs on.

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
mod dynamic_ntk;
mod electra;
mod eurobert;
mod falcon;
mod families;
mod gemma;
mod gliner;
mod gpt2;
mod gpt_neox;
mod gte;
mod head;
mod jina_bert;
mod llama;
mod lora;
mod mlp;
mod modernbert;
mod mpnet;
mod nomic_bert;
mod qwen;
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
mod xlm_roberta_flash;

pub use batch::{Batch, KvView, Limits, Marks, Positions, Sequence, TokenChunk};
pub use config::CONTEXT;
pub use dual::{Dual, DualSizes, Image, Images, Kind as DualKind, TextTower, VisionTower, dual, dual_sizes};
pub use families::{FAMILIES, Family, GLINER, model_types};
pub use gliner::{Gliner, GlinerHook, GlinerStage, spans};
pub use head::{Head, LmHead, Task};
pub use registry::{
    answer_head, backbone, head, is_encoder, is_ignorable, is_supported, lm_head, model_type, overflows_f16, seq2seq,
    sequence_backbone,
};
pub use seq2seq::{EncoderKv, Seq2Seq};

use sconce_ops::{KvCacheShape, Tensor};

/// Why a model cannot be built or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `config.json` requires a feature that is not supported, or contradicts itself.
    #[error("config.json: {0}")]
    Config(String),
    /// The input tokens or pixels do not fit the model.
    #[error("{0}")]
    Input(String),
    /// An op or a weight failed.
    #[error(transparent)]
    Op(#[from] sconce_ops::Error),
}

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Receives the hidden states of every layer; index 0 is the embeddings.
pub type LayerHook<'a> = &'a mut dyn FnMut(usize, &Tensor);

/// A model that maps each token to a hidden state.
pub trait Backbone: Send {
    /// Hidden states of the last layer, `[tokens, hidden]`, after the final norm if the model has
    /// one.
    fn forward(&self, batch: &Batch, hook: LayerHook<'_>) -> Result<Tensor>;
    /// The width of a hidden state.
    fn hidden_size(&self) -> usize;
    /// The number of token ids, positions and token types that the model has embeddings for.
    fn limits(&self) -> Limits;
    /// The tasks for which the model has a low-rank update (LoRA) of its weights: see
    /// [`Batch::task`].
    fn tasks(&self) -> &[String] {
        &[]
    }
    /// The shape of the KV cache; `None` for models that are not language models.
    fn cache(&self) -> Option<KvCacheShape> {
        None
    }
}
