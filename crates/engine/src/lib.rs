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

mod caller;
mod classifier;
mod clip;
mod colbert;
mod config;
mod constrain;
mod embedder;
mod error;
mod generate;
mod image;
mod judge;
mod kind;
mod kv;
mod line;
mod llm;
mod loaded;
mod m3;
mod multi;
mod options;
mod outputs;
mod pipeline;
mod plan;
mod ready;
mod reranker;
mod run;
mod sample;
mod schedule;
mod sentence;
mod seq2seq;
mod session;
mod size;
mod sparse;
mod tagger;
mod verdict;

pub use caller::{Caller, Times};
pub use classifier::{Classified, Classifier, Label, Representation, Scores};
pub use clip::Clip;
pub use constrain::{Format, FormatError};
pub use embedder::{EmbedOptions, Embedder, Embeddings, Prompt};
pub use error::{Error, Result};
pub use generate::{Activity, Answer, Event, Finish, Generation, Pick, Request, Start, Started, Stream, Within};
pub use image::Image;
pub use kind::{Kind, Support, plan, supports};
pub use line::Waiting;
pub use llm::{ChatOptions, Llm, LlmOptions, Token};
pub use loaded::Loaded;
pub use m3::{M3, Three, Threes};
pub use multi::{Multi, MultiEmbeddings, Vectors};
pub use options::{DeviceChoice, LoadOptions};
pub use outputs::{Precision, Quantized, Ranges};
pub use plan::{LEAST_AUTO, Plan};
pub use reranker::{RankOptions, Ranked, Ranking, Reranker};
pub use sample::{EarlyStopping, Logprobs, Params};
pub use sconce_formats::Checkpoint;
pub use sconce_hub as hub;
pub use sconce_text::chat::{Message, TemplateError};
pub use sconce_text::{TextOrPair, TextOrTokens, TextToken, Truncate};
pub use seq2seq::{Answers, BeamSearch, Search, Seq2Seq, Seq2SeqOptions, Seq2SeqRoom, Writing, Written};
pub use size::Size;
pub use sparse::{Sparse, SparseEmbeddings, SparseVector};
pub use tagger::{Entity, Strategy, Tagged, Tagger};
pub use verdict::{Verdict, verdict_path};

/// What runs underneath: devices, dtypes, rungs, cases.
pub use sconce_ops as ops;
