//! Forward passes from token ids to embeddings or tokens in host memory, without tokenizer and
//! scheduler: `cargo bench --workspace --bench passes -- DIR DEVICE DTYPE SHAPE…`.
//! `benches/cuda.py` compares it with PyTorch.
//!
//! DIR has `config.json` and weights, or is a GGUF file, whose quantized blocks keep their format.
//! A SHAPE is `256x128` (sequences × tokens), `ragged256` (256 sequences of 8 to 256 tokens),
//! `decode32` (one token for each of 32 sequences with 128 tokens in the KV cache) or
//! `prefill2048`. Prints a line of JSON for each shape, with the median time of a pass.

use sconce_formats::Model;
use sconce_models::{Backbone, Batch, CONTEXT, LmHead, Sequence, TokenChunk, backbone, lm_head};
use sconce_ops::replay::{self, BatchLayout, Fill, GraphCache, Pass};
use sconce_ops::sample::sample;
use sconce_ops::{
    DType, Device, KvCache, KvCacheFormat, Ladder, Place, Policy, Pooling, SamplingParams, Tensor, WeightFormat,
    Weights, l2_norm, pool,
};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

/// Tokens per page of the KV cache, and tokens in the cache before a decode step.
const PAGE: usize = 16;
const CACHED: usize = 128;

/// The memory budget of the CUDA graphs' buffers.
const GRAPH_BYTES: u64 = 1 << 30;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let [dir, device, dtype, shapes @ ..] = &args[..] else {
        return Err("usage: passes DIR DEVICE DTYPE SHAPE…".into());
    };
    let (device, dtype): (Device, DType) = (device.parse()?, dtype.parse()?);
    let _here = Ladder::new(Policy::default()).enter();
    let place = Place::open(device)?;
    let Model { mut config, store, .. } = Model::open(Path::new(dir))?;
    config[CONTEXT] = 4096.into();
    let format = if dir.ends_with(".gguf") { WeightFormat::File } else { WeightFormat::Activations };
    let weights = Weights::new(store, dtype, place.clone()).with_format(format);
    let model = backbone(&config, &weights)?;
    for shape in shapes {
        let (sequences, median) = if let Some(n) = shape.strip_prefix("decode") {
            let n: usize = n.parse()?;
            (n, next_tokens((&*model, &lm_head(&config, &weights)?), &vec![(CACHED, 1); n], (dtype, &place))?)
        } else if let Some(n) = shape.strip_prefix("prefill") {
            (1, next_tokens((&*model, &lm_head(&config, &weights)?), &[(0, n.parse()?)], (dtype, &place))?)
        } else {
            let lengths = match (shape.strip_prefix("ragged"), shape.split_once('x')) {
                (Some(n), _) => (0..n.parse::<usize>()?).map(|i| 8 + i * 97 % 249).collect(),
                (None, Some((n, tokens))) => vec![tokens.parse()?; n.parse()?],
                (None, None) => {
                    return Err(format!("unknown shape `{shape}`; see the head of benches/passes.rs").into());
                }
            };
            (lengths.len(), embeddings(&*model, &lengths, &place)?)
        };
        println!("{}", json!({ "shape": shape, "seconds": median.as_secs_f64(), "sequences": sequences }));
    }
    Ok(())
}

/// Mean-pooled, L2-normalized embeddings of sequences.
struct EmbedPass<'a> {
    model: &'a dyn Backbone,
    sequences: Vec<Sequence>,
    place: &'a Place,
}

impl Pass for EmbedPass<'_> {
    type Batch = Batch;
    type Error = sconce_models::Error;

    fn batch(&self, fill: Option<Fill>) -> sconce_models::Result<Batch> {
        Batch::filled(&self.sequences, fill, self.model.limits(), self.place)
    }

    fn layout(&self, batch: &Batch) -> BatchLayout {
        batch.layout(&vec![0; batch.segments.count()])
    }

    fn forward(&self, batch: &Batch) -> sconce_models::Result<Vec<Tensor>> {
        let hidden = self.model.forward(batch, &mut |_, _| ())?;
        let pooled = pool(&hidden, &batch.segments, &vec![0; batch.segments.count()], &[Pooling::Mean])?;
        Ok(vec![l2_norm(&pooled)?])
    }
}

fn embeddings(model: &dyn Backbone, lengths: &[usize], place: &Place) -> Result<Duration, Failure> {
    let sequence = |n: &usize| Sequence {
        ids: (0..*n as u32).map(|i| 1000 + i).collect(),
        types: Vec::new(),
        keys: None,
        marks: None,
    };
    let pass = EmbedPass { model, sequences: lengths.iter().map(sequence).collect(), place };
    let graphs = GraphCache::new(place, GRAPH_BYTES)?;
    let fill = graphs.fill(lengths.iter().sum(), lengths.len());
    median(|| {
        let (_, results) = if fill.is_some() { graphs.replay(&pass, 0, fill)? } else { replay::run(&pass)? };
        results[0].to_f32()?;
        Ok(())
    })
}

/// Logits of the last token of each chunk.
struct DecodePass<'a> {
    model: (&'a dyn Backbone, &'a LmHead),
    chunks: Vec<TokenChunk>,
    cache: &'a KvCache,
    place: &'a Place,
}

impl Pass for DecodePass<'_> {
    type Batch = Batch;
    type Error = sconce_models::Error;

    fn batch(&self, _: Option<Fill>) -> sconce_models::Result<Batch> {
        Batch::decode(&self.chunks, PAGE, self.cache, self.model.0.limits(), self.place)
    }

    fn layout(&self, batch: &Batch) -> BatchLayout {
        batch.layout(&[])
    }

    fn forward(&self, batch: &Batch) -> sconce_models::Result<Vec<Tensor>> {
        let (model, head) = self.model;
        Ok(vec![head.forward(&model.forward(batch, &mut |_, _| ())?)?])
    }
}

/// Greedy next tokens of sequences, each with (tokens in the KV cache, new tokens).
fn next_tokens(
    model: (&dyn Backbone, &LmHead),
    sequences: &[(usize, usize)],
    at: (DType, &Place),
) -> Result<Duration, Failure> {
    let (dtype, place) = at;
    let pages: Vec<usize> = sequences.iter().map(|(cached, new)| (cached + new).div_ceil(PAGE)).collect();
    let shape = model.0.cache().ok_or("not a language model")?;
    let cache = KvCache::new(shape, pages.iter().sum::<usize>() * PAGE, KvCacheFormat::Float(dtype), place)?;
    let mut first = 0;
    let mut chunks = Vec::new();
    for ((cached, new), pages) in sequences.iter().zip(&pages) {
        let table: Arc<[u32]> = (first..first + *pages as u32).collect();
        first += *pages as u32;
        chunks.push(TokenChunk { ids: (0..*new as u32).map(|i| 1000 + i).collect(), start: *cached, table, wanted: 1 });
    }
    let (pass, graphs) = (DecodePass { model, chunks, cache: &cache, place }, GraphCache::new(place, GRAPH_BYTES)?);
    let is_decoding = sequences.iter().all(|(_, new)| *new == 1);
    median(|| {
        let (_, results) = if is_decoding { graphs.replay(&pass, 0, None)? } else { replay::run(&pass)? };
        sample(&results[0], &vec![SamplingParams::GREEDY; sequences.len()])?.to_u32()?;
        Ok(())
    })
}

fn median(call: impl Fn() -> Result<(), Failure>) -> Result<Duration, Failure> {
    (0..5).try_for_each(|_| call())?;
    let (start, mut times) = (Instant::now(), Vec::new());
    while times.len() < 10 || start.elapsed() < Duration::from_secs(1) {
        let one = Instant::now();
        call()?;
        times.push(one.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}
