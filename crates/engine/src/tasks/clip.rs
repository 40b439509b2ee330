//! Image–text embeddings (CLIP: Radford et al. 2021, arXiv:2103.00020; SigLIP: Zhai et al. 2023,
//! arXiv:2303.15343).

use super::TaskType;
use super::classify::{Label, Scores};
use super::embed::Embeddings;
use crate::config::{Entry, FileFacts, InputSpec, plain_input_spec};
use crate::error::{Error, Result};
use crate::image::{Image, Processor};
use crate::options::LoadOptions;
use crate::plan::Plan;
use crate::runtime::{Loaded, ModelInfo, RequestSettings};
use crate::workloads::encode::{
    self, Encode, GraphTowers, GraphUse, Parts, Pipeline, Session, Texts, dummy_sequences, sanity_tokens, varied_ids,
};
use sconce_formats::optional_json;
use sconce_hub::{Files, Progress, Reference};
use sconce_models::{self as models, Batch, Dual, DualKind, Images, Limits, Sequence, TextTower, VisionTower, dual};
use sconce_ops::{DType, Device, Place, Tensor, l2_norm, threads};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// A model with a text tower and a vision tower, loaded and checked.
///
/// ```no_run
/// use sconce_engine::{Clip, Image, LoadOptions};
///
/// let clip = Clip::load(&"openai/clip-vit-base-patch32".parse()?, &LoadOptions::from_env()?, &())?;
/// let image = Image::decode(&std::fs::read("cat.jpg")?)?;
/// for label in &clip.classify(&[image], &["a photo of a cat", "a photo of a dog"])?[0] {
///     println!("{:.3} {}", label.score, label.label);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Clip {
    session: Session<Towers>,
    processor: Arc<Processor>,
    settings: TowerSettings,
    /// Images per batch.
    images: usize,
}

/// What does not depend on the device.
#[derive(Clone, Copy)]
struct TowerSettings {
    /// How cosine similarities become scores; `None` if the files do not say.
    logits: Option<LogitScale>,
    /// The length that texts are padded to, if the model was trained so.
    padding: Option<usize>,
    /// The image size that the model takes.
    image: models::Image,
}

/// How cosine similarities become scores.
#[derive(Clone, Copy)]
struct LogitScale {
    scale: f32,
    bias: f32,
    scores: Scores,
}

impl Loaded for Clip {
    fn model(&self) -> &ModelInfo {
        &self.session.info
    }
    fn settings(&mut self) -> &mut RequestSettings {
        &mut self.session.settings
    }
}

impl TaskType for Clip {
    fn serves(facts: &FileFacts) -> bool {
        let families = ["clip", "siglip"];
        facts.has_module("CLIPModel") || families.iter().any(|family| facts.model_type().starts_with(family))
    }
    fn plan_files(files: &Files, device: Device, options: &LoadOptions) -> Result<Plan> {
        encode::plan::<Towers>(files, device, options, ClipSpec::read)
    }
    fn load_files(files: &Files, options: &LoadOptions, progress: &dyn Progress) -> Result<Clip> {
        let session: Session<Towers> = Session::load(files, options, progress, ClipSpec::read)?;
        let root = &session.spec.input_spec.root;
        let processor = Processor::read(root).map_err(|what| Error::file(root, what))?;
        let settings = session.executor.call(|workload| Ok(workload.pipeline.settings))?;
        let side = settings.image.side;
        if processor.side() != (side, side) {
            let (height, width) = processor.side();
            let what =
                format!("its image processor makes images of {width} × {height}, but the model takes {side} × {side}");
            return Err(Error::file(root, what));
        }
        let images = (session.plan.batch_tokens / settings.image.tokens()).max(1);
        Ok(Clip { session, processor: Arc::new(processor), settings, images })
    }
}

impl Clip {
    /// Finds the files, plans, loads and checks the model.
    pub fn load(reference: &Reference, options: &LoadOptions, progress: &dyn Progress) -> Result<Clip> {
        super::load(reference, options, progress)
    }

    /// Embeddings of texts, L2-normalized.
    pub fn texts<T: AsRef<str> + Sync>(&self, texts: &[T]) -> Result<Embeddings> {
        let (tokenizer, spec, plan) = (&self.session.text, &self.session.spec, &self.session.plan);
        let encoded = self.session.read(|reader| reader.encode(texts, ""))?;
        let Texts { mut items, tokens, truncated } = Texts::of(encoded, 0);
        if let Some(length) = self.settings.padding {
            let padding = spec.padding.as_deref().and_then(|token| tokenizer.id(token)).ok_or_else(|| {
                Error::file(
                    &spec.input_spec.root,
                    "the model needs padded texts, but its tokenizer has no padding token",
                )
            })?;
            items.iter_mut().for_each(|w| {
                w.sequence.ids.resize(length, padding);
                w.sequence.types.clear();
            });
        }
        let dimension = plan.dimension;
        let mut values = vec![0f32; texts.len() * dimension];
        self.session.run(items, |i, results| {
            values[i * dimension..][..dimension].copy_from_slice(results[0]);
            Ok(())
        })?;
        Ok(Embeddings { values, dimension, tokens, truncated })
    }

    /// Embeddings of images, L2-normalized.
    pub fn images(&self, images: &[Image]) -> Result<Embeddings> {
        let dimension = self.session.plan.dimension;
        let mut values = Vec::with_capacity(images.len() * dimension);
        for batch in images.chunks(self.images) {
            let pixels: Vec<Vec<f32>> = self
                .session
                .read(|_| Ok::<_, Error>(threads::map(batch.len(), |i| self.processor.pixels(&batch[i]))))?;
            values.extend(self.session.call(move |workload: &Encode<Towers>| {
                let pixels: Vec<&[f32]> = pixels.iter().map(Vec::as_slice).collect();
                Ok(workload.pipeline.encode_images(&pixels, &workload.place)?.to_f32()?)
            })?);
        }
        if let Some(i) = values.iter().position(|v| !v.is_finite()) {
            let what = format!("the result of image {}", i / dimension + 1);
            return Err(Error::unsound(&what, self.session.plan.dtype));
        }
        Ok(Embeddings { values, dimension, tokens: Vec::new(), truncated: Vec::new() })
    }

    /// Zero-shot classification: the score of each text for each image, in the order of the texts.
    /// CLIP's scores of an image sum to one; SigLIP scores each text independently.
    pub fn classify<T: AsRef<str> + Sync>(&self, images: &[Image], texts: &[T]) -> Result<Vec<Vec<Label>>> {
        let scores = self.score(&self.images(images)?, &self.texts(texts)?)?;
        let label = |(text, score): (&T, f32)| Label { label: text.as_ref().to_string(), score };
        Ok(scores.into_iter().map(|scores| texts.iter().zip(scores).map(label).collect()).collect())
    }

    /// Like [`Clip::classify`], for existing embeddings: one row of scores per image. Fails for an
    /// ONNX model that does not say how similarities become scores.
    pub fn score(&self, images: &Embeddings, texts: &Embeddings) -> Result<Vec<Vec<f32>>> {
        let Some(LogitScale { scale, bias, scores }) = self.settings.logits else {
            let what = "the model's ONNX files do not say how cosine similarities become scores: they have no logits_per_image \
                        in float32; compare the embeddings (--cosine), or export both towers into one model.onnx";
            return Err(Error::file(&self.session.plan.root, what));
        };
        let dot =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32;
        let logits = |image: &[f32]| texts.rows().map(|text| dot(image, text) * scale + bias).collect::<Vec<f32>>();
        Ok(images.rows().map(|image| scores.apply(&logits(image))).collect())
    }
}

/// The settings from the model's files.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClipSpec {
    input_spec: InputSpec,
    /// The padding token, for models that pad short texts.
    padding: Option<String>,
}

impl ClipSpec {
    /// Reads a plain model, or one in a sentence-transformers folder.
    pub(crate) fn read(dir: &Path) -> Result<ClipSpec> {
        let path = dir.join("modules.json");
        let root = match optional_json::<Vec<Entry>>(&path)?.as_deref() {
            Some([only]) if matches!(only.class(), "CLIPModel" | "Transformer") => only.folder(dir, &path)?,
            Some(_) => {
                return Err(Error::file(
                    &path,
                    "must have exactly one module, a CLIPModel or a Transformer; others are not supported",
                ));
            }
            None => dir.to_path_buf(),
        };
        let config: Value = optional_json(&root.join("tokenizer_config.json"))?.unwrap_or_default();
        let token = config.get("pad_token").map(|token| token.get("content").unwrap_or(token));
        let padding = token.and_then(Value::as_str).map(String::from);
        Ok(ClipSpec { input_spec: plain_input_spec(&root)?, padding })
    }
}

/// Both towers.
pub(crate) struct Towers {
    encoders: Encoders,
    dimension: usize,
    dtype: DType,
    settings: TowerSettings,
}

/// What runs the towers.
enum Encoders {
    Native { text: Box<dyn TextTower>, vision: Box<dyn VisionTower> },
    Graph(Box<GraphTowers>),
}

impl Towers {
    fn of_graph(towers: GraphTowers, dtype: DType) -> Result<Towers> {
        let (sizes, logits) = (towers.sizes, towers.logits()?);
        let logits = logits.map(|(scale, bias)| LogitScale { scale, bias, scores: scores(sizes.kind) });
        let settings = TowerSettings { logits, padding: sizes.padding, image: sizes.image };
        Ok(Towers { encoders: Encoders::Graph(Box::new(towers)), dimension: sizes.dimension, dtype, settings })
    }

    /// f32 `[images, dimension]`.
    fn encode_images(&self, pixels: &[&[f32]], place: &Place) -> Result<Tensor> {
        let embeddings = match &self.encoders {
            Encoders::Native { vision, .. } => {
                let images = Images::new(pixels, vision.image(), self.dtype, place)?;
                vision.forward(&images, &mut |_, _| {})?
            }
            Encoders::Graph(towers) => towers.images(pixels)?,
        };
        Ok(l2_norm(&embeddings)?)
    }

    fn blank_image(&self) -> Vec<f32> {
        let side = self.settings.image.side;
        vec![0.0; 3 * side * side]
    }
}

fn scores(kind: DualKind) -> Scores {
    match kind {
        DualKind::Softmax => Scores::Softmax,
        DualKind::Sigmoid => Scores::Sigmoid,
    }
}

impl Pipeline for Towers {
    type Spec = ClipSpec;
    const GRAPH: GraphUse = GraphUse::Towers;

    fn input_spec(spec: &ClipSpec) -> &InputSpec {
        &spec.input_spec
    }

    fn load(parts: &Parts, _: &ClipSpec) -> Result<Towers> {
        if let Some(towers) = parts.graph_towers()? {
            return Towers::of_graph(towers, parts.dtype);
        }
        let Dual { text, vision, dimension, logit_scale, logit_bias, kind } = dual(&parts.config, &parts.weights)?;
        let (Some(text), Some(vision)) = (text, vision) else {
            return Err(Error::file(&parts.root, "has one tower only; comparing texts and images needs both"));
        };
        let logits = LogitScale { scale: logit_scale, bias: logit_bias, scores: scores(kind) };
        let settings = TowerSettings { logits: Some(logits), padding: text.padding(), image: vision.image() };
        Ok(Towers { encoders: Encoders::Native { text, vision }, dimension, dtype: parts.dtype, settings })
    }

    fn limits(&self) -> Limits {
        match &self.encoders {
            Encoders::Native { text, .. } => text.limits(),
            Encoders::Graph(towers) => towers.limits(),
        }
    }

    fn width(&self) -> usize {
        self.dimension
    }

    /// f32 `[sequences, dimension]`.
    fn forward(&self, batch: &Batch, _: &[usize]) -> Result<Vec<Tensor>> {
        let embeddings = match &self.encoders {
            Encoders::Native { text, .. } => text.forward(batch, &mut |_, _| {})?,
            Encoders::Graph(towers) => towers.texts(batch)?,
        };
        Ok(vec![l2_norm(&embeddings)?])
    }

    fn dry_pass(&self, place: &Place, tokens: usize, length: usize) -> Result<()> {
        let blank_image = self.blank_image();
        let sequences = dummy_sequences(tokens, length, usize::MAX);
        self.forward(&Batch::new(&sequences, self.limits(), place)?, &[])?;
        self.encode_images(&vec![&*blank_image; (tokens / self.settings.image.tokens()).max(1)], place)?;
        Ok(())
    }

    fn sanity_check(&self, place: &Place) -> Result<Vec<Tensor>> {
        let limits = self.limits();
        let ids = varied_ids(sanity_tokens(place.device()).min(limits.positions), limits.vocabulary);
        let batch = Batch::new(&[Sequence { ids, ..Sequence::default() }], limits, place)?;
        let mut outputs = self.forward(&batch, &[0])?;
        outputs.push(self.encode_images(&[&self.blank_image()], place)?);
        Ok(outputs)
    }
}
