//! `Sconce::Native::Embedder`.

use crate::array::NativeArray;
use crate::convert::{Text, model, texts};
use crate::error::argument;
use crate::guard::{function, method};
use crate::gvl;
use crate::handle::Handle;
use magnus::{Class, Error, Module, Object, RArray, RModule, Ruby};
use sconce_engine::{EmbedOptions, Embedder, Loaded, Pooling, Prompt, RequestContext, TextOrTokens};

#[magnus::wrap(class = "Sconce::Native::Embedder", free_immediately)]
struct NativeEmbedder(Handle<Embedder>);

fn load(ruby: &Ruby, name: Text, device: Text) -> Result<NativeEmbedder, Error> {
    let (reference, options) = model(ruby, &name, &device)?;
    let load = move || Embedder::load(&reference, &options, &());
    gvl::run(ruby, &RequestContext::default(), load).map(|model| NativeEmbedder(Handle::new(model)))
}

/// `[texts, dimension]`. `pooling`: `model`, `mean` or `cls`; `normalize`: nil as the model's files
/// say.
fn embed(
    ruby: &Ruby,
    this: &NativeEmbedder,
    list: RArray,
    pooling: Text,
    normalize: Option<bool>,
) -> Result<NativeArray, Error> {
    let (context, texts) = (RequestContext::default(), texts(ruby, list)?);
    let pooling = match &*pooling {
        "model" => None,
        "mean" => Some(Pooling::Mean),
        "cls" => Some(Pooling::Cls),
        other => return Err(argument(ruby, format!("unknown pooling {other}"))),
    };
    let model = this.0.get(ruby)?.with_context(&context);
    let options = EmbedOptions::default().with_pooling(pooling).with_normalize(normalize);
    let rows = texts.len();
    let embeddings = gvl::run(ruby, &context, move || {
        let inputs: Vec<_> = texts.iter().map(|text| TextOrTokens::Text(text)).collect();
        model.embed_with(&inputs, &options)
    })?;
    NativeArray::from_f32(ruby, embeddings.values, &[rows, embeddings.dimension])
}

/// The hidden states of each text, `[1, tokens, hidden]`.
fn embed_all(ruby: &Ruby, this: &NativeEmbedder, list: RArray) -> Result<RArray, Error> {
    let (context, texts) = (RequestContext::default(), texts(ruby, list)?);
    let model = this.0.get(ruby)?.with_context(&context);
    let outputs = gvl::run(ruby, &context, move || {
        let inputs: Vec<_> = texts.iter().map(|text| TextOrTokens::Text(text)).collect();
        model.embed_all(&inputs, &Prompt::Default)
    })?;
    let all = ruby.ary_new_capa(outputs.results.len());
    for states in outputs.results {
        let dims = [1, states.values.len() / states.dimension.max(1), states.dimension];
        all.push(NativeArray::from_f32(ruby, states.values, &dims)?)?;
    }
    Ok(all)
}

fn dimension(ruby: &Ruby, this: &NativeEmbedder) -> Result<usize, Error> {
    this.0.get(ruby)?.dimension(None).map_err(|e| crate::error::failure(ruby, e))
}

fn close(ruby: &Ruby, this: &NativeEmbedder) -> Result<(), Error> {
    this.0.close(ruby)
}

pub(crate) fn define(ruby: &Ruby, native: RModule) -> Result<(), Error> {
    let class = native.define_class("Embedder", ruby.class_object())?;
    class.undef_default_alloc_func();
    class.define_singleton_method("load", function!(load, 2))?;
    class.define_method("embed", method!(embed, 3))?;
    class.define_method("embed_all", method!(embed_all, 1))?;
    class.define_method("dimension", method!(dimension, 0))?;
    class.define_method("close", method!(close, 0))
}
