//! The native part of the Ruby gem: a small module `Sconce::Native` that `lib/sconce/` wraps.
//!
//! Every call that runs or loads a model leaves the Ruby VM lock (`gvl.rs`). Arguments and results
//! are plain: strings, numbers, arrays, JSON.

// Without the feature the crate is empty, so that the workspace builds without Ruby.
#![cfg(feature = "extension")]
#![allow(missing_docs, reason = "the function that Ruby calls is generated")]

mod array;
mod convert;
mod embedder;
mod error;
mod fork;
mod guard;
mod gvl;
mod handle;
mod index;
mod index_model;
mod info;
mod llm;
mod reranker;
mod tagger;
mod tokenizer;

use crate::guard::function;
use magnus::{Error, Module, Object, Ruby};

#[magnus::init(name = "sconce_native")]
fn init(ruby: &Ruby) -> Result<(), Error> {
    let module = ruby.define_module("Sconce")?;
    module.define_error("Error", ruby.exception_runtime_error())?;
    let native = module.define_module("Native")?;
    native.define_singleton_method("devices", function!(info::devices, 0))?;
    native.define_singleton_method("best_device", function!(info::best_device, 0))?;
    native.define_singleton_method("check_device", function!(info::check_device, 1))?;
    native.define_singleton_method("threads", function!(info::threads, 0))?;
    native.define_singleton_method("has_feature", function!(info::has_feature, 1))?;
    native.define_singleton_method("counts", function!(array::counts, 0))?;
    native.define_singleton_method("exiting", function!(handle::exiting, 0))?;
    native.define_singleton_method("panic", function!(info::panic, 1))?;
    native.define_singleton_method("parse_files", function!(index::parse_files, 0))?;
    array::define(ruby, native)?;
    tokenizer::define(ruby, native)?;
    embedder::define(ruby, native)?;
    reranker::define(ruby, native)?;
    tagger::define(ruby, native)?;
    index_model::define(ruby, native)?;
    index::define(ruby, native)?;
    llm::define(ruby, native)
}
