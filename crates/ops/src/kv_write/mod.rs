//! Writes the KV cache: `keys[rowᵢ] = kᵢ`, `values[rowᵢ] = vᵢ`, rounded to the cache's format.
//!
//! The cache is allocated once, as tensors of rows. The engine decides which row belongs to which
//! sequence (paged KV cache); this module writes and copies rows, and gives access to them.

mod bytes;
mod cases;
mod composed;
mod copy;
mod cpu;
#[cfg(cuda)]
pub(crate) mod cuda;
mod kv_tensor;
#[cfg(metal)]
pub(crate) mod metal;

pub(crate) use cases::cases;
pub(crate) use kv_tensor::BLOCK;
pub use kv_tensor::{KvCacheFormat, KvTensor};

use crate::ladder::{self, Can, Op, Rung, own_kernels};
use crate::{DType, Device, Error, Place, Result, Tensor};
use std::sync::Arc;

/// KV cache: keys and values of every layer, `[rows, heads, size]` each.
#[derive(Clone, Debug)]
pub struct KvCache {
    layers: Arc<[[KvTensor; 2]]>,
    rows: usize,
}

/// What a model caches per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCacheShape {
    /// Layers with cached keys and values.
    pub layers: usize,
    /// KV heads.
    pub heads: usize,
    /// Head size.
    pub size: usize,
}

impl KvCacheShape {
    /// Bytes per token in `format`, of all layers.
    pub fn bytes(&self, format: KvCacheFormat) -> usize {
        [2, self.layers, self.heads].into_iter().fold(format.bytes(self.size), usize::saturating_mul)
    }
}

impl KvCache {
    /// A cache of `rows` tokens, all zeros.
    pub fn new(shape: KvCacheShape, rows: usize, format: KvCacheFormat, place: &Place) -> Result<KvCache> {
        let zeros = || KvTensor::zeros([rows, shape.heads, shape.size], format, place);
        let layers = (0..shape.layers).map(|_| Ok([zeros()?, zeros()?])).collect::<Result<Vec<_>>>()?;
        Ok(KvCache { layers: layers.into(), rows })
    }

    /// Rows, one per token.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Writes `k` and `v` `[tokens, heads, size]` of `layer` to `rows`.
    pub fn write(&self, layer: usize, k: &Tensor, v: &Tensor, rows: &Tensor) -> Result<()> {
        ladder::run_in_place(KvWriteOp::checked(self.layer(layer)?, [k, v], rows)?)
    }

    /// The keys and values of a layer.
    pub fn layer(&self, layer: usize) -> Result<&[KvTensor; 2]> {
        let layers = self.layers.len();
        self.layers
            .get(layer)
            .ok_or_else(|| Error::call("kv_write", format!("layer {layer} is beyond the KV cache of {layers} layers")))
    }

    /// Copies rows `from` to rows `to` in every layer: copy-on-write of a page that two sequences
    /// share.
    pub fn copy(&self, from: &Tensor, to: &Tensor) -> Result<()> {
        for cache in self.layers.iter().flatten() {
            copy::ops(cache, from, to)?.try_for_each(ladder::run_in_place)?;
        }
        Ok(())
    }
}

/// Writes keys and values of one layer.
pub(crate) struct KvWriteOp {
    x: [Tensor; 2],
    cache: [KvTensor; 2],
    rows: Tensor,
}

impl KvWriteOp {
    /// Writes row i of each of `x` to row `rows[i]` of the cache. A row beyond the cache is an
    /// error on the CPU and must not be sent to a GPU.
    pub(crate) fn checked(cache: &[KvTensor; 2], x: [&Tensor; 2], rows: &Tensor) -> Result<KvWriteOp> {
        for (x, cache) in x.into_iter().zip(cache) {
            let fits = cache.dims().len() == 3 && x.dims().len() == 3 && cache.dims()[1..] == x.dims()[1..];
            if !fits || rows.dims() != [x.dims()[0]] || rows.dtype() != DType::U32 {
                let what = format!(
                    "shapes do not match: x {:?} to u32 rows {:?} of a KV cache {:?}",
                    x.dims(),
                    rows.dims(),
                    cache.dims()
                );
                return Err(Error::call("kv_write", what));
            }
        }
        if x[0].dtype() != x[1].dtype() || cache[0].format() != cache[1].format() {
            return Err(Error::call(
                "kv_write",
                "k and v must have one dtype, and both halves of the KV cache one format",
            ));
        }
        Ok(KvWriteOp { x: x.map(Tensor::clone), cache: cache.clone(), rows: rows.clone() })
    }

    /// Keys and values, each with its half of the cache.
    fn pairs(&self) -> impl Iterator<Item = (&Tensor, &KvTensor)> {
        self.x.iter().zip(&self.cache)
    }

    /// The cached keys, which stand for the op's result.
    fn keys(&self) -> &Tensor {
        self.cache[0].elements()
    }

    /// The cached keys after the write.
    fn written_keys(&self) -> Result<candle_core::Tensor> {
        Ok(self.keys().candle()?.clone())
    }
}

#[cfg(any(cuda, metal))]
impl KvWriteOp {
    /// The tensors of keys and of values as a device's views: elements, and scales for Q8.
    fn cache_views<V>(&self, view: impl Fn(&Tensor) -> Result<V>) -> Result<[Vec<V>; 2]> {
        let [keys, values] = self.cache.each_ref().map(|cache| cache.tensors().map(&view).collect::<Result<_>>());
        Ok([keys?, values?])
    }
}

/// Queries that the same launch rotates, as it does the keys.
#[cfg(any(cuda, metal))]
pub(crate) struct RotaryQueries<'a> {
    pub(crate) q: &'a Tensor,
    pub(crate) positions: &'a Tensor,
    /// f32 `[positions, pairs]`, and the same of sines.
    pub(crate) cosines: &'a Tensor,
    pub(crate) sines: &'a Tensor,
}

impl Op for KvWriteOp {
    const NAME: &'static str = "kv_write";

    fn x(&self) -> &Tensor {
        &self.x[0]
    }

    fn out(&self) -> (Vec<usize>, DType) {
        (self.keys().dims().to_vec(), self.keys().dtype())
    }

    fn detail(&self) -> String {
        let dims = self.x().dims();
        format!("{} heads of {} of keys and of values, in {}", dims[1], dims[2], self.cache[0].format())
    }

    fn composable(&self, device: Device) -> Can {
        composed::can_scatter(self.keys().dtype(), device)
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Keys and values run one after the other.
        let n = self.x().dims().iter().product::<usize>();
        match (rung, self.cache[0].format()) {
            // The rows in the cache's dtype, and a row index per element.
            (Rung::Composed, KvCacheFormat::Float(dtype)) => n * (2 * dtype.size() + 4),
            // Four stages in f32, codes, and a row index per element.
            (Rung::Composed, KvCacheFormat::Q8) => n * (4 * 4 + 2 + 4),
            // Only the CPU quantizes all rows before it writes them.
            (_, KvCacheFormat::Q8) if self.x().device() == Device::Cpu => n + n / BLOCK * DType::F16.size(),
            _ => 0,
        }
    }

    own_kernels!(cpu, cuda, metal, composed);

    fn movable(&self) -> Can {
        unmovable()
    }

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let ([k, v], [keys, values]) = (&self.x, &self.cache);
        Ok(KvWriteOp { x: [to(k)?, to(v)?], cache: [keys.map(to)?, values.map(to)?], rows: to(&self.rows)? })
    }
}

fn unmovable() -> Can {
    Can::no("the host would write to a copy of the KV cache, not to the cache")
}

/// Checks that all `rows` lie within the cache.
fn check_rows(rows: &[u32], cache: &Tensor) -> Result<()> {
    let count = cache.dims()[0];
    match rows.iter().find(|row| **row as usize >= count) {
        Some(row) => Err(Error::call("kv_write", format!("row {row} is beyond the KV cache of {count} rows"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[u32]) -> Tensor {
        Tensor::from_u32(rows, &Place::cpu()).unwrap()
    }

    #[test]
    fn rows_copy_in_every_layer_and_out_of_range_rows_are_refused() {
        let place = Place::cpu();
        for (format, rung) in KvCacheFormat::ALL.into_iter().flat_map(|f| [(f, Rung::Fused), (f, Rung::Composed)]) {
            let _here = ladder::Ladder::new(ladder::Policy { force: Some(rung), ..Default::default() }).enter();
            let cache = KvCache::new(KvCacheShape { layers: 2, heads: 1, size: 32 }, 4, format, &place).unwrap();
            // Integers whose largest is 127 are exact in every format.
            let x = |v: f32| {
                let values: Vec<f32> = (0..32).map(|i| if i == 0 { 127.0 } else { v - i as f32 }).collect();
                (Tensor::from_f32(&values, &[1, 1, 32], DType::F32, &place).unwrap(), values)
            };
            for layer in 0..2 {
                cache.write(layer, &x(layer as f32).0, &x(10.0).0, &rows(&[3])).unwrap();
            }
            cache.copy(&rows(&[3]), &rows(&[1])).unwrap();
            for (layer, side, v) in [(1, 0, 1.0), (0, 1, 10.0)] {
                let cached = cache.layer(layer).unwrap()[side].to_f32().unwrap();
                let empty = vec![0.0; 32];
                assert_eq!(cached, [empty.clone(), x(v).1, empty, x(v).1].concat(), "{format}, {rung}");
            }
            assert!(cache.layer(2).is_err());
            if rung == Rung::Fused {
                assert!(cache.write(0, &x(1.0).0, &x(1.0).0, &rows(&[4])).is_err());
                assert!(cache.copy(&rows(&[4]), &rows(&[1])).is_err() && cache.copy(&rows(&[1]), &rows(&[4])).is_err());
            }
            assert!(cache.copy(&rows(&[1, 2]), &rows(&[1])).is_err());
        }
    }

    /// NaN must survive the cache, so that a broken model is noticed.
    #[test]
    fn nan_and_infinity_in_q8_blocks_read_back_as_nan() {
        let place = Place::cpu();
        for (rung, broken) in [Rung::Fused, Rung::Composed].into_iter().zip([f32::NAN, f32::INFINITY]) {
            let _here = ladder::Ladder::new(ladder::Policy { force: Some(rung), ..Default::default() }).enter();
            let cache =
                KvCache::new(KvCacheShape { layers: 1, heads: 1, size: 64 }, 1, KvCacheFormat::Q8, &place).unwrap();
            let mut values = vec![1.0; 64];
            values[40] = broken;
            let x = Tensor::from_f32(&values, &[1, 1, 64], DType::F32, &place).unwrap();
            cache.write(0, &x, &x, &rows(&[0])).unwrap();
            let cached = cache.layer(0).unwrap()[0].to_f32().unwrap();
            assert!(cached[..32].iter().all(|v| (v - 1.0).abs() < 1e-3), "{rung}: {cached:?}");
            assert!(cached[32..].iter().all(|v| v.is_nan()), "{rung}: {cached:?}");
        }
    }

    #[test]
    fn kv_cache_allocates_its_counted_bytes() {
        for format in KvCacheFormat::ALL {
            let ladder = ladder::Ladder::new(ladder::Policy::default());
            let _here = ladder.clone().enter();
            let shape = KvCacheShape { layers: 3, heads: 2, size: 96 };
            let _cache = KvCache::new(shape, 5, format, &Place::cpu()).unwrap();
            assert_eq!(ladder.ledger.live(), (5 * shape.bytes(format)) as u64, "{format}");
        }
        assert_eq!(KvCacheShape { layers: 3, heads: 2, size: 96 }.bytes(KvCacheFormat::Q8), 2 * 3 * 2 * 3 * 34);
    }
}
