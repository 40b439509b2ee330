//! The engine's models by name, as indexes know them.

use std::path::Path;

use sconce_engine::hub::Reference;
use sconce_engine::{Task, TaskModel};

use super::{DenseModel, EmbedPrompts, Embedder, EmbeddingKind, LateInteractionModel, SparseModel};
use crate::error::{Error, Result};

/// The task that loads an embedding model from the files in `root`: that of the embeddings which an
/// index has, or else the one that the files are made for.
pub fn embedding_task(root: &Path, known: Option<EmbeddingKind>) -> sconce_engine::Result<Task> {
    Ok(match known {
        Some(EmbeddingKind::Dense) => Task::Embed,
        Some(EmbeddingKind::Sparse) => Task::Sparse,
        Some(EmbeddingKind::MultiVector) => Task::Multi,
        // bge-m3 too has one vector per text.
        None => match Task::detect(root)? {
            task @ (Task::Sparse | Task::Multi) => task,
            _ => Task::Embed,
        },
    })
}

/// The embedder of a loaded model. `name` is what the model was loaded by; the index keeps it in
/// the form of [`portable_name`]. Only dense models have prompts.
pub fn embedder_of(model: &TaskModel, name: &str, prompts: EmbedPrompts) -> Result<Box<dyn Embedder>> {
    let name = portable_name(name);
    Ok(match model {
        TaskModel::Embed(model) => Box::new(DenseModel::new(model.clone(), &name, prompts)?),
        TaskModel::Sparse(model) => Box::new(SparseModel::new(model.clone(), &name)?),
        TaskModel::Multi(model) => Box::new(LateInteractionModel::new(model.clone(), &name)?),
        _ => return Err(Error::Input(format!("{name} was not loaded as an embedding model"))),
    })
}

/// The name of a model that finds it from any working directory.
pub fn portable_name(name: &str) -> String {
    match name.parse::<Reference>() {
        Ok(Reference::Dir(path) | Reference::Gguf(path)) => absolute(&path).unwrap_or_else(|| name.to_string()),
        _ => name.to_string(),
    }
}

fn absolute(path: &Path) -> Option<String> {
    std::path::absolute(path).ok()?.into_os_string().into_string().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_named_from_the_root() {
        let name = portable_name("src");
        assert!(Path::new(&name).is_absolute() && name.ends_with("src"), "{name}");
        assert_eq!(portable_name("minilm"), "minilm");
        assert_eq!(portable_name("BAAI/bge-m3@main"), "BAAI/bge-m3@main");
    }
}
