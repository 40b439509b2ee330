//! The served model of a vector store.

use super::fault::index_fault;
use crate::error::{Fault, FaultKind};
use crate::served_model::ServedModel;
use sconce_engine::{Loaded, RequestContext, TaskModel};
use sconce_index::{DenseModel, EmbedPrompts};

/// The embedder of a served model, for one request or for the indexing of one file.
pub(crate) fn embedder(served: &ServedModel, caller: Option<&RequestContext>) -> Result<DenseModel, Fault> {
    let TaskModel::Embed(embedder) = &served.model else {
        let what = format!(
            "vector stores need a model of one embedding per text; `{}` is loaded for the task `{}`; name another \
             model in `embedding_model`, or serve it with --task embed",
            served.id, served.task
        );
        return Err(Fault::new(FaultKind::UnsupportedTask, what).at("embedding_model"));
    };
    let embedder = match caller {
        Some(caller) => embedder.with_context(caller),
        None => embedder.clone(),
    };
    DenseModel::new(embedder, &served.id, EmbedPrompts::default()).map_err(index_fault)
}
