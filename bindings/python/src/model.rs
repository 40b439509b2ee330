//! Loaded models.

use crate::call::{call_with_progress, detached, parse};
use crate::error::OrRaise;
use crate::fork;
use crate::handle::Handle;
use crate::options::Options;
use pyo3::prelude::*;
use sconce_engine::{Error, Result, Task, TaskModel, hub};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A loaded model of any task. Functions take it as their first argument.
#[pyclass(frozen, module = "sconce._sconce")]
pub(crate) struct Model(Handle<TaskModel>);

impl Model {
    /// The model, unless it was closed or belongs to the parent of this process.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<Arc<TaskModel>> {
        self.0.get(py)
    }
}

/// Ids, texts, and character ranges (`None` for special tokens) of tokens.
type Tokens = (Vec<u32>, Vec<String>, Vec<Option<(usize, usize)>>);

/// The error for a model of another task.
pub(crate) fn wrong_task(wanted: &str) -> Error {
    Error::Input(format!("the model was not loaded for the task {wanted}"))
}

/// Finds the files of a model and loads them for a task. The task `cross_encoder` is `classify` for
/// a model with several labels, else `rerank`; `embedding` is `embed`, `sparse` or `multi`.
#[pyfunction]
pub(crate) fn load(
    py: Python<'_>,
    task: String,
    name: String,
    options: String,
    on_progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Model> {
    let options: Options = parse(&options).or_raise(py)?;
    let (reference, options) = (options.reference(&name).or_raise(py)?, options.load_options().or_raise(py)?);
    fork::check(py, options.device)?;
    let model = call_with_progress(py, on_progress, move |caller| {
        let files = hub::resolve(&reference, &options.hub_options(), caller)?;
        let task = match task.as_str() {
            "cross_encoder" if Task::detect(files.root())? == Task::Classify => Task::Classify,
            "cross_encoder" => Task::Rerank,
            "embedding" => sconce_index::embedding_task(files.root(), None)?,
            other => other.parse()?,
        };
        let model = task.load(&files, &options, caller);
        if let Ok(model) = &model {
            fork::opened(model.loaded().plan().device);
        }
        fork::tried(options.device);
        model
    })?;
    Ok(Model(Handle::new("model", Arc::new(model))))
}

#[pymethods]
impl Model {
    /// Unloads the model when the calls in progress have ended.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.close(py)
    }

    /// Facts about the model, a JSON object.
    fn info(&self, py: Python<'_>) -> PyResult<String> {
        let model = self.get(py)?;
        detached(py, || info(&model))
    }

    /// The op calls since loading, a JSON list.
    fn counts(&self, py: Python<'_>) -> PyResult<String> {
        let model = self.get(py)?;
        let row = |ran: &sconce_engine::OpCalls| json!({"op": ran.op, "device": ran.device, "dtype": ran.dtype, "rung": ran.rung, "calls": ran.calls});
        detached(py, || Ok(Value::Array(model.loaded().op_calls().iter().map(row).collect()).to_string()))
    }

    /// The tokens of a text, not truncated.
    fn tokenize(&self, py: Python<'_>, text: &str, special: bool) -> PyResult<Tokens> {
        let model = self.get(py)?;
        let tokens = detached(py, || model.loaded().tokenize(text, special))?;
        let ids = tokens.iter().map(|token| token.id).collect();
        let places = tokens.iter().map(|token| token.place).collect();
        Ok((ids, tokens.into_iter().map(|token| token.text).collect(), places))
    }

    /// The text of tokens.
    fn detokenize(&self, py: Python<'_>, ids: Vec<u32>, skip_special: bool) -> PyResult<String> {
        let model = self.get(py)?;
        detached(py, || model.loaded().detokenize(&ids, skip_special))
    }
}

fn info(model: &TaskModel) -> Result<String> {
    let (loaded, plan) = (model.loaded(), model.loaded().plan());
    let mut info = json!({
        "device": plan.runs_on(), "is_gpu": plan.is_on_gpu(), "dtype": plan.format(),
        "dimension": plan.dimension, "max_tokens": plan.max_tokens, "vocabulary": plan.vocabulary,
        "root": loaded.files().root().display().to_string(), "origin": loaded.files().origin.to_string(),
        "peak_bytes": loaded.peak_bytes(),
    });
    let more = match model {
        TaskModel::Embed(embedder) => {
            let text = |name: &str| embedder.prompt(&sconce_engine::Prompt::Named(name.into())).map(String::from);
            let prompts: Result<Map<String, Value>> =
                embedder.prompts().map(|name| Ok((name.to_owned(), text(name)?.into()))).collect();
            let poolings: Vec<_> = embedder.poolings().iter().map(|pooling| format!("{pooling:?}")).collect();
            json!({"task": "embed", "prompts": prompts?, "poolings": poolings, "tasks": embedder.tasks(),
                "default_prompt": embedder.default_prompt()})
        }
        TaskModel::Rerank(_) => json!({"task": "rerank"}),
        TaskModel::Classify(classifier) => {
            json!({"task": "classify", "labels": classifier.labels(), "scores": format!("{:?}", classifier.scores())})
        }
        TaskModel::Tag(tagger) => json!({"task": "tag", "labels": tagger.labels()}),
        TaskModel::Gliner(_) => json!({"task": "gliner"}),
        TaskModel::Generate(llm) => {
            json!({"task": "generate", "context": llm.context(), "template": llm.template(false)})
        }
        TaskModel::Seq2Seq(model) => json!({"task": "seq2seq", "max_input_tokens": model.longest_input()}),
        TaskModel::Sparse(_) => json!({"task": "sparse"}),
        TaskModel::Multi(_) => json!({"task": "multi"}),
        TaskModel::Clip(_) => json!({"task": "clip"}),
        TaskModel::M3(_) => json!({"task": "m3"}),
    };
    if let (Value::Object(info), Value::Object(more)) = (&mut info, more) {
        info.extend(more);
    }
    Ok(info.to_string())
}
