//! Forward passes from token ids to vectors or tokens in the CPU's memory: what a device does, without tokenizers and callers.
//! `cargo bench --workspace --bench passes -- DIR DEVICE DTYPE SHAPE…`; `benches/cuda.py` runs it beside PyTorch.
//!
//! DIR holds `config.json` and weights, or is a GGUF file, whose blocks stay as they are. A SHAPE is `256x128` (sequences × tokens),
//! `ragged256` (of 8 to 256 tokens each, so many sequences), `decode32` (a token of so many sequences behind 128 others) or
//! `prefill2048`. A line of JSON comes for each: the median time of a pass.

use sconce_formats::Model;
use sconce_models::{Batch, CONTEXT, Encoder, LmHead, Sequence, TokenChunk, encoder, lm_head};
use sconce_ops::replay::{self, Fill, Given, GraphCache, Pass};
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

/// Tokens of a page, and of what stands before a decoded token.
const PAGE: usize = 16;
const BEFORE: usize = 128;

/// Bytes for buffers of recorded passes, as a plan would allow for.
const ROOM: u64 = 1 << 30;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let [dir, device, dtype, shapes @ ..] = &args[..] else { return Err("DIR DEVICE DTYPE SHAPE…".into()) };
    let (device, dtype): (Device, DType) = (device.parse()?, dtype.parse()?);
    let _here = Ladder::new(Policy::default()).enter();
    let place = Place::open(device)?;
    let Model { mut config, store, .. } = Model::open(Path::new(dir))?;
    config[CONTEXT] = 4096.into();
    let keep = if dir.ends_with(".gguf") { WeightFormat::File } else { WeightFormat::Activations };
    let weights = Weights::new(store, dtype, place.clone()).with_format(keep);
    let model = encoder(&config, &weights)?;
    for shape in shapes {
        let (sequences, median) = if let Some(n) = shape.strip_prefix("decode") {
            let n: usize = n.parse()?;
            (n, language((&*model, &lm_head(&config, &weights)?), &vec![(BEFORE, 1); n], (dtype, &place))?)
        } else if let Some(n) = shape.strip_prefix("prefill") {
            (1, language((&*model, &lm_head(&config, &weights)?), &[(0, n.parse()?)], (dtype, &place))?)
        } else {
            let lengths = match (shape.strip_prefix("ragged"), shape.split_once('x')) {
                (Some(n), _) => (0..n.parse::<usize>()?).map(|i| 8 + i * 97 % 249).collect(),
                (None, Some((n, tokens))) => vec![tokens.parse()?; n.parse()?],
                (None, None) => return Err(format!("no shape: {shape}").into()),
            };
            (lengths.len(), vectors(&*model, &lengths, &place)?)
        };
        println!("{}", json!({ "shape": shape, "seconds": median.as_secs_f64(), "sequences": sequences }));
    }
    Ok(())
}

/// Mean vectors of length 1 of each sequence.
struct KvTensor<'a> {
    model: &'a dyn Encoder,
    sequences: Vec<Sequence>,
    place: &'a Place,
}

impl Pass for KvTensor<'_> {
    type Batch = Batch;
    type Error = sconce_models::Error;

    fn batch(&self, fill: Option<Fill>) -> sconce_models::Result<Batch> {
        Batch::filled(&self.sequences, fill, self.model.limits(), self.place)
    }

    fn given(&self, batch: &Batch) -> Given {
        batch.given(&vec![0; batch.segments.count()])
    }

    fn forward(&self, batch: &Batch) -> sconce_models::Result<Vec<Tensor>> {
        let hidden = self.model.forward(batch, &mut |_, _| ())?;
        let pooled = pool(&hidden, &batch.segments, &vec![0; batch.segments.count()], &[Pooling::Mean])?;
        Ok(vec![l2_norm(&pooled)?])
    }
}

fn vectors(model: &dyn Encoder, lengths: &[usize], place: &Place) -> Result<Duration, Failure> {
    let sequence =
        |n: &usize| Sequence { ids: (0..*n as u32).map(|i| 1000 + i).collect(), types: Vec::new(), keys: None };
    let pass = KvTensor { model, sequences: lengths.iter().map(sequence).collect(), place };
    let passes = GraphCache::new(place, ROOM)?;
    let fill = passes.fill(lengths.iter().sum(), lengths.len());
    median(|| {
        let (_, results) = if fill.is_some() { passes.replay(&pass, 0, fill)? } else { replay::run(&pass)? };
        results[0].to_f32()?;
        Ok(())
    })
}

/// Logits of the last token of each piece.
struct Pieces<'a> {
    model: (&'a dyn Encoder, &'a LmHead),
    pieces: Vec<TokenChunk>,
    cache: &'a KvCache,
    place: &'a Place,
}

impl Pass for Pieces<'_> {
    type Batch = Batch;
    type Error = sconce_models::Error;

    fn batch(&self, _: Option<Fill>) -> sconce_models::Result<Batch> {
        Batch::decode(&self.pieces, PAGE, self.cache, self.model.0.limits(), self.place)
    }

    fn given(&self, batch: &Batch) -> Given {
        batch.given(&[])
    }

    fn forward(&self, batch: &Batch) -> sconce_models::Result<Vec<Tensor>> {
        let (model, head) = self.model;
        Ok(vec![head.forward(&model.forward(batch, &mut |_, _| ())?)?])
    }
}

/// The likeliest next token of sequences of (tokens before, tokens now).
fn language(model: (&dyn Encoder, &LmHead), of: &[(usize, usize)], at: (DType, &Place)) -> Result<Duration, Failure> {
    let (dtype, place) = at;
    let pages: Vec<usize> = of.iter().map(|(before, now)| (before + now).div_ceil(PAGE)).collect();
    let shape = model.0.cache().ok_or("not a language model")?;
    let cache = KvCache::new(shape, pages.iter().sum::<usize>() * PAGE, KvCacheFormat::Float(dtype), place)?;
    let mut first = 0;
    let mut pieces = Vec::new();
    for ((before, now), pages) in of.iter().zip(&pages) {
        let table: Arc<[u32]> = (first..first + *pages as u32).collect();
        first += *pages as u32;
        pieces.push(TokenChunk { ids: (0..*now as u32).map(|i| 1000 + i).collect(), start: *before, table, wanted: 1 });
    }
    let (pass, passes) = (Pieces { model, pieces, cache: &cache, place }, GraphCache::new(place, ROOM)?);
    let is_decoding = of.iter().all(|(_, now)| *now == 1);
    median(|| {
        let (_, results) = if is_decoding { passes.replay(&pass, 0, None)? } else { replay::run(&pass)? };
        sample(&results[0], &vec![SamplingParams::BEST; of.len()])?.to_u32()?;
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
