//! Sparse embeddings (SPLADE): weights over the vocabulary.

use super::TaskType;
use super::m3::OrM3;
use super::static_sparse::StaticWeights;
use crate::config::{Entry, FileFacts, InputSpec, Prompt, Route, RoutePrompts, Router, input_spec, plain_input_spec};
use crate::error::{Error, Result};
use crate::options::LoadOptions;
use crate::plan::Plan;
use crate::runtime::{Loaded, ModelInfo, RequestSettings};
use crate::workloads::encode::{GraphUse, OutputKind, Outputs, Parts, Pipeline, Rows, Texts};
use sconce_formats::{json, optional_json};
use sconce_hub::{Files, Progress, Reference};
use sconce_models::{Backbone, Batch, Head, Limits, Task as HeadTask, head};
use sconce_ops::{Device, Splade as How, Tensor, splade};
use sconce_text::TextOrTokens;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// A sparse embedding: weights of some tokens of the vocabulary; all others are zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SparseVector {
    /// Token ids, ascending.
    pub ids: Vec<u32>,
    /// Their weights, above zero; the files of a model without inference may also have some below.
    pub weights: Vec<f32>,
}

impl SparseVector {
    /// From a dense row with a weight per token of the vocabulary.
    fn of(row: &[f32]) -> SparseVector {
        let some = || row.iter().enumerate().filter(|(_, w)| **w > 0.0);
        SparseVector { ids: some().map(|(i, _)| i as u32).collect(), weights: some().map(|(_, w)| *w).collect() }
    }

    /// The dot product: the similarity of two texts.
    pub fn dot(&self, other: &SparseVector) -> f32 {
        let weight = |(i, id)| other.ids.binary_search(id).map_or(0.0, |j| self.weights[i] * other.weights[j]);
        self.ids.iter().enumerate().map(weight).sum()
    }
}

/// A sparse model, loaded and checked: SPLADE with a masked language model's head, bge-m3, or a
/// Router, whose queries need no inference because every token has a fixed weight.
///
/// ```no_run
/// use sconce_engine::{LoadOptions, SparseEncoder};
///
/// let model = "prithivida/Splade_PP_en_v2".parse()?;
/// let encoder = SparseEncoder::load(&model, &LoadOptions::from_env()?, &())?;
/// let vectors = encoder.embed(&["A man is eating food.", "Someone has lunch."])?.results;
/// println!("{:.3}", vectors[0].dot(&vectors[1]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct SparseEncoder {
    encoder: OrM3<Splade>,
    /// For a model with a Router.
    queries: Option<Queries>,
    prompts: RoutePrompts,
}

/// How a model with a Router encodes queries.
#[derive(Clone)]
struct Queries {
    weights: Arc<StaticWeights>,
    /// The route of texts that are neither queries nor documents.
    default: Route,
}

impl SparseEncoder {
    /// Finds the files, plans, loads and checks the model.
    pub fn load(reference: &Reference, options: &LoadOptions, progress: &dyn Progress) -> Result<SparseEncoder> {
        super::load(reference, options, progress)
    }

    /// Sparse embeddings of `texts`, in their order.
    pub fn embed<T: AsRef<str> + Sync>(&self, texts: &[T]) -> Result<Outputs<SparseVector>> {
        let inputs: Vec<_> = texts.iter().map(|text| TextOrTokens::Text(text.as_ref())).collect();
        self.embed_inputs(&inputs)
    }

    /// Like [`SparseEncoder::embed`], for queries or documents. Most models encode both alike; others
    /// have a Router or a prompt for each.
    pub fn embed_as<T: AsRef<str> + Sync>(&self, texts: &[T], route: Route) -> Result<Outputs<SparseVector>> {
        let inputs: Vec<_> = texts.iter().map(|text| TextOrTokens::Text(text.as_ref())).collect();
        self.embed_inputs_as(&inputs, route)
    }

    /// Whether the model encodes queries in another way than documents.
    pub fn has_routes(&self) -> bool {
        self.queries.is_some() || self.prompts.of_route(Route::Query) != self.prompts.of_route(Route::Document)
    }

    /// Like [`SparseEncoder::embed`], for inputs that may be tokens.
    pub fn embed_inputs(&self, inputs: &[TextOrTokens<'_>]) -> Result<Outputs<SparseVector>> {
        self.embed_inputs_as(inputs, Route::Default)
    }

    /// Like [`SparseEncoder::embed_as`], for inputs that may be tokens.
    pub fn embed_inputs_as(&self, inputs: &[TextOrTokens<'_>], route: Route) -> Result<Outputs<SparseVector>> {
        self.embed_inputs_with(inputs, route, &Prompt::Default)
    }

    /// Like [`SparseEncoder::embed_inputs_as`], with this prompt before the texts. Tokens get none,
    /// nor does bge-m3, whose files have none.
    pub fn embed_inputs_with(
        &self,
        inputs: &[TextOrTokens<'_>],
        route: Route,
        prompt: &Prompt,
    ) -> Result<Outputs<SparseVector>> {
        let prompt = self.prompts.text(prompt, route)?;
        if let Some(queries) = &self.queries {
            let route = if route == Route::Default { queries.default } else { route };
            match route {
                Route::Query => return queries.weights.embed(inputs, prompt, self.encoder.request_settings()),
                Route::Document => {}
                Route::Default => {
                    let what = "the model encodes queries and documents differently, and has no default: say which";
                    return Err(Error::Input(what.into()));
                }
            }
        }
        let session = match &self.encoder {
            OrM3::M3(m3) => return Ok(m3.embed_inputs(inputs)?.map(|three| three.sparse)),
            OrM3::Own(session) => session,
        };
        let encoded = session.read(|reader| reader.encode_inputs(inputs, prompt))?;
        session.outputs(OutputKind::Task, Texts::of(encoded, 0), |_, results| Ok(SparseVector::of(results[0])))
    }

    /// The token of an id, as the tokenizer writes it.
    pub fn token(&self, id: u32) -> Option<String> {
        match &self.encoder {
            OrM3::Own(session) => session.text.token(id),
            OrM3::M3(m3) => m3.token(id),
        }
    }
}

impl Loaded for SparseEncoder {
    fn model(&self) -> &ModelInfo {
        self.encoder.model()
    }
    fn settings(&mut self) -> &mut RequestSettings {
        self.encoder.settings()
    }
}

impl TaskType for SparseEncoder {
    fn serves(facts: &FileFacts) -> bool {
        facts.has_module("SpladePooling")
    }
    fn also_reads(facts: &FileFacts) -> bool {
        facts.has_m3 || facts.class().ends_with("ForMaskedLM")
    }
    fn plan_files(files: &Files, device: Device, options: &LoadOptions) -> Result<Plan> {
        OrM3::<Splade>::plan(files, device, options, SpladeSpec::read)
    }
    fn load_files(files: &Files, options: &LoadOptions, progress: &dyn Progress) -> Result<SparseEncoder> {
        let queries = match router(&files.dir)? {
            Some(router) => Some(Queries {
                weights: Arc::new(StaticWeights::load(&static_weights(&router, &files.dir)?)?),
                default: router.default,
            }),
            None => None,
        };
        let encoder = OrM3::load(files, options, progress, SpladeSpec::read)?;
        let prompts = match &encoder {
            OrM3::Own(_) => RoutePrompts::read(&files.dir)?,
            OrM3::M3(_) => RoutePrompts::default(),
        };
        Ok(SparseEncoder { encoder, queries, prompts })
    }
}

/// The settings from the model's files.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SpladeSpec {
    input_spec: InputSpec,
    how: How,
}

#[derive(Deserialize)]
struct PoolingConfig {
    #[serde(default = "max")]
    pooling_strategy: String,
    #[serde(default = "relu")]
    activation_function: String,
}

fn max() -> String {
    "max".into()
}

fn relu() -> String {
    "relu".into()
}

/// The Router of the model in `dir`, if it is the only module.
fn router(dir: &Path) -> Result<Option<Router>> {
    match optional_json::<Vec<Entry>>(&dir.join("modules.json"))?.unwrap_or_default().as_slice() {
        [only] if Router::is_router(only) => Ok(Some(Router::read(only, dir)?)),
        _ => Ok(None),
    }
}

/// The tokenization settings of the query route, whose folder has the weights of the tokens.
fn static_weights(router: &Router, dir: &Path) -> Result<InputSpec> {
    let [queries, _] = router.routes();
    match queries {
        [only] if only.class() == "SparseStaticEmbedding" => {
            let folder = only.folder(dir, &router.path)?;
            let path = folder.join("config.json");
            let config: Value = optional_json(&path)?.unwrap_or_default();
            if let Some(elsewhere) = config.get("path").filter(|path| !path.is_null()) {
                let what = format!("takes the weights from another file (path: {elsewhere}), which is not supported");
                return Err(Error::file(&path, what));
            }
            plain_input_spec(&folder)
        }
        _ => {
            let what = format!("queries pass {}; only a SparseStaticEmbedding is supported", classes(queries));
            Err(Error::file(&router.path, what))
        }
    }
}

fn classes(modules: &[Entry]) -> String {
    modules.iter().map(Entry::class).collect::<Vec<_>>().join(", ")
}

impl SpladeSpec {
    /// Reads sentence-transformers files, or a plain masked language model with the settings of
    /// SPLADE's authors.
    pub(crate) fn read(dir: &Path) -> Result<SpladeSpec> {
        let path = dir.join("modules.json");
        let Some(modules) = optional_json::<Vec<Entry>>(&path)? else {
            return Ok(SpladeSpec { input_spec: plain_input_spec(dir)?, how: How { sum: false, twice: false } });
        };
        match router(dir)? {
            Some(router) => {
                static_weights(&router, dir)?;
                SpladeSpec::of_modules(router.routes()[1], dir, &router.path)
            }
            None => SpladeSpec::of_modules(&modules, dir, &path),
        }
    }

    /// Reads the two modules of a SPLADE model, which `path` names.
    fn of_modules(modules: &[Entry], dir: &Path, path: &Path) -> Result<SpladeSpec> {
        let kinds: Vec<&str> = modules.iter().map(Entry::class).collect();
        let ["Transformer" | "MLMTransformer", "SpladePooling"] = kinds[..] else {
            let what = format!(
                "modules {}: not a SPLADE model, which has a Transformer and a SpladePooling",
                classes(modules)
            );
            return Err(Error::file(path, what));
        };
        let input_spec = input_spec(&modules[0].folder(dir, path)?, dir)?;
        let path = modules[1].folder(dir, path)?.join("config.json");
        let config: PoolingConfig = json(&path)?;
        let sum = match &*config.pooling_strategy {
            "max" => false,
            "sum" => true,
            other => return Err(Error::file(&path, format!("pooling_strategy `{other}` is not supported"))),
        };
        let twice = match &*config.activation_function {
            "relu" => false,
            "log1p_relu" => true,
            other => return Err(Error::file(&path, format!("activation_function `{other}` is not supported"))),
        };
        Ok(SpladeSpec { input_spec, how: How { sum, twice } })
    }
}

/// An encoder with a masked language model's head, pooled over each sequence.
pub(crate) struct Splade {
    encoder: Box<dyn Backbone>,
    /// `None`: the encoder is a graph with the head in it, and its logits are pooled already.
    head: Option<Head>,
    how: How,
}

impl Pipeline for Splade {
    type Spec = SpladeSpec;
    const GRAPH: GraphUse = GraphUse::Texts;

    fn input_spec(spec: &SpladeSpec) -> &InputSpec {
        &spec.input_spec
    }

    fn load(parts: &Parts, spec: &SpladeSpec) -> Result<Splade> {
        let vocabulary = parts.config.get("vocab_size").and_then(Value::as_u64).unwrap_or(0) as usize;
        if let Some(encoder) = parts.graph_logits(Rows::Vocabulary(spec.how), vocabulary)? {
            return Ok(Splade { encoder, head: None, how: spec.how });
        }
        let encoder = parts.encoder()?;
        let head = head(HeadTask::Vocabulary, &parts.config, &parts.weights)?;
        Ok(Splade { encoder, head: Some(head), how: spec.how })
    }

    fn limits(&self) -> Limits {
        self.encoder.limits()
    }

    fn width(&self) -> usize {
        self.head.as_ref().map_or_else(|| self.encoder.hidden_size(), |head| head.out.outputs())
    }

    /// A row has the size of the vocabulary: 256 rows are 30 MB for BERT and 256 MB for
    /// XLM-RoBERTa.
    fn most_sequences(&self) -> usize {
        256
    }

    /// f32 `[sequences, vocabulary]`.
    fn forward(&self, batch: &Batch, _: &[usize]) -> Result<Vec<Tensor>> {
        let hidden = self.encoder.forward(batch, &mut |_, _| {})?;
        let Some(head) = &self.head else { return Ok(vec![hidden]) };
        let hidden = head.before(&hidden)?;
        Ok(vec![splade(&hidden, &batch.segments, &head.out, self.how)?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_vectors_keep_positive_weights_and_dot_shared_ids() {
        let (a, b) = (SparseVector::of(&[0.0, 2.0, 0.0, 1.0]), SparseVector::of(&[5.0, 3.0, 0.0, 0.5]));
        assert_eq!((a.ids.as_slice(), a.weights.as_slice()), (&[1, 3][..], &[2.0, 1.0][..]));
        assert_eq!((a.dot(&b), b.dot(&a)), (6.5, 6.5));
        assert_eq!(a.dot(&SparseVector::default()), 0.0);
    }
}
