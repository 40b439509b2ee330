//! `Sconce::Native::IndexModel`: the embedding model of an index.

use crate::convert::{Text, model};
use crate::error::argument;
use crate::guard::{function, method};
use crate::gvl;
use crate::handle::Handle;
use magnus::{Class, Error, Module, Object, RModule, Ruby};
use sconce_engine::{RequestContext, hub};
use sconce_index::{EmbedPrompts, Embedder, EmbeddingKind, embedder_of, embedding_task};
use std::sync::Arc;

#[magnus::wrap(class = "Sconce::Native::IndexModel", free_immediately)]
pub(crate) struct NativeIndexModel(pub(crate) Handle<Arc<dyn Embedder>>);

/// Loads a model for embeddings of a kind, `dense`, `sparse` or `multi_vector`; nil: the kind that
/// the model's files are made for.
fn load(ruby: &Ruby, name: Text, device: Text, kind: Option<Text>) -> Result<NativeIndexModel, Error> {
    let (reference, options) = model(ruby, &name, &device)?;
    let kind = match kind.as_deref() {
        None => None,
        Some("dense") => Some(EmbeddingKind::Dense),
        Some("sparse") => Some(EmbeddingKind::Sparse),
        Some("multi_vector") => Some(EmbeddingKind::MultiVector),
        Some(other) => return Err(argument(ruby, format!("unknown kind of embeddings {other}"))),
    };
    let embedder = gvl::run(ruby, &RequestContext::default(), move || -> sconce_index::Result<Arc<dyn Embedder>> {
        let files = hub::resolve(&reference, &options.hub_options(), &()).map_err(sconce_engine::Error::from)?;
        let model = embedding_task(files.root(), kind)?.load(&files, &options, &())?;
        Ok(Arc::from(embedder_of(&model, &name, EmbedPrompts::default())?))
    })?;
    Ok(NativeIndexModel(Handle::new(embedder)))
}

fn close(ruby: &Ruby, this: &NativeIndexModel) -> Result<(), Error> {
    this.0.close(ruby)
}

pub(crate) fn define(ruby: &Ruby, native: RModule) -> Result<(), Error> {
    let class = native.define_class("IndexModel", ruby.class_object())?;
    class.undef_default_alloc_func();
    class.define_singleton_method("load", function!(load, 3))?;
    class.define_method("close", method!(close, 0))
}
