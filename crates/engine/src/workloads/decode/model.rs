//! A language model on its device: its plan, loading, and one step.

use crate::dtype::Formats;
use crate::error::{Error, Result};
use crate::kv::{Blocks, SeqId};
use crate::options::{LlmOptions, LoadOptions};
use crate::plan::{PlanDetails, Planned, Trace};
use crate::schedule::Step;
use crate::workloads::encode::{sanity_tokens, varied_ids};
use sconce_formats::Model;
use sconce_models::{Backbone, Batch, CONTEXT, LmHead, TokenChunk, backbone, lm_head};
use sconce_ops::replay::{self, BatchLayout, Fill, GraphCache, Pass};
use sconce_ops::sample::{can_sample, sample, sample_row};
use sconce_ops::{
    DType, Device, KvCache, KvCacheFormat, KvCacheShape, Place, SamplingParams, Tensor, WeightFormat, Weights,
};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// Tokens per page (block) of the paged KV cache: small enough that short sequences waste little,
/// large enough that rows are read in runs.
pub(crate) const PAGE: usize = 16;

/// The memory layout of a language model.
#[derive(Clone, Debug)]
pub(crate) struct DecodeLayout {
    /// The format of the KV cache.
    pub(crate) cache_format: KvCacheFormat,
    /// Pages of the KV cache.
    pub(crate) pages: usize,
    /// The longest sequence.
    pub(crate) context: usize,
    /// The most sequences in a step.
    pub(crate) sequences: usize,
}

/// The longest sequence unless [`LlmOptions::context`] sets another: enough for usual chats.
const DEFAULT_CONTEXT: usize = 8192;

/// Tokens per step: prompts are prefilled in chunks of this size, which bounds how long a decode
/// waits.
const STEP_TOKENS: usize = 512;

/// The limit of `cache_tokens`: more than any device holds. It keeps a mistyped number from
/// overflowing the count of pages.
const MOST_CACHE_TOKENS: usize = u32::MAX as usize;

/// Without `cache_tokens`, the KV cache takes at most 1 / `CACHE_SHARE` of the memory that the
/// weights leave free.
const CACHE_SHARE: u64 = 4;

/// Quantized weights get a copy in half precision, for prompts, if both together take at most
/// 1 / `COPY_SHARE` of the free memory.
const COPY_SHARE: u64 = 3;

/// Tokens of the KV cache without `cache_tokens`: every sequence at full length, but at most `most`
/// tokens, and at least one sequence at full length.
fn default_cache_tokens(context: usize, sequences: usize, most: u64) -> usize {
    context.saturating_mul(sequences).min(usize::try_from(most).unwrap_or(usize::MAX)).max(context)
}

/// Whether a model is loaded with copies of its quantized weights, given the bytes of its weights
/// without and with them.
fn copies_fit(without: u64, with: u64, free: u64) -> bool {
    with > without && with <= free / COPY_SHARE
}

/// Plans the model in `root` on `device`, without reading a weight.
pub(super) fn plan(root: &Path, device: Device, options: &LoadOptions) -> Result<Planned<DecodeLayout>> {
    options.graph.refuse_all(options, "language models")?;
    let LlmOptions { context: wanted, cache_tokens, cache_format, sequences } = options.llm;
    let sequences = sequences.max(1);
    let model = Model::open(root)?;
    let formats = options.dtype.of_decoder(&model, device)?;
    let context = wanted.unwrap_or(DEFAULT_CONTEXT).min(trained_length(&model.config)?);
    let free = options.free_bytes(device);
    let load = |formats: Formats| -> Result<_> {
        let mut trace = Trace::new(device, &options.policy);
        let loaded =
            trace.load(|place| LmModel::load(&model, (formats.dtype, formats.weight_format), context, place))?;
        Ok((formats, trace, loaded))
    };
    let mut chosen = load(formats)?;
    if let Some(formats) = chosen.0.with_copies(device) {
        let mut copied = load(formats)?;
        if copies_fit(chosen.1.weights, copied.1.weights, free) {
            copied.1.weight_copies = copied.1.weights - chosen.1.weights;
            chosen = copied;
        }
    }
    let (formats, mut trace, (loaded, unread)) = chosen;
    let (shape, limits, place) = (loaded.shape(root)?, loaded.backbone.limits(), trace.place.clone());
    // The model may support less than its configuration says (Qwen 1).
    let context = context.min(limits.positions);
    if let Some(wanted) = wanted.filter(|wanted| *wanted > context) {
        return Err(Error::file(
            root,
            format!("a context of {wanted} tokens is more than the {context} that the model supports"),
        ));
    }
    if context < 2 {
        return Err(Error::file(root, format!("a context of {context} tokens has no room for a prompt and an answer")));
    }
    let step_tokens = options.batch_tokens.unwrap_or(STEP_TOKENS).clamp(sequences + 1, context.max(sequences + 1));
    let cache_format = cache_format.unwrap_or(formats.cache_format);
    let row = shape.bytes(cache_format) as u64;
    let cache_tokens = match cache_tokens {
        Some(n) if n < context => {
            let what = format!("a KV cache of {n} tokens does not hold one sequence of {context}");
            return Err(Error::Input(what + ": make it larger, or the context smaller"));
        }
        Some(n) if n > MOST_CACHE_TOKENS => {
            return Err(Error::Input(format!(
                "a KV cache of {n} tokens is more than {MOST_CACHE_TOKENS}; make it smaller"
            )));
        }
        Some(n) => n,
        None => {
            let most = free.saturating_sub(trace.weights) / CACHE_SHARE / row.max(1);
            default_cache_tokens(context, sequences, most)
        }
    };
    let pages = cache_tokens.div_ceil(PAGE);
    trace.set_cache(row.saturating_mul((pages * PAGE) as u64));
    let table: Arc<[u32]> = (0..context.div_ceil(PAGE) as u32).collect();
    let chunk = |n: usize| TokenChunk { ids: vec![0; n], start: context - n, table: table.clone(), wanted: 1 };
    let run = |chunks: &[TokenChunk]| -> Result<()> {
        let cache = KvCache::new(shape, pages * PAGE, cache_format, &place)?;
        let logits = loaded.run(chunks, &cache, &place)?;
        loaded.sample(&logits, &vec![SamplingParams::GREEDY; chunks.len()])?;
        Ok(())
    };
    // At the end of the longest text: a step with one prompt only, and one where all sequences but
    // one decode.
    let decoding = sequences - 1;
    let mut all = vec![chunk(1); decoding];
    all.push(chunk((step_tokens - decoding).min(context)));
    trace.pass(|| run(&[chunk(step_tokens.min(context))]))?;
    let steps = trace.pass(|| run(&all))?;
    trace.captured_pass(|| run(&vec![chunk(1); sequences]))?;
    // On the CPU, logits are copied before they are sampled from.
    let rows = if device.is_gpu() { 0 } else { sequences.saturating_mul(limits.vocabulary) };
    let copied = (rows as u64).saturating_mul(DType::F32.size() as u64);
    let details = PlanDetails {
        formats,
        cache_format: Some(cache_format),
        cache_tokens: pages * PAGE,
        batch_tokens: step_tokens,
        max_tokens: context,
        dimension: loaded.backbone.hidden_size(),
        vocabulary: limits.vocabulary,
        most_sequences: sequences,
        root: root.to_path_buf(),
        unread,
    };
    let layout = DecodeLayout { cache_format, pages, context, sequences };
    Ok(Planned { plan: trace.plan(steps, copied, details), layout })
}

/// The longest sequence that the model was trained for.
fn trained_length(config: &Value) -> Result<usize> {
    let text = config.get("text_config").unwrap_or(config);
    let named =
        ["max_position_embeddings", "n_positions"].iter().find_map(|key| text.get(*key).and_then(Value::as_u64));
    // Some configurations leave it to the class's default; the model checks it.
    Ok(named.map_or(2048, |n| usize::try_from(n).unwrap_or(usize::MAX)))
}

/// The result of a step.
pub(crate) enum StepResult {
    /// Logits of the wanted rows, `[wanted][vocabulary]`.
    Logits(Vec<f32>),
    /// The sampled token of each row.
    Tokens(Vec<u32>),
}

/// A loaded decoder with its head.
pub(crate) struct LmModel {
    pub(crate) backbone: Box<dyn Backbone>,
    pub(super) head: LmHead,
}

impl LmModel {
    /// Loads the model from its files. Returns the names of unread weights too.
    pub(crate) fn load(
        model: &Model,
        (dtype, weight_format): (DType, WeightFormat),
        context: usize,
        place: &Place,
    ) -> Result<(LmModel, Vec<String>)> {
        let mut config = model.config.clone();
        config[CONTEXT] = context.into();
        let weights = Weights::new(model.store.clone(), dtype, place.clone()).with_format(weight_format);
        let backbone = backbone(&config, &weights).map_err(|e| Error::from(e).with_root(&model.root))?;
        let head = lm_head(&config, &weights.of_head()).map_err(|e| Error::from(e).with_root(&model.root))?;
        Ok((LmModel { backbone, head }, weights.unused()))
    }

    /// What the KV cache stores per token.
    pub(super) fn shape(&self, root: &Path) -> Result<KvCacheShape> {
        let cannot = || Error::file(root, "is an encoder, which has no KV cache: it cannot continue a text");
        self.backbone.cache().ok_or_else(cannot)
    }

    /// Logits of the rows that the chunks want.
    pub(crate) fn run(&self, chunks: &[TokenChunk], cache: &KvCache, place: &Place) -> Result<Tensor> {
        let pass = DecodePass { model: self, chunks, cache, place };
        pass.forward(&pass.batch(None)?)?.pop().ok_or_else(|| Error::bug(place.device(), "a step gives logits"))
    }

    /// Samples tokens from rows of logits on the device; `None` if our kernel cannot, or if the
    /// logits still have to be scaled or capped.
    fn sample(&self, logits: &Tensor, params: &[SamplingParams]) -> Result<Option<Tensor>> {
        let is_plain = self.head.scale == 1.0 && self.head.cap.is_none();
        if is_plain && can_sample(logits) { Ok(Some(sample(logits, params)?)) } else { Ok(None) }
    }

    /// One step of the scheduler: block copies, then the model. Returns the wanted logits, in the
    /// order of the chunks; or tokens, if `params` has sampling parameters and the device can
    /// sample.
    pub(crate) fn step<'a>(
        &self,
        (step, params): (&Step, Option<&[SamplingParams]>),
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
        let chunk = |p: &crate::schedule::ScheduledChunk| -> Result<TokenChunk> {
            let all = tokens(p.sequence).ok_or_else(|| Error::bug(place.device(), "a sequence without tokens"))?;
            Ok(TokenChunk {
                ids: all[p.range.clone()].to_vec(),
                start: p.range.start,
                table: blocks.table(p.sequence).into(),
                wanted: p.rows(),
            })
        };
        let mut chunks = step.chunks.iter().map(chunk).collect::<Result<Vec<_>>>()?;
        // A chunk in the middle of a prompt wants no logits, but a pass must return something.
        let idle = chunks.iter().all(|p| p.wanted == 0);
        if let Some(last) = chunks.last_mut().filter(|_| idle) {
            last.wanted = 1;
        }
        let pass = DecodePass { model: self, chunks: &chunks, cache, place };
        // All sequences decode: the most frequent step, and the same each time, so it is captured
        // as a CUDA graph.
        let is_decoding = pass.chunks.iter().all(|p| p.ids.len() == 1 && p.wanted == 1);
        let (_, results) = if is_decoding { passes.replay(&pass, 0, None)? } else { replay::run(&pass)? };
        let [logits] = &results[..] else { return Err(Error::bug(place.device(), "a step gives logits")) };
        if let Some(params) = params.filter(|_| !idle)
            && let Some(tokens) = self.sample(logits, params)?
        {
            let tokens = tokens.to_u32()?;
            // u32::MAX marks logits that are not finite; sampling on the host reports which.
            if !tokens.contains(&u32::MAX) {
                return Ok(StepResult::Tokens(tokens));
            }
        }
        let logits = logits.to_f32()?;
        Ok(StepResult::Logits(if idle { Vec::new() } else { logits }))
    }

    /// Runs prefills of `tokens` tokens and a decode batch, each at the first and at the last
    /// positions of the context; positions in between use the same kernels. Writes to the KV cache.
    pub(super) fn dry_run(&self, layout: &DecodeLayout, tokens: usize, cache: &KvCache, place: &Place) -> Result<()> {
        let longest = layout.context;
        let table: Arc<[u32]> = (0..longest.div_ceil(PAGE) as u32).collect();
        let chunk = |n: usize, start, wanted| TokenChunk { ids: vec![0; n], start, table: table.clone(), wanted };
        let (prompt, answers) = (tokens.min(longest), tokens.min(layout.sequences));
        for back in [longest, prompt] {
            // Usually only the last row is wanted; with prompt logprobs, all of them.
            self.run(&[chunk(prompt, longest - back, 1)], cache, place)?;
            self.run(&[chunk(prompt, longest - back, prompt)], cache, place)?;
        }
        for start in [0, longest - 1] {
            let logits = self.run(&vec![chunk(1, start, 1); answers], cache, place)?;
            self.sample(&logits, &vec![SamplingParams::GREEDY; answers])?;
        }
        let rows = Tensor::from_u32(&rows(0).collect::<Vec<_>>(), place)?;
        Ok(cache.copy(&rows, &rows)?)
    }

    /// Runs a text in two parts through a separate KV cache: the logits must be finite, and
    /// sampling on the device must choose the right token.
    pub(super) fn sanity_check(
        &self,
        shape: KvCacheShape,
        (cache_format, dtype): (KvCacheFormat, DType),
        place: &Place,
    ) -> Result<()> {
        let limits = self.backbone.limits();
        let ids = varied_ids(sanity_tokens(place.device()).min(limits.positions), limits.vocabulary);
        let pages = ids.len().div_ceil(PAGE);
        let cache = KvCache::new(shape, pages * PAGE, cache_format, place)?;
        let (first, rest) = ids.split_at(ids.len() / 2);
        let table: Arc<[u32]> = (0..pages as u32).collect();
        let chunk = |ids: &[u32], start| TokenChunk { ids: ids.to_vec(), start, table: table.clone(), wanted: 1 };
        for chunk in [chunk(first, 0), chunk(rest, first.len())] {
            if chunk.ids.is_empty() {
                continue;
            }
            let logits = self.run(&[chunk], &cache, place)?;
            let chosen = self.sample(&logits, &[SamplingParams::GREEDY])?.map(|token| token.to_u32()).transpose()?;
            let logits = logits.to_f32()?;
            if !logits.iter().all(|v| v.is_finite()) {
                return Err(Error::unsound("the sanity check's row of logits", dtype));
            }
            if chosen.is_some_and(|chosen| chosen.first().copied() != sample_row(&logits, &SamplingParams::GREEDY)) {
                let what = "sanity check failed: the device did not sample the likeliest token; run `sconce doctor` to check its kernels";
                return Err(Error::Unsound(what.into()));
            }
        }
        Ok(())
    }
}

/// A pass of the decoder: the next tokens of sequences in, the wanted logits out.
struct DecodePass<'a> {
    model: &'a LmModel,
    chunks: &'a [TokenChunk],
    cache: &'a KvCache,
    place: &'a Place,
}

impl Pass for DecodePass<'_> {
    type Batch = Batch;
    type Error = Error;

    fn batch(&self, _: Option<Fill>) -> Result<Batch> {
        Ok(Batch::decode(self.chunks, PAGE, self.cache, self.model.backbone.limits(), self.place)?)
    }

    fn layout(&self, batch: &Batch) -> BatchLayout {
        batch.layout(&[])
    }

    fn forward(&self, batch: &Batch) -> Result<Vec<Tensor>> {
        let hidden = self.model.backbone.forward(batch, &mut |_, _| ())?;
        Ok(vec![self.model.head.forward(&hidden)?])
    }
}

/// Rows of a page.
fn rows(page: u32) -> std::ops::Range<u32> {
    page * PAGE as u32..(page + 1) * PAGE as u32
}

#[cfg(test)]
mod tests {
    use super::{copies_fit, default_cache_tokens};

    #[test]
    fn copies_of_weights_need_ample_memory() {
        const GB: u64 = 1_000_000_000;
        assert!(copies_fit(5 * GB, 21 * GB, 139 * GB));
        assert!(!copies_fit(5 * GB, 21 * GB, 48 * GB));
        assert!(!copies_fit(5 * GB, 21 * GB, 0));
        // A model without quantized weights has nothing to copy.
        assert!(!copies_fit(16 * GB, 16 * GB, 139 * GB));
    }

    #[test]
    fn default_kv_cache_size_is_limited_by_memory() {
        assert_eq!(default_cache_tokens(128, 64, u64::MAX), 8192);
        assert_eq!(default_cache_tokens(128, 64, 1000), 1000);
        assert_eq!(default_cache_tokens(128, 64, 0), 128);
        assert_eq!(default_cache_tokens(128, 1, u64::MAX), 128);
    }
}
