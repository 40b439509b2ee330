//! Models of an index.

use crate::Failure;
use crate::args::{OnnxArgs, RunArgs};
use crate::program::program;
use crate::report::Report;
use sconce_engine::hub::resolve;
use sconce_engine::{Loaded, Reranker, TaskModel};
use sconce_index::read::ParserCommand;
use sconce_index::{EmbedPrompts, Embedder, EmbeddingKind, ModelIdentity, RerankModel, embedder_of, embedding_task};

/// The model of an index that none has been chosen for.
pub(crate) const DEFAULT_MODEL: &str = "minilm";

/// A loaded embedding model, as the index uses it and as the engine reports on it.
pub(crate) struct IndexModel {
    embedder: Box<dyn Embedder>,
    loaded: Box<dyn Loaded + Send + Sync>,
}

impl IndexModel {
    /// Loads a model for a new index, or for an index without embeddings.
    pub(crate) fn load(name: &str, run_args: &RunArgs, report: &Report) -> Result<IndexModel, Failure> {
        IndexModel::load_as(name, None, run_args, report)
    }

    /// Loads the model that an index was made with. Fails if it is another one by now.
    pub(crate) fn load_again(
        known: &ModelIdentity,
        run_args: &RunArgs,
        report: &Report,
    ) -> Result<IndexModel, Failure> {
        let model = IndexModel::load_newest(known, run_args, report)?;
        match known.difference(model.embedder().identity()) {
            None => Ok(model),
            Some(difference) => Err(format!(
                "the model {} is not the one that the index was made with ({difference}); `sconce index PATH --rebuild` \
                 makes the index anew",
                known.name
            )
            .into()),
        }
    }

    /// Loads the model of the name that an index knows. It may have changed since.
    pub(crate) fn load_newest(
        known: &ModelIdentity,
        run_args: &RunArgs,
        report: &Report,
    ) -> Result<IndexModel, Failure> {
        IndexModel::load_as(&known.name, Some(known.kind), run_args, report)
            .map_err(|e| format!("the index was made with the model {}: {e}", known.name).into())
    }

    fn load_as(
        name: &str,
        kind: Option<EmbeddingKind>,
        run_args: &RunArgs,
        report: &Report,
    ) -> Result<IndexModel, Failure> {
        let options = run_args.options()?;
        let files = resolve(&name.parse()?, &options.hub, report)?;
        let model = embedding_task(files.root(), kind)?.load(&files, &options, report)?;
        let embedder = embedder_of(&model, name, EmbedPrompts::default())?;
        let loaded: Box<dyn Loaded + Send + Sync> = match model {
            TaskModel::Embed(model) => Box::new(model),
            TaskModel::Sparse(model) => Box::new(model),
            TaskModel::Multi(model) => Box::new(model),
            _ => return Err(format!("{name}: this model does not embed texts").into()),
        };
        Ok(IndexModel { embedder, loaded })
    }

    pub(crate) fn embedder(&self) -> &dyn Embedder {
        &*self.embedder
    }

    /// The model, for reports of what ran.
    pub(crate) fn loaded(&self) -> &dyn Loaded {
        &*self.loaded
    }
}

/// Loads a reranker.
pub(crate) fn load_reranker(name: &str, run_args: &RunArgs, report: &Report) -> Result<RerankModel, Failure> {
    Ok(RerankModel::new(Reranker::load(&name.parse()?, &run_args.options()?, report)?))
}

/// The options of a model beside the one that the flags are meant for: the same device and threads,
/// but its own format and files.
pub(crate) fn beside(run_args: &RunArgs) -> RunArgs {
    RunArgs { dtype: None, batch_tokens: None, onnx: OnnxArgs::default(), ..run_args.clone() }
}

/// The program that parses files of untrusted formats, in a process of its own.
pub(crate) fn parser_command() -> Result<ParserCommand, Failure> {
    let program = program().map_err(|e| format!("cannot find this program: {e}"))?;
    Ok(ParserCommand { program, arguments: vec!["parse-files".into()] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_beside_another_has_its_own_format() {
        let flags = RunArgs {
            dtype: "q4_k".parse().ok(),
            batch_tokens: Some(7),
            offline: true,
            ..test_args(&["--device", "cpu"])
        };
        let other = beside(&flags);
        assert!(other.dtype.is_none() && other.batch_tokens.is_none() && other.offline);
        assert_eq!(other.device, flags.device);
    }

    fn test_args(flags: &[&str]) -> RunArgs {
        #[derive(clap::Parser)]
        struct Flags {
            #[command(flatten)]
            run_args: RunArgs,
        }
        <Flags as clap::Parser>::parse_from([&["test"], flags].concat()).run_args
    }
}
