//! A language model on its device: what it takes, planned before it is loaded, and one step of it.

use crate::error::{Error, Result};
use crate::kv::{Blocks, SeqId};
use crate::options::{LlmOptions, LoadOptions};
use crate::plan::{Outline, Planned, Trace};
use crate::schedule::Step;
use sconce_formats::Model;
use sconce_models::{Batch, CONTEXT, Encoder, LmHead, TokenChunk, encoder, lm_head};
use sconce_ops::replay::{self, Fill, Given, GraphCache, Pass};
use sconce_ops::sample::{can_sample, sample, sample_row};
use sconce_ops::{
    DType, Device, KvCache, KvCacheFormat, KvCacheShape, Place, SamplingParams, Tensor, WeightFormat, Weights,
};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// Tokens of a page of the cache. Small enough that sequences of a few tokens waste little, large enough that their rows are read
/// in runs.
pub(crate) const PAGE: usize = 16;

/// How a language model is laid out, beyond what every model has.
#[derive(Clone, Debug)]
pub(crate) struct DecodeLayout {
    /// The format of the KV cache.
    pub(super) cache_format: KvCacheFormat,
    /// Pages of the KV cache.
    pub(super) pages: usize,
    /// The longest sequence.
    pub(crate) context: usize,
    /// The most sequences of a step.
    pub(super) sequences: usize,
}

/// The longest sequence that is made room for unless more is asked for: what people's chats come to.
const USUAL_CONTEXT: usize = 8192;

/// Tokens that a step computes: prompts go in chunks of these, and those who decode wait no longer than that.
const STEP_TOKENS: usize = 512;

/// What a cache of no given size takes at most of the memory that weights leave free: one part of so many.
const SHARE: u64 = 4;

/// Tokens of a cache of no given size: every sequence may be of the longest, if `most` allows it; one may at any rate.
fn ample(context: usize, sequences: usize, most: u64) -> usize {
    context.saturating_mul(sequences).min(usize::try_from(most).unwrap_or(usize::MAX)).max(context)
}

/// Works out what the model in `root` takes on `device`, without reading a weight.
pub(super) fn plan(root: &Path, device: Device, options: &LoadOptions) -> Result<Planned<DecodeLayout>> {
    let LlmOptions { context: wanted, cache_tokens, cache_format, sequences } = options.llm;
    let sequences = sequences.max(1);
    let weight_format = options.kept(device)?;
    let model = Model::open(root)?;
    let trained = trained(&model.config)?;
    let context = wanted.unwrap_or(USUAL_CONTEXT).min(trained);
    if let Some(wanted) = wanted.filter(|wanted| *wanted > trained) {
        return Err(Error::file(root, format!("a context of {wanted} tokens; the model was made for {trained}")));
    }
    if context < 2 {
        return Err(Error::file(root, format!("a context of {context} tokens holds no question and answer")));
    }
    let step_tokens = options.batch_tokens.unwrap_or(STEP_TOKENS).clamp(sequences + 1, context.max(sequences + 1));
    let mut trace = Trace::new(device, &options.policy);
    let (loaded, unread) = trace.load(|place| LmModel::load(&model, options, (weight_format, context), place))?;
    let (shape, limits, place) = (loaded.shape(root)?, loaded.encoder.limits(), trace.place.clone());
    let cache_format = cache_format.map_or_else(|| usual_cache_format(&model, weight_format, device, options), Ok)?;
    let row = shape.bytes(cache_format) as u64;
    let cache_tokens = match cache_tokens {
        Some(n) if n < context => {
            let what = format!("a cache of {n} tokens does not hold one sequence of {context}");
            return Err(Error::Input(what + ": make it larger, or the context smaller"));
        }
        Some(n) => n,
        None => {
            let free = device.info().map_or(0, |info| info.free_bytes.saturating_sub(trace.weights));
            ample(context, sequences, free / SHARE / row.max(1))
        }
    };
    let pages = cache_tokens.div_ceil(PAGE);
    trace.set_cache(row.saturating_mul((pages * PAGE) as u64));
    let table: Arc<[u32]> = (0..context.div_ceil(PAGE) as u32).collect();
    let piece = |n: usize| TokenChunk { ids: vec![0; n], start: context - n, table: table.clone(), wanted: 1 };
    let run = |pieces: &[TokenChunk]| -> Result<()> {
        let cache = KvCache::new(shape, pages * PAGE, cache_format, &place)?;
        let logits = loaded.run(pieces, &cache, &place)?;
        loaded.sample(&logits, &vec![SamplingParams::BEST; pieces.len()])?;
        Ok(())
    };
    // At the end of the longest text: a step that is one prompt's; and one where all but one sequence decode.
    let decoding = sequences - 1;
    let mut all = vec![piece(1); decoding];
    all.push(piece((step_tokens - decoding).min(context)));
    trace.pass(|| run(&[piece(step_tokens.min(context))]))?;
    let steps = trace.pass(|| run(&all))?;
    trace.captured_pass(|| run(&vec![piece(1); sequences]))?;
    // Logits come to the CPU to be chosen from.
    let rows = if device.is_gpu() { 0 } else { sequences.saturating_mul(limits.vocabulary) };
    let copied = (rows as u64).saturating_mul(DType::F32.size() as u64);
    let outline = Outline {
        dtype: options.dtype,
        weight_format,
        chosen: None,
        cache_tokens: pages * PAGE,
        batch_tokens: step_tokens,
        max_tokens: context,
        dimension: loaded.encoder.hidden_size(),
        vocabulary: limits.vocabulary,
        most_sequences: sequences,
        root: root.to_path_buf(),
        unread,
    };
    let layout = DecodeLayout { cache_format, pages, context, sequences };
    Ok(Planned { plan: trace.plan(steps, copied, outline), layout })
}

/// The format of a KV cache that nobody asked for: half precision halves what every token reads, and loses less than any block
/// format of weights does.
pub(crate) fn usual_cache_format(
    model: &Model,
    weight_format: WeightFormat,
    device: Device,
    options: &LoadOptions,
) -> Result<KvCacheFormat> {
    let is_full = device.is_gpu() || weight_format == WeightFormat::Activations || is_f32(model)?;
    Ok(KvCacheFormat::Float(if is_full { options.dtype } else { DType::F16 }))
}

/// The longest sequence that the model was made for.
fn trained(config: &Value) -> Result<usize> {
    let text = config.get("text_config").unwrap_or(config);
    let named =
        ["max_position_embeddings", "n_positions"].iter().find_map(|key| text.get(*key).and_then(Value::as_u64));
    // Where a configuration leaves it to its class; the model says what that is.
    Ok(named.map_or(2048, |n| usize::try_from(n).unwrap_or(usize::MAX)))
}

/// What came of a step.
pub(crate) enum StepResult {
    /// Logits of the rows that are wanted, `[wanted][vocabulary]`.
    Logits(Vec<f32>),
    /// The token of each.
    Tokens(Vec<u32>),
}

/// Encoder and head, loaded.
pub(crate) struct LmModel {
    pub(crate) encoder: Box<dyn Encoder>,
    pub(super) head: LmHead,
}

impl LmModel {
    /// From its files, with the names of weights that were not read.
    pub(crate) fn load(
        model: &Model,
        options: &LoadOptions,
        (weight_format, context): (WeightFormat, usize),
        place: &Place,
    ) -> Result<(LmModel, Vec<String>)> {
        let mut config = model.config.clone();
        config[CONTEXT] = context.into();
        let weights = Weights::new(model.store.clone(), options.dtype, place.clone()).with_format(weight_format);
        let encoder = encoder(&config, &weights).map_err(|e| Error::from(e).of(&model.root))?;
        let head = lm_head(&config, &weights).map_err(|e| Error::from(e).of(&model.root))?;
        Ok((LmModel { encoder, head }, weights.unused()))
    }

    /// What its KV cache keeps of a token.
    pub(super) fn shape(&self, root: &Path) -> Result<KvCacheShape> {
        let cannot = || Error::file(root, "is an encoder, which has no KV cache: it cannot continue a text");
        self.encoder.cache().ok_or_else(cannot)
    }

    /// Logits of the rows that the pieces want.
    pub(crate) fn run(&self, pieces: &[TokenChunk], cache: &KvCache, place: &Place) -> Result<Tensor> {
        let pieces = Pieces { model: self, pieces, cache, place };
        pieces.forward(&pieces.batch(None)?)?.pop().ok_or_else(|| Error::bug(place.device(), "a step gives logits"))
    }

    /// Tokens of rows of logits, chosen where these are; none where our kernel does not, or where logits mean something else yet.
    fn sample(&self, logits: &Tensor, how: &[SamplingParams]) -> Result<Option<Tensor>> {
        let means = self.head.scale == 1.0 && self.head.cap.is_none();
        if means && can_sample(logits) { Ok(Some(sample(logits, how)?)) } else { Ok(None) }
    }

    /// A step of the scheduler: copies, then the model. Logits of the pieces that want them, in their order; or their tokens, if
    /// `how` says how they are chosen and they can be where the logits are.
    pub(crate) fn step<'a>(
        &self,
        (step, how): (&Step, Option<&[SamplingParams]>),
        blocks: &Blocks,
        tokens: impl Fn(SeqId) -> Option<&'a [u32]>,
        cache: &KvCache,
        (place, passes): (&Place, &GraphCache),
    ) -> Result<StepResult> {
        let (from, to): (Vec<u32>, Vec<u32>) =
            step.copies.iter().flat_map(|(from, to)| rows(*from).zip(rows(*to))).unzip();
        if !from.is_empty() {
            cache.copy(&Tensor::from_u32(&from, place)?, &Tensor::from_u32(&to, place)?)?;
        }
        let piece = |p: &crate::schedule::ScheduledChunk| -> Result<TokenChunk> {
            let all = tokens(p.sequence).ok_or_else(|| Error::bug(place.device(), "a sequence without tokens"))?;
            Ok(TokenChunk {
                ids: all[p.range.clone()].to_vec(),
                start: p.range.start,
                table: blocks.table(p.sequence).into(),
                wanted: p.rows(),
            })
        };
        let mut pieces = step.pieces.iter().map(piece).collect::<Result<Vec<_>>>()?;
        // A chunk in the middle of a prompt wants nothing; something has to come out all the same.
        let idle = pieces.iter().all(|p| p.wanted == 0);
        if let Some(last) = pieces.last_mut().filter(|_| idle) {
            last.wanted = 1;
        }
        let pieces = Pieces { model: self, pieces: &pieces, cache, place };
        // A token of each sequence: the step that is made most often, and the same each time.
        let is_decoding = pieces.pieces.iter().all(|p| p.ids.len() == 1 && p.wanted == 1);
        let (_, results) = if is_decoding { passes.replay(&pieces, 0, None)? } else { replay::run(&pieces)? };
        let [logits] = &results[..] else { return Err(Error::bug(place.device(), "a step gives logits")) };
        if let Some(how) = how.filter(|_| !idle)
            && let Some(tokens) = self.sample(logits, how)?
        {
            let tokens = tokens.to_u32()?;
            // Who reads logits that are no numbers can say which.
            if !tokens.contains(&u32::MAX) {
                return Ok(StepResult::Tokens(tokens));
            }
        }
        let logits = logits.to_f32()?;
        Ok(StepResult::Logits(if idle { Vec::new() } else { logits }))
    }

    /// Runs steps of so many tokens, of one prompt and of as many answers as there may be, at the beginning and at the end of the
    /// longest text: what is between them calls for no other kernels. The cache is written to.
    pub(super) fn dry_run(&self, layout: &DecodeLayout, tokens: usize, cache: &KvCache, place: &Place) -> Result<()> {
        let longest = layout.context;
        let table: Arc<[u32]> = (0..longest.div_ceil(PAGE) as u32).collect();
        let piece = |n: usize, start, wanted| TokenChunk { ids: vec![0; n], start, table: table.clone(), wanted };
        let (prompt, answers) = (tokens.min(longest), tokens.min(layout.sequences));
        for back in [longest, prompt] {
            // The last row alone is chosen from; of a prompt that is scored all of them are told.
            self.run(&[piece(prompt, longest - back, 1)], cache, place)?;
            self.run(&[piece(prompt, longest - back, prompt)], cache, place)?;
        }
        for start in [0, longest - 1] {
            let logits = self.run(&vec![piece(1, start, 1); answers], cache, place)?;
            self.sample(&logits, &vec![SamplingParams::BEST; answers])?;
        }
        let rows = Tensor::from_u32(&rows(0).collect::<Vec<_>>(), place)?;
        Ok(cache.copy(&rows, &rows)?)
    }

    /// Runs a short sequence through a KV cache of its own: numbers must come out, and the device must choose the right token.
    pub(super) fn sanity_check(&self, shape: KvCacheShape, cache_format: KvCacheFormat, place: &Place) -> Result<()> {
        let cache = KvCache::new(shape, PAGE, cache_format, place)?;
        let limits = self.encoder.limits();
        let ids: Vec<u32> = (0..limits.positions.min(8)).map(|i| (i % limits.vocabulary) as u32).collect();
        let (first, rest) = ids.split_at(ids.len() / 2);
        let table: Arc<[u32]> = [0].into();
        let piece = |ids: &[u32], start| TokenChunk { ids: ids.to_vec(), start, table: table.clone(), wanted: 1 };
        for piece in [piece(first, 0), piece(rest, first.len())] {
            if piece.ids.is_empty() {
                continue;
            }
            let logits = self.run(&[piece], &cache, place)?;
            let chosen = self.sample(&logits, &[SamplingParams::BEST])?.map(|token| token.to_u32()).transpose()?;
            let logits = logits.to_f32()?;
            if !logits.iter().all(|v| v.is_finite()) {
                let what = "the model is not sound: its logits hold infinities or NaN; the weights may be damaged";
                return Err(Error::Unsound(what.into()));
            }
            if chosen.is_some_and(|chosen| chosen.first().copied() != sample_row(&logits, &SamplingParams::BEST)) {
                let what =
                    "the device chose another token than the likeliest; `sconce doctor` says what is wrong with it";
                return Err(Error::Unsound(what.into()));
            }
        }
        Ok(())
    }
}

/// The next tokens of sequences, and the logits of those that are wanted.
struct Pieces<'a> {
    model: &'a LmModel,
    pieces: &'a [TokenChunk],
    cache: &'a KvCache,
    place: &'a Place,
}

impl Pass for Pieces<'_> {
    type Batch = Batch;
    type Error = Error;

    fn batch(&self, _: Option<Fill>) -> Result<Batch> {
        Ok(Batch::decode(self.pieces, PAGE, self.cache, self.model.encoder.limits(), self.place)?)
    }

    fn given(&self, batch: &Batch) -> Given {
        batch.given(&[])
    }

    fn forward(&self, batch: &Batch) -> Result<Vec<Tensor>> {
        let hidden = self.model.encoder.forward(batch, &mut |_, _| ())?;
        Ok(vec![self.model.head.forward(&hidden)?])
    }
}

/// Whether the first matrix of the files is in f32.
fn is_f32(model: &Model) -> Result<bool> {
    let names = model.store.names();
    for name in names.iter().filter(|name| name.ends_with("weight") && name.contains(".0.")) {
        // Norms are kept in f32 beside weights of any format.
        if let Some(raw) = model.store.get(name)?.filter(|raw| raw.dims.len() == 2) {
            return Ok(raw.stored == sconce_ops::Stored::Float(DType::F32));
        }
    }
    Ok(false)
}

/// Rows of a page.
fn rows(page: u32) -> std::ops::Range<u32> {
    page * PAGE as u32..(page + 1) * PAGE as u32
}

#[cfg(test)]
mod tests {
    use super::ample;

    #[test]
    fn a_cache_is_as_large_as_it_may_have_to_be_and_memory_allows() {
        assert_eq!(ample(128, 64, u64::MAX), 8192);
        assert_eq!(ample(128, 64, 1000), 1000);
        assert_eq!(ample(128, 64, 0), 128);
        assert_eq!(ample(128, 1, u64::MAX), 128);
    }
}
