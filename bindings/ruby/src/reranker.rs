//! `Sconce::Native::Reranker`.

use crate::convert::{model, text, texts};
use crate::error::argument;
use crate::gvl;
use crate::handle::Handle;
use magnus::{Class, Error, Module, Object, RArray, RModule, Ruby, Value, function, method};
use sconce_engine::{Loaded, RankOptions, RankPooling, RequestContext, Reranker};

#[magnus::wrap(class = "Sconce::Native::Reranker", free_immediately)]
struct NativeReranker(Handle<Reranker>);

fn load(ruby: &Ruby, name: String, device: String) -> Result<NativeReranker, Error> {
    let (reference, options) = model(ruby, &name, &device)?;
    let load = move || Reranker::load(&reference, &options, &());
    gvl::run(ruby, &RequestContext::default(), load).map(|model| NativeReranker(Handle::new(model)))
}

/// `[index, score]` of each document, best first.
fn rerank(
    ruby: &Ruby,
    this: &NativeReranker,
    query: Value,
    documents: RArray,
    pooling: String,
    raw: bool,
) -> Result<Vec<(usize, f32)>, Error> {
    let (context, query, documents) = (RequestContext::default(), text(ruby, query)?, texts(ruby, documents)?);
    let pooling = match &*pooling {
        "pooler" => RankPooling::Pooler,
        "cls" => RankPooling::Cls,
        "mean" => RankPooling::Mean,
        other => return Err(argument(ruby, format!("unknown pooling_method {other}; one of pooler, cls, mean"))),
    };
    let model = this.0.get(ruby)?.with_context(&context);
    let options = RankOptions::default().with_raw(raw).with_pooling(pooling);
    let ranking = gvl::run(ruby, &context, move || model.rerank(&query, &documents, options))?;
    Ok(ranking.ranked.into_iter().map(|r| (r.index, r.score)).collect())
}

pub(crate) fn define(ruby: &Ruby, native: RModule) -> Result<(), Error> {
    let class = native.define_class("Reranker", ruby.class_object())?;
    class.undef_default_alloc_func();
    class.define_singleton_method("load", function!(load, 2))?;
    class.define_method("rerank", method!(rerank, 4))?;
    class.define_method("close", method!(|this: &NativeReranker| this.0.close(), 0))
}
