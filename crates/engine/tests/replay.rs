//! Replayed CUDA graphs against the same passes run directly, over batches that differ in
//! everything that a graph allows to differ. Devices without graphs run both directly.

use sconce_engine::Checkpoint;
use sconce_models::{
    Backbone, Batch, CONTEXT, EncoderKv, LmHead, Result, Seq2Seq, Sequence, TokenChunk, backbone, lm_head, seq2seq,
};
use sconce_ops::case::{devices, places};
use sconce_ops::replay::{self, BatchLayout, Fill, GraphCache, Pass};
use sconce_ops::{DType, Device, KvCache, KvCacheFormat, Ladder, Place, Policy, Pooling, Tensor, Weights, pool};
use sconce_testkit::{Suite, json, materialize, worst};
use std::sync::Arc;

/// Attention of a batch with a dummy sequence uses other tiles, whose sums are in another order; in
/// f16 a result may round the other way, and later ones a few times over.
const WORST: [(DType, f32); 2] = [(DType::F32, 1e-5), (DType::F16, 2e-2)];

const PAGE: usize = 8;

const SEQ2SEQ: [&str; 3] = ["t5-seq2seq", "flan-t5-seq2seq", "mt5-seq2seq"];

const DECODERS: [&str; 9] =
    ["llama-2", "mistral", "mixtral", "qwen2-moe", "qwen3", "gemma-2", "gpt2", "falcon-rw", "phi-2"];

/// Rows of every token, and an embedding of each sequence.
struct Texts<'a> {
    encoder: &'a dyn Backbone,
    sequences: Vec<Sequence>,
    place: &'a Place,
}

impl Pass for Texts<'_> {
    type Batch = Batch;
    type Error = sconce_models::Error;

    fn batch(&self, fill: Option<Fill>) -> Result<Batch> {
        Batch::filled(&self.sequences, fill, self.encoder.limits(), self.place)
    }

    fn layout(&self, batch: &Batch) -> BatchLayout {
        batch.layout(&vec![0; batch.segments.count()])
    }

    fn forward(&self, batch: &Batch) -> Result<Vec<Tensor>> {
        let hidden = self.encoder.forward(batch, &mut |_, _| ())?;
        let modes = [Pooling::Mean, Pooling::Max, Pooling::Cls, Pooling::LastToken];
        let pooled = pool(&hidden, &batch.segments, &vec![0; batch.segments.count()], &modes)?;
        Ok(vec![hidden, pooled])
    }
}

/// The requested results, without those of the dummy sequence.
fn requested_rows(texts: &Texts<'_>, results: &[Tensor]) -> Vec<f32> {
    let tokens = texts.sequences.iter().map(|s| s.ids.len()).sum::<usize>();
    let rows = [tokens, texts.sequences.len()];
    let own = |(t, n): (&Tensor, usize)| t.narrow(0, 0, n).unwrap().to_f32().unwrap();
    results.iter().zip(rows).flat_map(own).collect()
}

fn load(name: &str, dtype: DType, place: &Place) -> (Box<dyn Backbone>, Option<LmHead>) {
    let dir = materialize(name);
    let mut config = json(&dir.path().join("config.json"));
    config[CONTEXT] = 600.into();
    let weights = Weights::new(Arc::new(Checkpoint::open(dir.path()).unwrap()), dtype, place.clone());
    (backbone(&config, &weights).unwrap_or_else(|e| panic!("{name}: {e}")), lm_head(&config, &weights).ok())
}

fn encoder_graphs_equal_direct_passes(kind: &str) {
    let lengths: [&[usize]; 9] = [&[7], &[16], &[12], &[3, 9], &[1, 1], &[5, 20, 2], &[1, 1, 29], &[40], &[33, 1]];
    let names = [
        "bert-token",
        "roberta-tiny",
        "jina-tiny",
        "nomic-tiny",
        "nomic-moe-tiny",
        "modernbert-tiny",
        "t5-relu",
        "mpnet-tiny",
        "deberta-tiny",
    ];
    for (place, force) in places(kind) {
        let ladder = Ladder::new(Policy::default().with_force(force));
        let _here = ladder.clone().enter();
        for (name, (dtype, allowed)) in names.iter().flat_map(|name| WORST.map(|of| (name, of))) {
            let (encoder, _) = load(name, dtype, &place);
            let passes = GraphCache::new(&place, 1 << 30).unwrap();
            let limits = encoder.limits();
            for round in 0..3 {
                for lengths in lengths {
                    let id = |i: usize, n: usize| ((i * 31 + n * 7 + round * 13) % (limits.vocabulary - 4) + 4) as u32;
                    let of = |n: &usize| (0..(*n).min(limits.positions)).map(|i| id(i, *n)).collect();
                    let sequences = lengths.iter().map(|n| Sequence { ids: of(n), ..Sequence::default() }).collect();
                    let texts = Texts { encoder: &*encoder, sequences, place: &place };
                    let counted = || ladder.counts().iter().map(|(_, n)| n).sum::<u64>();
                    let before = counted();
                    let want = requested_rows(&texts, &replay::run(&texts).unwrap().1);
                    let calls = counted() - before;
                    let tokens = texts.sequences.iter().map(|s| s.ids.len()).sum();
                    let fill = passes.fill(tokens, lengths.len());
                    let got = requested_rows(&texts, &passes.replay(&texts, 0, fill).unwrap().1);
                    let largest = worst(&want, &vec![0.0; want.len()]);
                    let off = worst(&got, &want) / largest;
                    assert!(off <= allowed, "{name} in {dtype} on {}, {lengths:?}: {off:.1e}", place.device());
                    assert_eq!(counted() - before, 2 * calls, "{name}: a replay counts the ops that it replays");
                }
            }
            let made = passes.count();
            assert_eq!(made > 0, matches!(place.device(), Device::Cuda(_)), "{name} on {}: {made}", place.device());
            println!("{name} in {dtype} on {}: {made} graphs", place.device());
        }
    }
}

struct DecodePass<'a> {
    model: (&'a dyn Backbone, &'a LmHead),
    chunks: Vec<TokenChunk>,
    cache: &'a KvCache,
    place: &'a Place,
}

impl Pass for DecodePass<'_> {
    type Batch = Batch;
    type Error = sconce_models::Error;

    fn batch(&self, _: Option<Fill>) -> Result<Batch> {
        Batch::decode(&self.chunks, PAGE, self.cache, self.model.0.limits(), self.place)
    }

    fn layout(&self, batch: &Batch) -> BatchLayout {
        batch.layout(&[])
    }

    fn forward(&self, batch: &Batch) -> Result<Vec<Tensor>> {
        Ok(vec![self.model.1.forward(&self.model.0.forward(batch, &mut |_, _| ())?)?])
    }
}

/// Sequences that join and leave, and grow over pages and powers of two; the kernels are the same,
/// and so are the bits.
fn decode_graphs_equal_direct_passes(kind: &str) {
    for (place, force) in places(kind) {
        let _here = Ladder::new(Policy::default().with_force(force)).enter();
        for (name, dtype) in DECODERS.iter().flat_map(|name| [DType::F32, DType::BF16].map(|dtype| (name, dtype))) {
            let (encoder, head) = load(name, dtype, &place);
            let (model, limits) = ((&*encoder, head.as_ref().expect("a head")), encoder.limits());
            let passes = GraphCache::new(&place, 1 << 30).unwrap();
            let pages = 64usize;
            let caches = [0, 1].map(|_| {
                KvCache::new(encoder.cache().unwrap(), 3 * pages * PAGE, KvCacheFormat::Float(dtype), &place).unwrap()
            });
            let id = |i: usize, n: usize| ((i * 31 + n * 7) % limits.vocabulary) as u32;
            // Pages in no order; a table grows with its sequence.
            let table =
                |s: usize, end: usize| (0..end.div_ceil(PAGE) as u32).map(|p| 3 * p + s as u32).collect::<Arc<[u32]>>();
            let chunk = |s: usize, start: usize, n: usize| TokenChunk {
                ids: (start..start + n).map(|i| id(i, s)).collect(),
                start,
                table: table(s, start + n),
                wanted: 1,
            };
            let starts = [250usize, 30, 1].map(|n| n.min(limits.positions.saturating_sub(20).max(1)));
            for cache in &caches {
                let chunks = (0..3).map(|s| chunk(s, 0, starts[s])).collect();
                replay::run(&DecodePass { model, chunks, cache, place: &place }).unwrap();
            }
            for step in 0..16 {
                let active: &[usize] = [&[0, 1, 2][..], &[0, 1, 2], &[0, 1, 2], &[2, 0], &[1]][step % 5];
                let mut results = caches.each_ref().map(|cache| {
                    let chunks = active.iter().map(|s| chunk(*s, starts[*s] + step, 1)).collect();
                    DecodePass { model, chunks, cache, place: &place }
                });
                let [direct, replayed] = &mut results;
                let want = replay::run(direct).unwrap().1[0].to_f32().unwrap();
                let got = passes.replay(replayed, 0, None).unwrap().1[0].to_f32().unwrap();
                assert!(
                    got == want,
                    "{name} in {dtype} on {}, step {step}: {:.1e}",
                    place.device(),
                    worst(&got, &want)
                );
                // Tokens that the other batches leave out are written too, so that no sequence has
                // a hole.
                for cache in &caches {
                    let chunks = (0..3).map(|s| chunk(s, starts[s] + step, 1)).collect();
                    replay::run(&DecodePass { model, chunks, cache, place: &place }).unwrap();
                }
            }
            let made = passes.count();
            assert_eq!(made > 0, matches!(place.device(), Device::Cuda(_)), "{name} on {}: {made}", place.device());
            println!("{name} in {dtype} on {}: {made} graphs", place.device());
        }
    }
}

/// Block table and length of an input.
type InputTable = (Arc<[u32]>, usize);

struct Seq2SeqPass<'a> {
    model: &'a dyn Seq2Seq,
    chunks: Vec<TokenChunk>,
    inputs: Vec<InputTable>,
    caches: (&'a KvCache, &'a KvCache),
    place: &'a Place,
}

impl Pass for Seq2SeqPass<'_> {
    type Batch = (Batch, EncoderKv);
    type Error = sconce_models::Error;

    fn batch(&self, _: Option<Fill>) -> Result<(Batch, EncoderKv)> {
        let (read, written) = self.caches;
        let batch = Batch::decode(&self.chunks, PAGE, written, self.model.limits(), self.place)?;
        Ok((batch, EncoderKv::new(&self.inputs, PAGE, read)?))
    }

    fn layout(&self, (batch, read): &(Batch, EncoderKv)) -> BatchLayout {
        read.layout(batch)
    }

    fn forward(&self, (batch, read): &(Batch, EncoderKv)) -> Result<Vec<Tensor>> {
        let states = self.model.forward(batch, read, &mut |_, _| ())?;
        Ok(vec![self.model.head().forward(&states)?])
    }
}

/// Pages in no order, of three texts; a table grows with its text.
fn pages(of: usize, end: usize) -> Arc<[u32]> {
    (0..end.div_ceil(PAGE) as u32).map(|page| 3 * page + of as u32).collect()
}

/// Answers that join, leave and grow as in [`decode_graphs_equal_direct_passes`], and attend to
/// another input each time.
fn seq2seq_graphs_equal_direct_passes(kind: &str) {
    const INPUTS: [usize; 3] = [150, 40, 3];
    const STARTS: [usize; 3] = [250, 30, 1];
    for (place, force) in places(kind) {
        let ladder = Ladder::new(Policy::default().with_force(force));
        let _here = ladder.clone().enter();
        for (name, dtype) in SEQ2SEQ.iter().flat_map(|name| [DType::F32, DType::BF16].map(|dtype| (name, dtype))) {
            let dir = materialize(name);
            let weights = Weights::new(Arc::new(Checkpoint::open(dir.path()).unwrap()), dtype, place.clone());
            let model = seq2seq(&json(&dir.path().join("config.json")), &weights).unwrap();
            let model = &*model;
            let cache = || KvCache::new(model.cache(), 3 * 64 * PAGE, KvCacheFormat::Float(dtype), &place).unwrap();
            let (read, written, passes) = (cache(), [cache(), cache()], GraphCache::new(&place, 1 << 30).unwrap());
            let id = |i: usize, n: usize| ((i * 31 + n * 7) % model.limits().vocabulary) as u32;
            let text = |n: usize| Sequence { ids: (0..INPUTS[n]).map(|i| id(i, n)).collect(), ..Sequence::default() };
            let batch = Batch::new(&[0, 1, 2].map(text), model.limits(), &place).unwrap();
            let states = model.encoder().forward(&batch, &mut |_, _| ()).unwrap();
            let inputs = [0, 1, 2].map(|n| (pages(n, INPUTS[n]), INPUTS[n]));
            let rows = EncoderKv::new(&inputs, PAGE, &read).unwrap().rows(&place).unwrap();
            model.write_encoder_kv(&states, &read, &rows).unwrap();
            // The tokens of each sequence from its start on, with the input whose turn it is.
            let pass = |active: &[usize], (step, n): (usize, Option<usize>), written| {
                let chunk = |s: &usize| {
                    let (start, n) = (n.map_or(0, |_| STARTS[*s] + step), n.unwrap_or(STARTS[*s]));
                    let ids = (start..start + n).map(|i| id(i, *s)).collect();
                    TokenChunk { ids, start, table: pages(*s, start + n), wanted: 1 }
                };
                let input = |s: &usize| inputs[(*s + step) % 3].clone();
                let (chunks, inputs) = (active.iter().map(chunk).collect(), active.iter().map(input).collect());
                Seq2SeqPass { model, chunks, inputs, caches: (&read, written), place: &place }
            };
            for written in &written {
                replay::run(&pass(&[0, 1, 2], (0, None), written)).unwrap();
            }
            let counted = || ladder.counts().iter().map(|(_, n)| n).sum::<u64>();
            for step in 0..16 {
                let active: &[usize] = [&[0, 1, 2][..], &[0, 1, 2], &[0, 1, 2], &[2, 0], &[1]][step % 5];
                let [direct, replayed] = written.each_ref().map(|written| pass(active, (step, Some(1)), written));
                let before = counted();
                let want = replay::run(&direct).unwrap().1[0].to_f32().unwrap();
                let calls = counted() - before;
                let got = passes.replay(&replayed, 0, None).unwrap().1[0].to_f32().unwrap();
                let what = format!("{name} in {dtype} on {}, step {step}", place.device());
                assert!(got == want, "{what}: {:.1e}", worst(&got, &want));
                assert_eq!(counted() - before, 2 * calls, "{what}: a replay counts the ops that it replays");
                // Tokens that the other batches leave out are written too, so that no sequence has
                // a hole.
                for written in &written {
                    replay::run(&pass(&[0, 1, 2], (step, Some(1)), written)).unwrap();
                }
            }
            // At least one graph for each number of answers.
            let made = passes.count();
            let least = if matches!(place.device(), Device::Cuda(_)) { 3 } else { 0 };
            assert!(made >= least && (made > 0) == (least > 0), "{name} on {}: {made}", place.device());
            println!("{name} in {dtype} on {}: {made} graphs", place.device());
        }
    }
}

fn main() {
    Suite::new(devices())
        .on_each("encoder_graphs_equal_direct_passes", encoder_graphs_equal_direct_passes)
        .on_each("decode_graphs_equal_direct_passes", decode_graphs_equal_direct_passes)
        .on_each("seq2seq_graphs_equal_direct_passes", seq2seq_graphs_equal_direct_passes)
        .run()
}
