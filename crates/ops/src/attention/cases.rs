//! Cases: ragged batches, single tokens, sequences longer than a query block and a panel, odd head
//! sizes, scores far from zero; every bias, windows narrower and wider than a panel, keys that are
//! fewer than the queries, or different from them.

use super::reference::{self, Problem, dot};
use super::{Attention, Bias, Disentangled, Mask, attention, paged_cases};
use crate::case::{Case, Input, Tolerance};
use crate::{DType, Place, Result, Segments, Tensor};
use std::sync::Arc;

/// Differences from full self-attention.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Plain,
    /// Keys in a tensor of their own, with other strides than the values.
    SeparateKeys,
    LargeScores,
    Window(usize),
    Causal,
    CausalWindow(usize),
    Capped,
    Alibi,
    Buckets,
    /// Both terms, with exact distances or logarithmic buckets.
    Disentangled {
        logarithmic: bool,
    },
    /// Content-to-position only, with a window.
    ContentToPosition,
    /// Position-to-content only.
    PositionToContent,
    /// Only the first tokens of a sequence are keys: half of them and one.
    FewerKeys,
    /// The same with a window, so that the last queries attend to no key.
    NoVisibleKeys,
    /// One query per sequence, over the sequence's keys.
    SingleQuery,
    /// The same with every score far below zero: padding must not win against real keys.
    NegativeScores,
}

impl Kind {
    fn has_single_queries(self) -> bool {
        matches!(self, Kind::SingleQuery | Kind::NegativeScores)
    }
}

pub(crate) fn cases() -> Vec<Case> {
    // lengths, heads, head size
    let shapes: [(&[usize], usize, usize, Kind); 30] = [
        (&[16], 12, 32, Kind::Plain),
        (&[1, 7, 33, 2, 64, 25], 12, 32, Kind::Plain),
        (&[130, 5], 4, 64, Kind::Plain),
        (&[40, 3], 1, 130, Kind::Plain),
        (&[9, 1, 24], 3, 12, Kind::Plain),
        (&[31], 2, 1, Kind::Plain),
        (&[50, 13], 2, 64, Kind::LargeScores),
        (&[200, 1, 30], 2, 64, Kind::Window(8)),
        (&[150, 64], 2, 16, Kind::Window(64)),
        (&[77, 1, 30], 3, 64, Kind::Causal),
        (&[100, 1, 30], 12, 32, Kind::Alibi),
        (&[180, 2, 30], 3, 64, Kind::Buckets),
        (&[70, 1, 20], 2, 64, Kind::Disentangled { logarithmic: false }),
        // Enough keys for two parts.
        (&[150, 33, 2], 3, 20, Kind::Disentangled { logarithmic: true }),
        (&[60, 5], 2, 32, Kind::ContentToPosition),
        (&[32, 1, 20], 2, 32, Kind::FewerKeys),
        (&[60, 1, 20], 2, 32, Kind::NoVisibleKeys),
        // Longer than a block of queries of the composed form.
        (&[530], 1, 8, Kind::Window(3)),
        (&[520, 2], 2, 8, Kind::Alibi),
        (&[50, 1, 33], 4, 18, Kind::SingleQuery),
        (&[24, 25], 1, 96, Kind::Causal),
        (&[90, 3, 40], 2, 32, Kind::CausalWindow(8)),
        (&[60, 1], 2, 32, Kind::Capped),
        (&[40, 3], 1, 130, Kind::Disentangled { logarithmic: false }),
        (&[35, 2], 2, 18, Kind::PositionToContent),
        (&[40, 21], 1, 130, Kind::SingleQuery),
        (&[20, 9], 2, 64, Kind::NegativeScores),
        (&[21, 4], 3, 16, Kind::SeparateKeys),
        // Large heads, with every number of rows for which GPUs have a kernel of their own.
        (&[100, 40, 3], 1, 128, Kind::Plain),
        (&[100, 9], 1, 96, Kind::Causal),
    ];
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, dtype, *s));
    DType::FLOATS.into_iter().flat_map(case).chain(paged_cases::cases()).collect()
}

/// Heads and row counts large enough for CUDA's blocks of eight warps, and cases of CUDA's KV cache
/// kernels.
pub(crate) fn cases_of_cuda() -> Vec<Case> {
    let of = |dtype| [96, 128].map(|size| one(size as u64, dtype, (&[520, 520], 16, size, Kind::Window(8))));
    [DType::F16, DType::BF16].into_iter().flat_map(of).chain(paged_cases::cases_of_cuda()).collect()
}

const SPAN: usize = 16;
const FAR: usize = 64;

/// The inputs of a case.
#[derive(Clone)]
struct Inputs {
    lengths: &'static [usize],
    heads: usize,
    size: usize,
    kind: Kind,
    /// `[tokens, 3, heads, size]`
    qkv: Input,
    /// Single queries: `[sequences, heads, size]`.
    query: Input,
    /// Disentangled positions: `[2·span, heads, size]`.
    positions: [Input; 2],
    /// `[32, heads]`
    table: Input,
}

impl Inputs {
    fn slopes(&self) -> Arc<[f32]> {
        (1..=self.heads).map(|h| 0.5f32.powf(h as f32 / 2.0)).collect()
    }

    fn mask(&self) -> Mask {
        match self.kind {
            Kind::Window(reach) => Mask::Window(reach),
            Kind::ContentToPosition => Mask::Window(9),
            Kind::NoVisibleKeys => Mask::Window(4),
            Kind::Causal => Mask::Causal,
            Kind::CausalWindow(most) => Mask::CausalWindow(most),
            _ => Mask::All,
        }
    }

    fn segments(&self) -> Result<(Segments, Segments)> {
        let all = Segments::new(self.lengths)?;
        Ok(match self.kind {
            Kind::FewerKeys | Kind::NoVisibleKeys => {
                (all.clone(), all.heads(&self.lengths.iter().map(|n| n / 2 + 1).collect::<Vec<_>>())?)
            }
            Kind::SingleQuery | Kind::NegativeScores => (Segments::new(&vec![1; self.lengths.len()])?, all),
            _ => (all.clone(), all),
        })
    }

    fn far(&self) -> Option<usize> {
        (self.kind == Kind::Disentangled { logarithmic: true }).then_some(FAR)
    }

    fn options(&self, place: &Place) -> Result<Attention> {
        let (queries, keys) = self.segments()?;
        let bias = match self.kind {
            Kind::Alibi => Bias::Alibi(self.slopes()),
            Kind::Buckets => Bias::Buckets { table: self.table.values.as_slice().into(), far: 128, both: true },
            Kind::Disentangled { .. } | Kind::ContentToPosition | Kind::PositionToContent => {
                Bias::Disentangled(Disentangled {
                    keys: (self.kind != Kind::PositionToContent).then(|| self.positions[0].on(place)).transpose()?,
                    queries: (self.kind != Kind::ContentToPosition).then(|| self.positions[1].on(place)).transpose()?,
                    span: SPAN,
                    far: self.far(),
                })
            }
            _ => Bias::None,
        };
        Ok(Attention { queries, keys: keys.into(), scale: self.scale(), cap: self.cap(), mask: self.mask(), bias })
    }

    fn cap(&self) -> Option<f32> {
        (self.kind == Kind::Capped).then_some(1.5)
    }

    fn scale(&self) -> f32 {
        let terms = if matches!(self.kind, Kind::Disentangled { .. }) { 3.0 } else { 1.0 };
        1.0 / (self.size as f32 * terms).sqrt()
    }

    fn reference(&self) -> Result<Vec<f64>> {
        let (heads, size) = (self.heads, self.size);
        let row = heads * size;
        let part = |i: usize| -> Vec<f32> {
            self.qkv.values.chunks(3 * row).flat_map(|token| token[i * row..][..row].to_vec()).collect()
        };
        let (q, k, v) =
            (if self.kind.has_single_queries() { self.query.values.to_vec() } else { part(0) }, part(1), part(2));
        let (queries, keys) = self.segments()?;
        let slopes = self.slopes();
        let d = Disentangled { keys: None, queries: None, span: SPAN, far: self.far() };
        let position = |table: usize, i: i64, j: i64, head: usize| {
            &self.positions[table].values[(d.row(i - j) * heads + head) * size..][..size]
        };
        let added = |i: i64, j: i64, head: usize, q: &[f32], k: &[f32]| match self.kind {
            Kind::Alibi => (0.0, -f64::from(slopes[head]) * (i - j).abs() as f64),
            Kind::Buckets => (0.0, f64::from(self.table.values[bucket_in_f64(j - i) * heads + head])),
            Kind::Disentangled { .. } => (dot(q, position(0, i, j, head)) + dot(k, position(1, i, j, head)), 0.0),
            Kind::ContentToPosition => (dot(q, position(0, i, j, head)), 0.0),
            Kind::PositionToContent => (dot(k, position(1, i, j, head)), 0.0),
            _ => (0.0, 0.0),
        };
        Ok(reference::attention(&Problem {
            q: &q,
            k: &k,
            v: &v,
            heads,
            size,
            queries: &queries,
            keys: &keys,
            scale: self.scale(),
            cap: self.cap(),
            mask: self.mask(),
            added: &added,
        }))
    }
}

/// T5's 32 buckets to distance 128, as in the paper: half for each side, half of those exact.
fn bucket_in_f64(distance: i64) -> usize {
    let (side, away) = (if distance > 0 { 16 } else { 0 }, distance.abs() as f64);
    let step = if away < 8.0 { away } else { (8.0 + (away / 8.0).ln() / 16f64.ln() * 8.0 + 1e-9).floor().min(15.0) };
    side + step as usize
}

fn one(seed: u64, dtype: DType, (lengths, heads, size, kind): (&'static [usize], usize, usize, Kind)) -> Case {
    let tokens: usize = lengths.iter().sum();
    // Scores of up to 250, whose exponentials are beyond f32 unless the largest is subtracted
    // first.
    let spread = if kind == Kind::LargeScores { 8.0 } else { 1.0 };
    // Scores of about -128.
    let centre = if kind == Kind::NegativeScores { 4.0 } else { 0.0 };
    let normal = |seed, dims: &[usize], centre| Input::normal(seed, dims, dtype, (centre, spread));
    let inputs = Inputs {
        lengths,
        heads,
        size,
        kind,
        qkv: normal(seed + 300, &[tokens, 3, heads, size], centre),
        query: normal(seed + 330, &[lengths.len(), heads, size], -centre),
        positions: [350, 370].map(|s| normal(seed + s, &[2 * SPAN, heads, size], 0.0)),
        table: Input::normal(seed + 390, &[32 * heads], DType::F32, (0.0, 1.0)),
    };
    let reference_inputs = inputs.clone();
    let longest = lengths.iter().max().copied().unwrap_or(0) as f64;
    let walk = 2.0 * (longest.sqrt() + (size as f64).sqrt());
    // A bias makes scores larger, and their f32 errors with them.
    let larger = match kind {
        Kind::Alibi => longest / 4.0,
        Kind::NegativeScores => 128.0,
        _ => 1.0,
    };
    let scores = f64::from(spread * spread) + larger;
    let is_plain = matches!(kind, Kind::Plain | Kind::SeparateKeys | Kind::LargeScores) && (size == 32 || size == 64);
    Case {
        op: "attention",
        name: format!("{lengths:?} x {heads} heads of {size}, {kind:?}"),
        dtype,
        // One rounding in both forms; two where the softmax's numerators are rounded before the
        // product with the values: in bf16 (AMX tiles), and on CUDA in both 16-bit formats, for
        // plain heads of 32 and 64. A score has an f32 error of a few roundings of its size, up to
        // about 4 · spread², and exp turns that into a relative error; both sums are random walks,
        // √length and √size.
        tolerance: Tolerance {
            fused: if dtype == DType::BF16 || dtype == DType::F16 && is_plain { 2.0 } else { 1.0 },
            composed: 1.0,
            sums: 16.0 * scores + walk,
        },
        flops: lengths.iter().map(|t| 4 * (t * t * heads * size) as u64).sum(),
        prepare: Box::new(move |place| {
            let (qkv, options) = (inputs.qkv.on(place)?, inputs.options(place)?);
            let (mut q, mut k, v) = (qkv.select(1, 0)?, qkv.select(1, 1)?, qkv.select(1, 2)?);
            if kind == Kind::SeparateKeys {
                let keys = inputs.qkv.columns(heads * size, heads * size);
                k = Tensor::from_f32(&keys, &[tokens, heads, size], dtype, place)?;
            }
            if kind.has_single_queries() {
                q = inputs.query.on(place)?;
            }
            Ok(Box::new(move || attention(&q, &k, &v, &options)))
        }),
        reference: Box::new(move || reference_inputs.reference().unwrap_or_default()),
    }
}
