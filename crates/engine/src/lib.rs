//! Load, tokenize, schedule and run models: the Rust API of Sconce.
//!
//! ```no_run
//! use sconce_engine::{Embedder, LoadOptions, Prompt};
//!
//! let options = LoadOptions::from_env()?;
//! let embedder = Embedder::load(&"minilm".parse()?, &options, &())?;
//! let embeddings = embedder.embed(&["A man is eating food."], &Prompt::Default)?;
//! assert_eq!(embeddings.row(0).len(), 384);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;
mod dtype;
mod error;
mod generation;
mod graph;
mod image;
mod kv;
mod options;
mod plan;
mod provider;
mod reasoning;
mod runtime;
mod sampling;
mod schedule;
mod structured_output;
mod tasks;
mod tools;
mod workloads;

pub use config::{Prompt, Route};
pub use dtype::DTypeChoice;
pub use error::{Error, ErrorClass, Result};
pub use generation::{Answer, Event, Finish, Generation, NextEvent, Request, SampledToken, Start, Started, Stream};
pub use graph::{
    Element, EngineChoice, Graph, GraphFile, GraphOptions, GraphPlan, GraphPort, GraphRuntime, GraphSettings,
    GraphSummary, GraphText, ImageOutput, Provider, ProviderNodes, TextOutput,
};
pub use image::Image;
pub use options::{DeviceChoice, LlmOptions, LoadOptions, Seq2SeqLimits};
pub use plan::{LEAST_AUTO, Plan, Size, Verdict, verdict_path};
pub use provider::{AsyncEmbedder, BoxFuture, EmbeddingProvider, InputType, ProviderInfo, ProviderUsage};
pub use reasoning::{AnswerParser, ParsedAnswer, Reasoning, ReasoningEffort, ReasoningSyntax, Thoughts};
pub use runtime::{Loaded, OpCalls, QueueStats, RequestContext, Times};
pub use sampling::{BeamSearch, EarlyStopping, GenerationParams, Logprobs, Search};
pub use structured_output::{Format, FormatError};
pub use tasks::{
    Answers, ChatOptions, Chunk, ChunkEmbeddings, ChunkOptions, Classifier, Clip, EmbedOptions, Embedder, Embeddings,
    Gliner, GlinerOptions, Label, Llm, M3, M3Embedding, ModelDescription, MultiVector, MultiVectorEncoder, Precision,
    Quantized, Ranges, RankOptions, RankPooling, Ranked, Ranking, Reranker, Scores, Seq2Seq, Seq2SeqAnswer,
    Seq2SeqOptions, Seq2SeqStream, SparseEncoder, SparseVector, Support, TagOptions, Tagger, Task, TaskModel, Token,
    TokenScores, family_tasks, load_tokenizer, supports,
};
pub use tools::{AnswerPart, CallGrammar, ToolCall, ToolCallParser, ToolFunction, ToolSyntax};
pub use workloads::decode::{Activity, CacheConfig};
pub use workloads::encode::Outputs;

/// The crate that finds and downloads model files.
pub use sconce_hub as hub;

// Types of other crates that this crate's public API uses.
pub use sconce_formats::{Checkpoint, FileError};
pub use sconce_models::{FAMILIES, Family};
// Process-wide settings of CPU threads.
pub use sconce_ops::threads::{after_fork, set as set_threads};
pub use sconce_ops::{
    Counted, DType, Device, DeviceInfo, Isa, KvCacheFormat, Policy, Pooling, Quant, Rung, Step, WeightFormat, Withdrawn,
};
pub use sconce_text::aggregate::{Entity, Strategy};
pub use sconce_text::chat::{Message, TemplateError};
pub use sconce_text::{Encoding, PadTo, Padding, TextOrPair, TextOrTokens, TextToken, Tokenizer, Truncate};
