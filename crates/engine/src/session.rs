//! Loading a model onto a device and running sequences through it: what every task shares.

use crate::load::{Checkpoint, Model};
use crate::plan::Plan;
use crate::run::Owner;
use crate::source::{self, Files, Progress, Reference};
use crate::text::{Encoded, Manner, Tokenizer};
use crate::{Error, LoadOptions, Result, schedule};
use sconce_models::{Batch, Encoder, Limits, Sequence, encoder};
use sconce_ops::{Counted, DType, Device, Ladder, Place, Tensor, Weights};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// No encoder has positions for longer texts; a file that says so is broken.
const LONGEST: usize = 1 << 20;

/// A model that is loaded and proven, whatever its task.
pub trait Loaded {
    /// What was planned before loading.
    fn plan(&self) -> &Plan;
    /// Where the files came from.
    fn files(&self) -> &Files;
    /// What really ran since loading, by op, device, dtype and rung.
    fn counts(&self) -> Vec<(Counted, u64)>;
    /// The most bytes that tensors held at once since loading, weights included.
    fn peak_bytes(&self) -> u64;
}

/// Lets a task tell what the model inside it can tell.
macro_rules! loaded {
    ($task:ty, $self:ident => $inner:expr) => {
        impl $crate::session::Loaded for $task {
            fn plan(&$self) -> &$crate::Plan {
                $crate::session::Loaded::plan($inner)
            }
            fn files(&$self) -> &$crate::source::Files {
                $crate::session::Loaded::files($inner)
            }
            fn counts(&$self) -> Vec<(sconce_ops::Counted, u64)> {
                $crate::session::Loaded::counts($inner)
            }
            fn peak_bytes(&$self) -> u64 {
                $crate::session::Loaded::peak_bytes($inner)
            }
        }
    };
}
pub(crate) use loaded;

impl<P: Pipeline> Loaded for Session<P> {
    fn plan(&self) -> &Plan {
        &self.plan
    }
    fn files(&self) -> &Files {
        &self.files
    }
    fn counts(&self) -> Vec<(Counted, u64)> {
        self.ladder.counts()
    }
    fn peak_bytes(&self) -> u64 {
        self.ladder.ledger.peak()
    }
}

/// How texts go in, as the model's files say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// The folder with the encoder's configuration, weights and tokenizer, or the GGUF file that holds all of them.
    pub(crate) root: PathBuf,
    /// The longest sequence, special tokens included, as far as the files around the encoder know.
    pub(crate) max_tokens: Option<usize>,
    /// What texts go through besides.
    pub(crate) manner: Manner,
}

/// What a pipeline is made from.
pub(crate) struct Parts {
    /// The folder with the encoder's files, or its GGUF.
    pub(crate) root: PathBuf,
    /// Its configuration.
    pub(crate) config: Value,
    /// Its weights, in the dtype of the activations.
    pub(crate) weights: Weights,
    /// The dtype of the activations.
    pub(crate) dtype: DType,
    /// Where everything goes.
    place: Place,
}

impl Parts {
    fn open(root: &Path, dtype: DType, place: Place) -> Result<Parts> {
        let Model { config, store, .. } = Model::open(root)?;
        let weights = Weights::new(store, dtype, place.clone());
        Ok(Parts { root: root.to_path_buf(), config, weights, dtype, place })
    }

    /// The encoder, which must look at a text as the model in the files does.
    pub(crate) fn encoder(&self) -> Result<Box<dyn Encoder>> {
        let encoder = encoder(&self.config, &self.weights)?;
        let says = |key: &str, value: bool| self.config.get(key).and_then(Value::as_bool) == Some(value);
        if encoder.cache().is_some() && (says("is_causal", false) || says("use_bidirectional_attention", true)) {
            let what = "is a language model changed to look both ways (is_causal, use_bidirectional_attention), which is \
                        not supported";
            return Err(Error::file(&self.root, what));
        }
        Ok(encoder)
    }

    /// Weights of a module that has files of its own.
    pub(crate) fn module(&self, dir: &Path, dtype: DType) -> Result<Weights> {
        Ok(Weights::new(Arc::new(Checkpoint::open(dir)?), dtype, self.place.clone()))
    }

    /// Weights in a file `name` beside the encoder's, in the dtype of the activations.
    pub(crate) fn beside(&self, name: &str) -> Result<Weights> {
        let store = Checkpoint::beside(&self.root, name)?;
        Ok(Weights::new(Arc::new(store), self.dtype, self.place.clone()))
    }
}

/// All that runs on the device for a task: an encoder and what stands behind it.
pub(crate) trait Pipeline: Sized + 'static {
    /// What the model's files say of the task.
    type Recipe: Clone + Send + 'static;
    /// Whether a GGUF file can hold such a model.
    const IN_GGUF: bool = false;

    /// How texts go in.
    fn reading(recipe: &Self::Recipe) -> Reading;
    /// Loads what runs on the device; on a phantom place, only its shapes.
    fn load(parts: &Parts, recipe: &Self::Recipe) -> Result<Self>;
    /// The largest ids it can take.
    fn limits(&self) -> Limits;
    /// Numbers in a row of the first result.
    fn width(&self) -> usize;
    /// Results with a row a sequence or a row a token. `skips[i]` tokens at the head of sequence `i` belong to a prompt.
    fn forward(&self, batch: &Batch, skips: &[usize]) -> Result<Vec<Tensor>>;
    /// The most sequences of a batch, where a result is wide.
    fn most_sequences(&self) -> usize {
        usize::MAX
    }
    /// Weights that were not read, of files besides the encoder's.
    fn unread(&self) -> Vec<String> {
        Vec::new()
    }
    /// Runs the largest batches there will be, on phantoms, for the plan: long texts make the most activations, short ones
    /// the most results, and what holds for both holds for all between.
    fn rehearse(&self, place: &Place, tokens: usize, longest: usize) -> Result<()> {
        for length in [1, longest] {
            let sequences = phantoms(tokens, length, self.most_sequences());
            self.forward(&Batch::new(&sequences, self.limits(), place)?, &vec![0; sequences.len()])?;
        }
        Ok(())
    }
    /// A run that shows whether the model is sound here; what comes out must be numbers.
    fn prove(&self, place: &Place) -> Result<Vec<Tensor>> {
        let limits = self.limits();
        let ids = (0..limits.positions.min(8)).map(|i| (i % limits.vocabulary) as u32).collect();
        self.forward(&Batch::new(&[Sequence { ids, ..Sequence::default() }], limits, place)?, &[0])
    }
}

/// One sequence to be run, and how many tokens at its head belong to a prompt that does not count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    pub(crate) sequence: Sequence,
    pub(crate) skip: usize,
}

/// Texts as works, with what callers are told of them.
pub(crate) struct Lot {
    pub(crate) works: Vec<Work>,
    /// Tokens of each.
    pub(crate) tokens: Vec<usize>,
    /// Which were cut.
    pub(crate) truncated: Vec<usize>,
}

impl Lot {
    /// Of texts whose first `skip` tokens belong to a prompt that does not count.
    pub(crate) fn of(encoded: Vec<Encoded>, skip: usize) -> Lot {
        let tokens = encoded.iter().map(|e| e.sequence.ids.len()).collect();
        let truncated = (0..encoded.len()).filter(|i| encoded[*i].truncated).collect();
        let works = encoded.into_iter().map(|e| Work { sequence: e.sequence, skip }).collect();
        Lot { works, tokens, truncated }
    }
}

/// A pipeline on its device.
pub(crate) struct Session<P: Pipeline> {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) recipe: P::Recipe,
    pub(crate) plan: Plan,
    pub(crate) files: Files,
    pub(crate) ladder: Arc<Ladder>,
    pub(crate) owner: Owner<Running<P>>,
}

/// What the owner's thread holds.
pub(crate) struct Running<P> {
    pub(crate) pipeline: P,
    pub(crate) place: Place,
}

impl<P: Pipeline> Session<P> {
    /// Finds the files, plans, loads and proves the model. Nothing is loaded that the plan says cannot run or will not fit. With
    /// `options.fallback` the next best device is tried where one cannot serve, and every such step is told.
    pub(crate) fn load(
        reference: &Reference,
        options: &LoadOptions,
        progress: &dyn Progress,
        read: impl FnOnce(&Path) -> Result<P::Recipe>,
    ) -> Result<Session<P>> {
        Self::load_from(&source::resolve(reference, &options.source, progress)?, options, progress, read)
    }

    /// The same from files that are here.
    pub(crate) fn load_from(
        files: &Files,
        options: &LoadOptions,
        progress: &dyn Progress,
        read: impl FnOnce(&Path) -> Result<P::Recipe>,
    ) -> Result<Session<P>> {
        let recipe = read(if P::IN_GGUF { files.root() } else { files.directory()? })?;
        options.somewhere(progress, |device| Self::on(device, files, &recipe, options, progress))
    }

    fn on(
        device: Device,
        files: &Files,
        recipe: &P::Recipe,
        options: &LoadOptions,
        progress: &dyn Progress,
    ) -> Result<Session<P>> {
        let info = device.info()?;
        let options = &options.on(&info);
        for w in &options.policy.withdrawn {
            progress.note(&format!("{w} failed its cases on this machine and is withdrawn; see `sconce doctor`"));
        }
        let reading = P::reading(recipe);
        let plan = plan_of::<P>(recipe, device, options)?;
        plan.check(info.free_bytes)?;
        let tokenizer = Tokenizer::load(&reading.root, plan.max_tokens, reading.manner)?;
        if let Some(note) = tokenizer.check(&reading.root, plan.vocabulary)? {
            progress.note(&note);
        }

        let ladder = Ladder::new(options.policy.clone());
        let (dtype, policy, made_from) = (plan.dtype, options.policy.clone(), recipe.clone());
        let owner = Owner::start(device, ladder.clone(), move || {
            let place = Place::open(device)?;
            let parts = Parts::open(&reading.root, dtype, place.clone())?;
            let pipeline = P::load(&parts, &made_from).map_err(|e| e.of(&reading.root))?;
            // Apart: the warm-up is nobody's request, and is not counted as one.
            let _apart = Ladder::new(policy).enter();
            for result in pipeline.prove(&place)? {
                if !result.to_f32()?.iter().all(|v| v.is_finite()) {
                    return Err(Error::Input(format!("the model is not sound: {}", overflow(device, dtype))));
                }
            }
            Ok(Running { pipeline, place })
        })?;
        Ok(Session { tokenizer, recipe: recipe.clone(), plan, files: files.clone(), ladder, owner })
    }

    /// Runs `works` in batches of the planned size. `take` gets a work's number and its results, in the order of the batches; a
    /// text of no tokens, which only static models have, gives none.
    pub(crate) fn run(&self, mut works: Vec<Work>, mut take: impl FnMut(usize, &[&[f32]]) -> Result<()>) -> Result<()> {
        let tokens: Vec<usize> = works.iter().map(|w| w.sequence.ids.len()).collect();
        for (i, work) in works.iter().enumerate() {
            if let Some(id) = work.sequence.ids.iter().find(|id| **id as usize >= self.plan.vocabulary) {
                let words = self.plan.vocabulary;
                let why =
                    format!("token {id} is beyond the model's {words} words; do tokenizer and model belong together?");
                return Err(Error::Text { text: i, why });
            }
        }
        for mut batch in schedule::batches(&tokens, self.plan.batch_tokens, self.plan.most_sequences) {
            batch.retain(|i| tokens[*i] > 0);
            if batch.is_empty() {
                continue;
            }
            let (sequences, skips): (Vec<_>, Vec<_>) = batch
                .iter()
                .map(|i| std::mem::take(&mut works[*i]))
                // A text cut inside its prompt still keeps its last token.
                .map(|w| (w.skip.min(w.sequence.ids.len() - 1), w.sequence))
                .map(|(skip, sequence)| (sequence, skip))
                .unzip();
            let (segments, results) = self.owner.call(move |running| {
                let Running { pipeline, place } = running;
                let batch = Batch::new(&sequences, pipeline.limits(), place)?;
                let results = pipeline.forward(&batch, &skips)?;
                let values = results.iter().map(|t| Ok((t.dims()[0], t.to_f32()?))).collect::<Result<Vec<_>>>()?;
                Ok((batch.segments, values))
            })?;
            for (place, i) in batch.iter().enumerate() {
                let own = results.iter().map(|(rows, values)| {
                    let width = values.len() / rows.max(&1);
                    let range = if *rows == segments.count() { place..place + 1 } else { segments.range(place) };
                    &values[range.start * width..range.end * width]
                });
                let own: Vec<&[f32]> = own.collect();
                if !own.iter().all(|values| values.iter().all(|v| v.is_finite())) {
                    return Err(Error::Text { text: *i, why: overflow(self.plan.device, self.plan.dtype) });
                }
                take(*i, &own)?;
            }
        }
        Ok(())
    }
}

/// Plans a pipeline on a device that need not be in this machine.
pub(crate) fn plan_of<P: Pipeline>(recipe: &P::Recipe, device: Device, options: &LoadOptions) -> Result<Plan> {
    let ladder = Ladder::new(options.policy.clone());
    let budget = options.batch_tokens(device)?;
    let reading = P::reading(recipe);
    let place = Place::phantom(device);
    let (loaded, mut steps) = ladder.trace(|| {
        let parts = Parts::open(&reading.root, options.dtype, place.clone())?;
        let pipeline = P::load(&parts, recipe).map_err(|e| e.of(&reading.root))?;
        let mut unread = parts.weights.unused();
        unread.extend(pipeline.unread());
        let length = parts.config.get("max_position_embeddings").or(parts.config.get("n_positions"));
        let trained = length.and_then(Value::as_u64).unwrap_or(512);
        Ok::<_, Error>((pipeline, unread, trained as usize))
    });
    let (pipeline, unread, trained) = loaded?;
    let weights = ladder.ledger.live();
    ladder.ledger.reset_peak();
    // A model without a longest sequence is cut where it was trained, unless its files say otherwise.
    let most = pipeline.limits().positions;
    let max_tokens = reading.max_tokens.unwrap_or(if most > LONGEST { trained } else { most }).min(most);
    if !(2..=LONGEST).contains(&max_tokens) {
        let what = format!("a longest sequence of {max_tokens} tokens; 2 to {LONGEST} make sense");
        return Err(Error::file(&reading.root, what));
    }
    if pipeline.width() == 0 {
        return Err(Error::file(&reading.root, "the model gives vectors of no numbers"));
    }
    let batch_tokens = budget.max(max_tokens);
    let (rehearsed, run) = ladder.trace(|| pipeline.rehearse(&place, batch_tokens, max_tokens));
    rehearsed?;
    // Two batches that make the same calls; one of them is the plan, behind what loading itself ran.
    steps.extend_from_slice(&run[..run.len() / 2]);
    Ok(Plan {
        device,
        dtype: options.dtype,
        steps,
        weights,
        cache: 0,
        cache_tokens: 0,
        workspace: ladder.ledger.peak() - weights,
        batch_tokens,
        max_tokens,
        dimension: pipeline.width(),
        vocabulary: pipeline.limits().vocabulary,
        most_sequences: pipeline.most_sequences(),
        root: reading.root,
        unread,
    })
}

/// `tokens` tokens in sequences of `length`, the last one shorter, and `most` of them.
pub(crate) fn phantoms(tokens: usize, length: usize, most: usize) -> Vec<Sequence> {
    let of = |n: usize| Sequence { ids: vec![0; n], ..Sequence::default() };
    (0..tokens).step_by(length).take(most).map(|start| of(length.min(tokens - start))).collect()
}

/// Why a result is no number, and what to do.
pub(crate) fn overflow(device: Device, dtype: DType) -> String {
    let advice = match dtype {
        DType::F16 => "f16 ends at 65,504: try --dtype bf16 or f32",
        _ => "the weights may be damaged: fetch them again",
    };
    format!("its result in {dtype} on {device} holds infinities or NaN; {advice}")
}
