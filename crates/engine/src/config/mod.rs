//! Configuration files of models.

mod colbert;
mod dense;
mod detect;
mod generation_config;
mod gguf_prompts;
mod input_spec;
mod lm_text;
mod route_prompts;
mod router;
mod sentence_transformers;
mod seq2seq_generation;

pub(crate) use colbert::{ColbertSpec, Side};
pub(crate) use dense::{Dense, DenseWeights};
pub(crate) use detect::{FileFacts, M3_MULTI_VECTOR, M3_SPARSE, has_m3};
pub(crate) use input_spec::{InputSpec, plain_input_spec};
pub(crate) use lm_text::LmText;
pub(crate) use route_prompts::RoutePrompts;
pub use router::Route;
pub(crate) use router::Router;
pub use sentence_transformers::Prompt;
pub(crate) use sentence_transformers::{Entry, Module, SentenceSpec, input_spec};
pub(crate) use seq2seq_generation::Seq2SeqGeneration;
