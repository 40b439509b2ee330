//! `Sconce::Native::Reranker`.

use crate::convert::{Text, model, texts};
use crate::error::argument;
use crate::guard::{function, method};
use crate::gvl;
use crate::handle::Handle;
use magnus::{Class, Error, Module, Object, RArray, RModule, Ruby};
use sconce_engine::{Loaded, RankOptions, RankPooling, RequestContext, Reranker};

#[magnus::wrap(class = "Sconce::Native::Reranker", free_immediately)]
pub(crate) struct NativeReranker(pub(crate) Handle<Reranker>);

fn load(ruby: &Ruby, name: Text, device: Text) -> Result<NativeReranker, Error> {
    let (reference, options) = model(ruby, &name, &device)?;
    let load = move || Reranker::load(&reference, &options, &());
    gvl::run(ruby, &RequestContext::default(), load).map(|model| NativeReranker(Handle::new(model)))
}

/// `[index, score]` of each document, best first. A pair is truncated at `max_tokens`, if the model
/// takes as many; nil: at the model's own limit.
fn rerank(
    ruby: &Ruby,
    this: &NativeReranker,
    query: Text,
    documents: RArray,
    pooling: Text,
    raw: bool,
    max_tokens: Option<usize>,
) -> Result<Vec<(usize, f32)>, Error> {
    let (context, documents) = (RequestContext::default(), texts(ruby, documents)?);
    let pooling = match &*pooling {
        "pooler" => RankPooling::Pooler,
        "cls" => RankPooling::Cls,
        "mean" => RankPooling::Mean,
        other => return Err(argument(ruby, format!("unknown pooling_method {other}; one of pooler, cls, mean"))),
    };
    let model = this.0.get(ruby)?.with_context(&context).with_max_tokens(max_tokens);
    let options = RankOptions::default().with_raw(raw).with_pooling(pooling);
    let ranking = gvl::run(ruby, &context, move || model.rerank(&query, &documents, options))?;
    Ok(ranking.ranked.into_iter().map(|r| (r.index, r.score)).collect())
}

/// The most tokens of a pair that the model takes.
fn max_tokens(ruby: &Ruby, this: &NativeReranker) -> Result<usize, Error> {
    Ok(this.0.get(ruby)?.plan().max_tokens)
}

fn close(ruby: &Ruby, this: &NativeReranker) -> Result<(), Error> {
    this.0.close(ruby)
}

pub(crate) fn define(ruby: &Ruby, native: RModule) -> Result<(), Error> {
    let class = native.define_class("Reranker", ruby.class_object())?;
    class.undef_default_alloc_func();
    class.define_singleton_method("load", function!(load, 2))?;
    class.define_method("rerank", method!(rerank, 5))?;
    class.define_method("max_tokens", method!(max_tokens, 0))?;
    class.define_method("close", method!(close, 0))
}
