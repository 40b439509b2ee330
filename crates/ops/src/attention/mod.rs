//! y = softmax((q · kᵀ + positions) · scale + bias) · v, per head and per sequence        scores, exp and sums in f32, one rounding
//!                                            (by tiles of bf16, and of plain heads on CUDA, exp is rounded too, before it meets v)
//!
//! Sequences are packed: a token sees tokens of its own sequence, all of them or those that [`Mask`] says, and none of another.
//! q, k and v may be views into one fused projection; nothing is padded and nothing is copied to line them up. Keys and values
//! may also lie in the pages of a cache, in a dtype of its own, and several heads of q may share one of theirs.

mod cases;
mod composed;
mod cpu;
#[cfg(cuda)]
mod cuda;
mod decode;
mod kv_view;
mod mask;
#[cfg(metal)]
mod metal;
mod pack;
mod paged_cases;
mod plan;
mod reference;
mod tables;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_tiles.rs"]
mod tiles;

pub(crate) use cases::{cases, cases_of_cuda};
pub use mask::{Bias, Disentangled, Mask};

use self::tables::{Tables, Way};
use crate::keys::Keys;
use crate::kv_write::{KvCacheFormat, KvTensor};
use crate::ladder::{self, Can, Op, Rung, own_kernels};
use crate::replay::{OpScope, op_scope};
use crate::{Device, Error, Result, Segments, Tensor};
use std::sync::{Arc, OnceLock};

/// What the scores are like; q, k and v come beside it.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Which queries belong together.
    pub queries: Segments,
    /// Which keys the queries of the same number look at: in self-attention their own.
    pub keys: Keys,
    /// What a score is multiplied with before the softmax.
    pub scale: f32,
    /// cap · tanh(score / cap) instead of a score, where there is one.
    pub cap: Option<f32>,
    /// Which of its sequence's keys a query sees.
    pub sees: Mask,
    /// What is added to the scores.
    pub bias: Bias,
}

impl Attention {
    /// Of each sequence to the whole of itself, without a bias.
    pub fn over(segments: &Segments, scale: f32) -> Attention {
        let (queries, keys) = (segments.clone(), segments.clone().into());
        Attention { queries, keys, scale, cap: None, sees: Mask::All, bias: Bias::None }
    }
}

/// Attention of q `[queries, heads, size]` over k and v `[keys, heads or a part of them, size]`; the result has q's shape.
pub fn attention(q: &Tensor, k: impl Into<KvTensor>, v: impl Into<KvTensor>, how: &Attention) -> Result<Tensor> {
    let (k, v) = (k.into(), v.into());
    let scope = op_scope();
    let fits = match (q.dims(), k.dims()) {
        ([queries, heads, size], [keys, shared, of]) => {
            *shared > 0
                && heads % shared == 0
                && size == of
                && v.dims() == k.dims()
                && v.format() == k.format()
                && (k.format() == KvCacheFormat::Float(q.dtype()) || matches!(how.keys, Keys::Paged(_)))
                && *queries == how.queries.tokens()
                && how.keys.within(scope, *keys)
                && how.queries.count() == how.keys.count()
                && (!matches!(how.bias, Bias::Disentangled(_)) || heads == shared)
        }
        _ => false,
    };
    if !fits {
        let what = format!(
            "q {:?} in {}, k {:?}, v {:?} in {} for {} queries in {} sequences over {} of keys",
            q.dims(),
            q.dtype(),
            k.dims(),
            v.dims(),
            k.format(),
            how.queries.tokens(),
            how.queries.count(),
            how.keys.count()
        );
        return Err(Error::call("attention", what));
    }
    // Only keys may be fewer than there are rows for.
    let queries = how.queries.lengths(scope);
    if how.queries.count() == 0 || queries.iter().map(|range| range.len()).sum::<usize>() != how.queries.tokens() {
        return Err(Error::call("attention", "queries that leave rows out, or none at all"));
    }
    if matches!((&how.bias, &how.keys), (Bias::Disentangled(_), Keys::Paged(_))) {
        return Err(Error::call("attention", "disentangled positions over the pages of a cache"));
    }
    if how.cap.is_some_and(|cap| !(cap > 0.0 && cap.is_finite())) {
        return Err(Error::call("attention", format!("scores capped at {:?}", how.cap)));
    }
    how.bias.check(q)?;
    ladder::run(AttentionOp { q: q.clone(), k, v, how: how.clone(), scope, tables: OnceLock::new() })
}

pub(crate) struct AttentionOp {
    q: Tensor,
    k: KvTensor,
    v: KvTensor,
    how: Attention,
    scope: OpScope,
    /// Worked out once, for its memory and for the launch.
    tables: OnceLock<Arc<Tables>>,
}

impl AttentionOp {
    /// What CUDA's kernels read of the sequences.
    fn tables(&self) -> &Arc<Tables> {
        let of = || Tables::of(&self.how, self.scope, Way::of(self), [self.q.dims()[1], self.k.dims()[1]]);
        self.tables.get_or_init(|| Arc::new(of()))
    }
}

/// What the kernels of both GPUs are told.
#[cfg(any(cuda, metal))]
impl AttentionOp {
    /// The size that heads are padded to.
    fn padded(&self) -> Result<usize> {
        let size = self.q.dims()[2];
        let padded = plan::SIZES.into_iter().find(|padded| size <= *padded);
        padded.ok_or_else(|| Error::call("attention", format!("heads of {size}")))
    }

    /// Rows of a page, 0 where there are none.
    fn page(&self) -> usize {
        match &self.how.keys {
            Keys::Packed(_) => 0,
            Keys::Paged(pages) => pages.size(),
        }
    }

    /// Tables of positions that queries meet, and that keys meet.
    fn positions(&self) -> [&Option<Tensor>; 2] {
        match &self.how.bias {
            Bias::Disentangled(d) => [&d.keys, &d.queries],
            _ => [&None, &None],
        }
    }

    /// How many keys before its place a query sees, and how many after.
    fn reach(&self) -> [i32; 2] {
        /// A distance that no query and key have.
        const FAR: usize = 1 << 30;
        let (back, ahead) = match self.how.sees {
            Mask::All => (FAR, FAR),
            Mask::Window(reach) => (reach, reach),
            Mask::Causal => (FAR, 0),
            Mask::Recent(most) => (most, 0),
        };
        // Of so many in all the query itself is one.
        let itself = i32::from(matches!(self.how.sees, Mask::Recent(_)));
        [back.min(FAR) as i32 - itself, ahead.min(FAR) as i32]
    }
}

/// As the kernels number them.
#[cfg(any(cuda, metal))]
fn format_number(format: KvCacheFormat) -> u16 {
    use crate::DType;
    match format {
        KvCacheFormat::Float(DType::F32) => 0,
        KvCacheFormat::Float(DType::F16) => 1,
        KvCacheFormat::Float(_) => 2,
        KvCacheFormat::Q8 => 3,
    }
}

impl Op for AttentionOp {
    const NAME: &'static str = "attention";

    fn x(&self) -> &Tensor {
        &self.q
    }

    fn detail(&self) -> String {
        let (heads, shared) = (self.q.dims()[1], self.k.dims()[1]);
        let over = if heads == shared { String::new() } else { format!(" over {shared}") };
        let keys = match self.how.keys {
            Keys::Paged(_) => format!("paged in {}", self.k.format()),
            Keys::Packed(_) => "packed".into(),
        };
        let cap = self.how.cap.map_or_else(String::new, |cap| format!(", capped at {cap}"));
        format!("{heads} heads{over} of {}, {keys}{}{cap}{}", self.q.dims()[2], self.how.sees, self.how.bias)
    }

    fn fused(&self, device: Device) -> Can {
        match (device, &self.how.keys) {
            (Device::Cuda(_) | Device::Metal(_), _) if self.q.dims()[2] > plan::LARGEST => {
                Can::no(format!("a head has at most {} elements in our kernel", plan::LARGEST))
            }
            (Device::Metal(_), Keys::Paged(pages)) if u16::try_from(pages.size()).is_err() => {
                Can::no("a page has at most 65535 rows in our kernel")
            }
            _ => Can::Yes,
        }
    }

    fn scratch(&self, rung: Rung) -> usize {
        let [queries, heads, size] = *self.q.dims() else { return 0 };
        let (tq, tk) = (self.how.queries.lengths(self.scope).longest(), self.how.keys.longest(self.scope));
        match rung {
            Rung::Fused if self.q.device() == Device::Cpu => cpu::scratch(&self.how, [tq, tk], heads, size),
            Rung::Fused if matches!(self.q.device(), Device::Cuda(_)) => self.tables().bytes(self.k.dims()[1], size),
            Rung::Fused => {
                let shared = self.k.dims()[1];
                plan::Plan::of(&self.how, self.scope, shared, heads / shared).bytes(&self.how.bias, heads, size)
            }
            // In f32: the outputs so far and their concatenation; of the longest sequence q, k twice, v and the product; of a
            // block of its queries four stages of the scores, eight where something is added to them, and the terms of
            // disentangled positions.
            _ => {
                let plain = matches!((&self.how.sees, &self.how.bias), (Mask::All, Bias::None));
                let stages = if plain { 4 } else { 8 } + 3 * usize::from(self.how.cap.is_some());
                // Rows of a cache are looked up first, and repeated for the heads that share them.
                // In blocks there are three stages of their codes besides.
                let looked_up = match (&self.how.keys, self.k.format()) {
                    (Keys::Packed(_), _) => 2,
                    (Keys::Paged(_), KvCacheFormat::Float(_)) => 6,
                    (Keys::Paged(_), KvCacheFormat::Q8) => 9,
                };
                let terms = match &self.how.bias {
                    Bias::Disentangled(d) => 2 * d.rows() * heads * (tq + tk + 2 * size),
                    _ => 0,
                };
                let block = tq.min(composed::QUERIES);
                let seen = match self.how.sees {
                    Mask::Window(reach) => tk.min(reach.saturating_mul(2).saturating_add(block)),
                    Mask::Recent(most) => tk.min(most.saturating_add(block)),
                    Mask::All | Mask::Causal => tk,
                };
                4 * (2 * queries * heads * size
                    + heads * size * (2 * tq + (3 + looked_up) * tk)
                    + stages * heads * block * seen
                    + terms)
            }
        }
    }

    own_kernels!(cpu, cuda, metal, composed);

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let how = Attention { bias: self.how.bias.map(to)?, ..self.how.clone() };
        let (q, k, v) = (to(&self.q)?, self.k.map(to)?, self.v.map(to)?);
        Ok(AttentionOp { q, k, v, how, scope: self.scope, tables: OnceLock::new() })
    }
}
