//! A sequence-to-sequence model on its device: its plan, loading, encoding, and one decoding step.

use crate::error::{Error, Result};
use crate::options::{LoadOptions, Seq2SeqLimits};
use crate::plan::{PlanDetails, Planned, Trace};
use crate::workloads::decode::PAGE;
use crate::workloads::encode::{dummy_sequences, sanity_tokens, varied_ids};
use sconce_formats::Model;
use sconce_models::{Batch, EncoderKv, Seq2Seq, Sequence, TokenChunk, seq2seq};
use sconce_ops::replay::{self, BatchLayout, Fill, GraphCache, Pass, PassOutput};
use sconce_ops::{DType, Device, KvCache, KvCacheFormat, Place, Tensor, WeightFormat, Weights};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// The memory layout of a sequence-to-sequence model.
#[derive(Clone, Debug)]
pub(crate) struct Seq2SeqLayout {
    /// The format of both KV caches.
    pub(super) cache_format: KvCacheFormat,
    /// The longest input and the longest answer, in tokens.
    pub(crate) input: usize,
    pub(crate) output: usize,
    /// The most answers, or beams, at once.
    pub(crate) sequences: usize,
    /// Pages of the KV cache of inputs, and of that of answers.
    pub(super) input_pages: usize,
    pub(super) output_pages: usize,
}

/// The most tokens in one text or in a KV cache; a larger number is a typing error.
const LONGEST: usize = 1 << 20;

/// Inputs of full length that fit into the KV cache of inputs. Most inputs are much shorter, and
/// more of them fit.
const INPUTS: usize = 4;

/// The block table of an input and the input's length.
pub(super) type InputTable = (Arc<[u32]>, usize);

/// Plans the model in `root` on `device`, without reading a weight.
pub(super) fn plan(root: &Path, device: Device, options: &LoadOptions) -> Result<Planned<Seq2SeqLayout>> {
    options.graph.refuse_all(options, "sequence-to-sequence models")?;
    let Seq2SeqLimits { input, output, sequences, cache_format } = options.seq2seq;
    let model = Model::open(root)?;
    let formats = options.dtype.of_decoder(&model, device)?;
    let trained = model.config.get("n_positions").and_then(Value::as_u64).unwrap_or(512);
    let input = input.unwrap_or(trained.min(LONGEST as u64) as usize);
    let fits = |n: usize| (1..=LONGEST).contains(&n);
    if !fits(input) || !fits(output) || !fits(sequences) || sequences.saturating_mul(output) > LONGEST << 4 {
        let what = format!("inputs of {input} tokens and {sequences} answers of {output}: use 1 to {LONGEST} of each");
        return Err(Error::Input(what));
    }
    let mut trace = Trace::new(device, &options.policy);
    let (loaded, unread) =
        trace.load(|place| Seq2SeqModel::load(&model, (formats.dtype, formats.weight_format), place))?;
    if let Some(name) = unread.iter().find(|name| name.starts_with("decoder.")) {
        let what = format!("the weights hold {name}, which the model in config.json does not have");
        return Err(Error::file(root, what));
    }
    let place = trace.place.clone();
    let cache_format = cache_format.unwrap_or(formats.cache_format);
    let (input_pages, output_pages) = (INPUTS.min(sequences) * input.div_ceil(PAGE), sequences * output.div_ceil(PAGE));
    let row = loaded.0.cache().bytes(cache_format) as u64;
    trace.set_cache(row.saturating_mul(((input_pages + output_pages) * PAGE) as u64));
    let batch_tokens = options.batch_tokens(device)?.clamp(input, input_pages * PAGE);
    let caches = || -> Result<(KvCache, KvCache)> {
        Ok((loaded.cache(input_pages, cache_format, &place)?, loaded.cache(output_pages, cache_format, &place)?))
    };
    let input_at: InputTable = ((0..input.div_ceil(PAGE) as u32).collect(), input);
    // All sequences at the last token of the longest answer.
    let decode = |(input_cache, output_cache): &(KvCache, KvCache)| -> Result<()> {
        let table: Arc<[u32]> = (0..output.div_ceil(PAGE) as u32).collect();
        let chunk = TokenChunk { ids: vec![0], start: output - 1, table, wanted: 1 };
        let rows: Vec<_> = (0..sequences).map(|_| (chunk.clone(), input_at.clone())).collect();
        loaded.step(&rows, output_cache, input_cache, &place)?;
        Ok(())
    };
    let steps = trace.pass(|| {
        let caches = caches()?;
        let inputs = dummy_sequences(batch_tokens, input, usize::MAX).into_iter();
        let inputs: Vec<_> = inputs.map(|Sequence { ids, .. }| (input_at.0.clone(), ids)).collect();
        loaded.encode(&inputs, &caches.0, &place)?;
        // Every sequence copies a page first.
        let pages: Vec<(u32, u32)> = (0..sequences as u32).map(|page| (page, page)).collect();
        copy(&pages, &caches.1, &place)?;
        decode(&caches)
    })?;
    trace.captured_pass(|| decode(&caches()?))?;
    let details = PlanDetails {
        formats,
        cache_format: Some(cache_format),
        cache_tokens: (input_pages + output_pages) * PAGE,
        batch_tokens,
        max_tokens: input,
        dimension: loaded.0.encoder().hidden_size(),
        vocabulary: loaded.0.limits().vocabulary,
        most_sequences: sequences,
        root: root.to_path_buf(),
        unread,
    };
    let layout = Seq2SeqLayout { cache_format, input, output, sequences, input_pages, output_pages };
    Ok(Planned { plan: trace.plan(steps, 0, details), layout })
}

/// Copies whole pages `(from, to)`.
pub(super) fn copy(pages: &[(u32, u32)], cache: &KvCache, place: &Place) -> Result<()> {
    let rows = |page: u32| page * PAGE as u32..(page + 1) * PAGE as u32;
    let (from, to): (Vec<u32>, Vec<u32>) = pages.iter().flat_map(|(from, to)| rows(*from).zip(rows(*to))).unzip();
    if !from.is_empty() {
        cache.copy(&Tensor::from_u32(&from, place)?, &Tensor::from_u32(&to, place)?)?;
    }
    Ok(())
}

/// A loaded sequence-to-sequence model: encoder, decoder and head.
pub(super) struct Seq2SeqModel(pub(super) Box<dyn Seq2Seq>);

impl Seq2SeqModel {
    /// Loads the model from its files. Returns the names of unread weights too.
    pub(super) fn load(
        model: &Model,
        (dtype, weight_format): (DType, WeightFormat),
        place: &Place,
    ) -> Result<(Seq2SeqModel, Vec<String>)> {
        let weights = Weights::new(model.store.clone(), dtype, place.clone()).with_format(weight_format);
        let model = seq2seq(&model.config, &weights).map_err(|e| Error::from(e).with_root(&model.root))?;
        Ok((Seq2SeqModel(model), weights.unused()))
    }

    pub(super) fn cache(&self, pages: usize, format: KvCacheFormat, place: &Place) -> Result<KvCache> {
        Ok(KvCache::new(self.0.cache(), pages * PAGE, format, place)?)
    }

    /// Encodes inputs and writes their keys and values into their pages.
    pub(super) fn encode(&self, inputs: &[(Arc<[u32]>, Vec<u32>)], cache: &KvCache, place: &Place) -> Result<()> {
        let sequence = |(_, ids): &(_, Vec<u32>)| Sequence { ids: ids.clone(), ..Sequence::default() };
        let sequences: Vec<Sequence> = inputs.iter().map(sequence).collect();
        let batch = Batch::new(&sequences, self.0.limits(), place)?;
        let states = self.0.encoder().forward(&batch, &mut |_, _| ())?;
        let places: Vec<InputTable> = inputs.iter().map(|(table, ids)| (table.clone(), ids.len())).collect();
        let rows = EncoderKv::new(&places, PAGE, cache)?.rows(place)?;
        Ok(self.0.write_encoder_kv(&states, cache, &rows)?)
    }

    /// Logits of the token after each chunk, which attends to the input beside it.
    pub(super) fn step(
        &self,
        rows: &[(TokenChunk, InputTable)],
        output_cache: &KvCache,
        input_cache: &KvCache,
        place: &Place,
    ) -> Result<Tensor> {
        logits(replay::run(&Seq2SeqPass { model: self, rows, output_cache, input_cache, place })?, place)
    }

    /// Like `step`, for chunks of one token: by a captured CUDA graph where there is one. The
    /// result is valid until the next call.
    pub(super) fn replay(
        &self,
        rows: &[(TokenChunk, InputTable)],
        output_cache: &KvCache,
        input_cache: &KvCache,
        (place, passes): (&Place, &GraphCache),
    ) -> Result<Tensor> {
        logits(passes.replay(&Seq2SeqPass { model: self, rows, output_cache, input_cache, place }, 0, None)?, place)
    }

    /// Encodes `tokens` tokens, in short inputs and in long ones, and decodes as many answers as
    /// allowed, at their beginning and at the end of the longest; positions in between use the same
    /// kernels. Writes to the KV caches.
    pub(super) fn dry_run(
        &self,
        layout: &Seq2SeqLayout,
        tokens: usize,
        (input_cache, output_cache): (&KvCache, &KvCache),
        place: &Place,
    ) -> Result<()> {
        let pages = |n: usize| -> Arc<[u32]> { (0..n.div_ceil(PAGE) as u32).collect() };
        let (answers, tokens) = (tokens.min(layout.sequences), tokens.min(layout.input_pages * PAGE));
        for length in [1, layout.input] {
            let inputs = dummy_sequences(tokens, length, usize::MAX).into_iter().map(|s| (pages(layout.input), s.ids));
            self.encode(&inputs.collect::<Vec<_>>(), input_cache, place)?;
            for start in [0, layout.output - 1] {
                let chunk = TokenChunk { ids: vec![0], start, table: pages(layout.output), wanted: 1 };
                self.step(&vec![(chunk, (pages(layout.input), length)); answers], output_cache, input_cache, place)?;
            }
        }
        copy(&[(0, 0)], output_cache, place)
    }

    /// Encodes and decodes a text in separate KV caches; the logits must be finite.
    pub(super) fn sanity_check(&self, (cache_format, dtype): (KvCacheFormat, DType), place: &Place) -> Result<()> {
        let ids = varied_ids(sanity_tokens(place.device()), self.0.limits().vocabulary);
        let pages = ids.len().div_ceil(PAGE);
        let caches = [pages; 2].map(|pages| self.cache(pages, cache_format, place));
        let [input_cache, output_cache] = caches;
        let (input_cache, output_cache) = (input_cache?, output_cache?);
        let table: Arc<[u32]> = (0..pages as u32).collect();
        self.encode(&[(table.clone(), ids.clone())], &input_cache, place)?;
        let length = ids.len();
        for (start, ids) in [(0, &ids[..3]), (3, &ids[3..])] {
            let chunk = TokenChunk { ids: ids.to_vec(), start, table: table.clone(), wanted: 1 };
            let logits =
                self.step(&[(chunk, (table.clone(), length))], &output_cache, &input_cache, place)?.to_f32()?;
            if !logits.iter().all(|v| v.is_finite()) {
                return Err(Error::unsound("the sanity check's row of logits", dtype));
            }
        }
        Ok(())
    }
}

/// A pass of the decoder: the next tokens of answers in, their logits out.
struct Seq2SeqPass<'a> {
    model: &'a Seq2SeqModel,
    rows: &'a [(TokenChunk, InputTable)],
    output_cache: &'a KvCache,
    input_cache: &'a KvCache,
    place: &'a Place,
}

impl Pass for Seq2SeqPass<'_> {
    type Batch = (Batch, EncoderKv);
    type Error = Error;

    fn batch(&self, _: Option<Fill>) -> Result<(Batch, EncoderKv)> {
        let (chunks, inputs): (Vec<TokenChunk>, Vec<InputTable>) = self.rows.iter().cloned().unzip();
        let batch = Batch::decode(&chunks, PAGE, self.output_cache, self.model.0.limits(), self.place)?;
        Ok((batch, EncoderKv::new(&inputs, PAGE, self.input_cache)?))
    }

    fn layout(&self, (batch, read): &(Batch, EncoderKv)) -> BatchLayout {
        read.layout(batch)
    }

    fn forward(&self, (batch, read): &(Batch, EncoderKv)) -> Result<Vec<Tensor>> {
        let states = self.model.0.forward(batch, read, &mut |_, _| ())?;
        Ok(vec![self.model.0.head().forward(&states)?])
    }
}

/// The logits of a decoding pass.
fn logits((_, mut results): PassOutput<Seq2SeqPass<'_>>, place: &Place) -> Result<Tensor> {
    results.pop().ok_or_else(|| Error::bug(place.device(), "a step gives logits"))
}
