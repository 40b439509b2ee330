//! `sconce._sconce`, the extension module beneath the Python package `sconce`: loaded models, one
//! file of functions per task, indexes, and the command. The classes that users see are written in Python.
//!
//! Every function that waits releases the GIL and watches for signals (`call.rs`). Options and
//! structured results pass as JSON, numbers as arrays that numpy reads in place.
#![allow(unsafe_code, reason = "PyO3's macros generate it; none is written here")]

mod array;
mod call;
mod classify;
mod clip;
mod command;
mod embed;
mod error;
mod fork;
mod handle;
mod index;
mod llm;
mod machine;
mod model;
mod multi_vector;
mod options;
mod rerank;
mod seq2seq;
mod sparse;
mod stream;
mod tag;

use pyo3::prelude::*;

#[pymodule]
mod _sconce {
    #[pymodule_export]
    use crate::array::Array;
    #[pymodule_export]
    use crate::call::Cancellation;
    #[pymodule_export]
    use crate::classify::{classify, logits};
    #[pymodule_export]
    use crate::clip::{clip_images, clip_scores, clip_texts};
    #[pymodule_export]
    use crate::command::run_command;
    #[pymodule_export]
    use crate::embed::{embed, embed_tokens, quantize};
    #[pymodule_export]
    use crate::fork::{after_fork, fork_count};
    #[pymodule_export]
    use crate::index::{Index, IndexModel, index_model, open_index};
    #[pymodule_export]
    use crate::llm::{generate, parse_tool_calls, render_chat};
    #[pymodule_export]
    use crate::machine::{devices, plan, set_threads, short_names, version};
    #[pymodule_export]
    use crate::model::{Model, load};
    #[pymodule_export]
    use crate::multi_vector::embed_multi;
    #[pymodule_export]
    use crate::rerank::{count_pair_tokens, rerank_logits};
    #[pymodule_export]
    use crate::seq2seq::{seq2seq, seq2seq_stream};
    #[pymodule_export]
    use crate::sparse::{embed_sparse, sparse_tokens};
    #[pymodule_export]
    use crate::stream::Stream;
    #[pymodule_export]
    use crate::tag::{gliner_tag, tag};
}
