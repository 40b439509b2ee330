//! Configuration files of models.

mod colbert;
mod detect;
mod generation_config;
mod lm_text;
mod reading;
mod sentence_transformers;
mod seq2seq_generation;

pub(crate) use colbert::{ColbertSpec, Side};
pub(crate) use detect::{FileFacts, M3_MULTI_VECTOR, M3_SPARSE, has_m3};
pub(crate) use lm_text::LmText;
pub(crate) use reading::{Reading, plain_reading};
pub use sentence_transformers::Prompt;
pub(crate) use sentence_transformers::{Entry, Module, SentenceSpec, reading};
pub(crate) use seq2seq_generation::Seq2SeqGeneration;
