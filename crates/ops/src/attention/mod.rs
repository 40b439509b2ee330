//! y = softmax((q · kᵀ + positions) · scale + bias) · v, per head and per sequence
//! Scores, exp and sums are in f32, rounded once. The bf16 tile kernel (AMX), and on CUDA the
//! kernels for heads of 32 and 64 without mask, bias, soft cap or GQA, also round exp before the
//! product with v.
//!
//! Sequences are packed: a token attends to tokens of its own sequence only, all of them or those
//! that the attention mask ([`Mask`]) admits. q, k and v may be views into one fused projection;
//! nothing is padded or copied. Keys and values may also lie in the pages of a paged KV cache, in
//! the cache's own format, and several heads of q may share one KV head (grouped-query attention,
//! GQA).

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

use self::tables::{KernelKind, Tables};
use crate::keys::Keys;
use crate::kv_write::{KvCacheFormat, KvTensor};
use crate::ladder::{self, Can, Op, Rung, own_kernels};
use crate::replay::{OpScope, op_scope};
use crate::{Device, Error, Result, Segments, Tensor};
use std::sync::{Arc, OnceLock};

/// The arguments of attention besides q, k and v.
#[derive(Clone, Debug)]
pub struct Attention {
    /// The sequences that q's rows belong to.
    pub queries: Segments,
    /// The keys of each sequence; in self-attention, those of its own tokens.
    pub keys: Keys,
    /// Scores are multiplied by this before the softmax.
    pub scale: f32,
    /// Soft cap: replaces a score by cap · tanh(score / cap).
    pub cap: Option<f32>,
    /// The attention mask: which keys of its sequence a query attends to.
    pub mask: Mask,
    /// Added to the scores.
    pub bias: Bias,
}

impl Attention {
    /// Full self-attention of each sequence, without a bias.
    pub fn full(segments: &Segments, scale: f32) -> Attention {
        let (queries, keys) = (segments.clone(), segments.clone().into());
        Attention { queries, keys, scale, cap: None, mask: Mask::All, bias: Bias::None }
    }
}

/// Attention of q `[queries, heads, size]` over k and v `[keys, kv_heads, size]`, where `kv_heads`
/// divides `heads`. The result has q's shape.
pub fn attention(q: &Tensor, k: impl Into<KvTensor>, v: impl Into<KvTensor>, options: &Attention) -> Result<Tensor> {
    let (k, v) = (k.into(), v.into());
    let scope = op_scope();
    let fits = match (q.dims(), k.dims()) {
        ([queries, heads, size], [keys, kv_heads, of]) => {
            *kv_heads > 0
                && heads % kv_heads == 0
                && size == of
                && v.dims() == k.dims()
                && v.format() == k.format()
                && (k.format() == KvCacheFormat::Float(q.dtype()) || matches!(options.keys, Keys::Paged(_)))
                && *queries == options.queries.tokens()
                && options.keys.within(scope, *keys)
                && options.queries.count() == options.keys.count()
                && (!matches!(options.bias, Bias::Disentangled(_)) || heads == kv_heads)
        }
        _ => false,
    };
    if !fits {
        let what = format!(
            "shapes do not match: q {:?} in {}, k {:?}, v {:?} in {}; {} queries in {} sequences, keys in {}",
            q.dims(),
            q.dtype(),
            k.dims(),
            v.dims(),
            k.format(),
            options.queries.tokens(),
            options.queries.count(),
            options.keys.count()
        );
        return Err(Error::call("attention", what));
    }
    // Keys need not cover all rows of k and v; queries must cover all rows of q.
    let queries = options.queries.lengths(scope);
    if options.queries.count() == 0
        || queries.iter().map(|range| range.len()).sum::<usize>() != options.queries.tokens()
    {
        return Err(Error::call("attention", "query lengths must be non-empty and cover all rows of q"));
    }
    if matches!((&options.bias, &options.keys), (Bias::Disentangled(_), Keys::Paged(_))) {
        return Err(Error::call("attention", "disentangled positions cannot be combined with a paged KV cache"));
    }
    if options.cap.is_some_and(|cap| !(cap > 0.0 && cap.is_finite())) {
        return Err(Error::call(
            "attention",
            format!("the soft cap must be positive and finite, not {:?}", options.cap),
        ));
    }
    options.bias.check(q)?;
    ladder::run(AttentionOp { q: q.clone(), k, v, options: options.clone(), scope, tables: OnceLock::new() })
}

pub(crate) struct AttentionOp {
    q: Tensor,
    k: KvTensor,
    v: KvTensor,
    options: Attention,
    scope: OpScope,
    /// Computed once, for the memory estimate and for the launch.
    tables: OnceLock<Arc<Tables>>,
}

impl AttentionOp {
    /// The sequence tables that the CUDA kernels read.
    fn tables(&self) -> &Arc<Tables> {
        let of = || Tables::of(&self.options, self.scope, KernelKind::of(self), [self.q.dims()[1], self.k.dims()[1]]);
        self.tables.get_or_init(|| Arc::new(of()))
    }
}

/// Arguments of the kernels of both GPUs.
#[cfg(any(cuda, metal))]
impl AttentionOp {
    /// Head size after padding.
    fn padded(&self) -> Result<usize> {
        let size = self.q.dims()[2];
        let padded = plan::SIZES.into_iter().find(|padded| size <= *padded);
        padded.ok_or_else(|| {
            Error::call("attention", format!("heads of {size} elements are larger than our kernels take"))
        })
    }

    /// Rows of a KV cache page, or 0 for packed keys.
    fn page(&self) -> usize {
        match &self.options.keys {
            Keys::Packed(_) => 0,
            Keys::Paged(pages) => pages.size(),
        }
    }

    /// DeBERTa's position tables: content-to-position, position-to-content.
    fn positions(&self) -> [&Option<Tensor>; 2] {
        match &self.options.bias {
            Bias::Disentangled(d) => [&d.keys, &d.queries],
            _ => [&None, &None],
        }
    }

    /// How many keys before and after its own position a query attends to.
    fn reach(&self) -> [i32; 2] {
        /// Larger than any distance between a query and a key.
        const FAR: usize = 1 << 30;
        let (back, ahead) = match self.options.mask {
            Mask::All => (FAR, FAR),
            Mask::Window(reach) => (reach, reach),
            Mask::Causal => (FAR, 0),
            Mask::CausalWindow(most) => (most, 0),
        };
        // A causal window counts the query's own position.
        let itself = i32::from(matches!(self.options.mask, Mask::CausalWindow(_)));
        [back.min(FAR) as i32 - itself, ahead.min(FAR) as i32]
    }
}

/// The format's number in the kernels.
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
        let (heads, kv_heads) = (self.q.dims()[1], self.k.dims()[1]);
        let over = if heads == kv_heads { String::new() } else { format!(" over {kv_heads}") };
        let keys = match self.options.keys {
            Keys::Paged(_) => format!("paged in {}", self.k.format()),
            Keys::Packed(_) => "packed".into(),
        };
        let cap = self.options.cap.map_or_else(String::new, |cap| format!(", capped at {cap}"));
        format!("{heads} heads{over} of {}, {keys}{}{cap}{}", self.q.dims()[2], self.options.mask, self.options.bias)
    }

    fn fused(&self, device: Device) -> Can {
        match (device, &self.options.keys) {
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
        let (tq, tk) = (self.options.queries.lengths(self.scope).longest(), self.options.keys.longest(self.scope));
        match rung {
            Rung::Fused if self.q.device() == Device::Cpu => cpu::scratch(&self.options, [tq, tk], heads, size),
            Rung::Fused if matches!(self.q.device(), Device::Cuda(_)) => self.tables().bytes(self.k.dims()[1], size),
            Rung::Fused => {
                let kv_heads = self.k.dims()[1];
                plan::Plan::of(&self.options, self.scope, kv_heads, heads / kv_heads).bytes(
                    &self.options.bias,
                    heads,
                    size,
                )
            }
            // In f32: the outputs so far and their concatenation; for the longest sequence q, k
            // twice, v and the product; for a block of its queries four stages of the scores, eight
            // with a mask or bias, and the terms of disentangled positions.
            _ => {
                let plain = matches!((&self.options.mask, &self.options.bias), (Mask::All, Bias::None));
                let stages = if plain { 4 } else { 8 } + 3 * usize::from(self.options.cap.is_some());
                // Rows of a KV cache are gathered first, then repeated for the heads that share
                // them. Q8 adds three stages of the codes.
                let gathered = match (&self.options.keys, self.k.format()) {
                    (Keys::Packed(_), _) => 2,
                    (Keys::Paged(_), KvCacheFormat::Float(_)) => 6,
                    (Keys::Paged(_), KvCacheFormat::Q8) => 9,
                };
                let terms = match &self.options.bias {
                    Bias::Disentangled(d) => 2 * d.rows() * heads * (tq + tk + 2 * size),
                    _ => 0,
                };
                let block = tq.min(composed::QUERIES);
                let visible = match self.options.mask {
                    Mask::Window(reach) => tk.min(reach.saturating_mul(2).saturating_add(block)),
                    Mask::CausalWindow(most) => tk.min(most.saturating_add(block)),
                    Mask::All | Mask::Causal => tk,
                };
                4 * (2 * queries * heads * size
                    + heads * size * (2 * tq + (3 + gathered) * tk)
                    + stages * heads * block * visible
                    + terms)
            }
        }
    }

    own_kernels!(cpu, cuda, metal, composed);

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let options = Attention { bias: self.options.bias.map(to)?, ..self.options.clone() };
        let (q, k, v) = (to(&self.q)?, self.k.map(to)?, self.v.map(to)?);
        Ok(AttentionOp { q, k, v, options, scope: self.scope, tables: OnceLock::new() })
    }
}
