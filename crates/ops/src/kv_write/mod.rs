//! keys[rowᵢ] = kᵢ, values[rowᵢ] = vᵢ        rounded to the cache's format
//!
//! The keys and values of tokens that were seen, kept in rows of tensors that are made once. Which row belongs to whom is decided
//! elsewhere; here they are written, copied and lent out.

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

/// Keys and values of every layer, `[rows, heads, size]` each.
#[derive(Clone, Debug)]
pub struct KvCache {
    layers: Arc<[[KvTensor; 2]]>,
    rows: usize,
}

/// What a model keeps of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCacheShape {
    /// Layers that keep something.
    pub layers: usize,
    /// Heads of keys and values.
    pub heads: usize,
    /// Of a head.
    pub size: usize,
}

impl KvCacheShape {
    /// Bytes a token in `format`, of all layers.
    pub fn bytes(&self, format: KvCacheFormat) -> usize {
        [2, self.layers, self.heads].into_iter().fold(format.bytes(self.size), usize::saturating_mul)
    }
}

impl KvCache {
    /// Room for `rows` tokens, all zeros.
    pub fn new(shape: KvCacheShape, rows: usize, format: KvCacheFormat, place: &Place) -> Result<KvCache> {
        let zeros = || KvTensor::zeros([rows, shape.heads, shape.size], format, place);
        let layers = (0..shape.layers).map(|_| Ok([zeros()?, zeros()?])).collect::<Result<Vec<_>>>()?;
        Ok(KvCache { layers: layers.into(), rows })
    }

    /// Rows for tokens.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Writes `k` and `v` `[tokens, heads, size]` of `layer` to `rows`.
    pub fn write(&self, layer: usize, k: &Tensor, v: &Tensor, rows: &Tensor) -> Result<()> {
        ladder::run_in_place(KvWriteOp::checked(self.layer(layer)?, [k, v], rows)?)
    }

    /// A layer's keys and values as they are.
    pub fn layer(&self, layer: usize) -> Result<&[KvTensor; 2]> {
        let kept = self.layers.len();
        self.layers.get(layer).ok_or_else(|| Error::call("kv_write", format!("layer {layer} of a cache of {kept}")))
    }

    /// Copies rows `from` to rows `to`, of every layer: a page that two sequences share and one goes on to write.
    pub fn copy(&self, from: &Tensor, to: &Tensor) -> Result<()> {
        for cache in self.layers.iter().flatten() {
            copy::ops(cache, from, to)?.try_for_each(ladder::run_in_place)?;
        }
        Ok(())
    }
}

/// Keys and values of one layer.
pub(crate) struct KvWriteOp {
    x: [Tensor; 2],
    cache: [KvTensor; 2],
    rows: Tensor,
}

impl KvWriteOp {
    /// Writes row i of each of `x` to row `rows[i]` of its part of `cache`. A row beyond the cache is an error on the CPU and must not
    /// be sent to a GPU.
    pub(crate) fn checked(cache: &[KvTensor; 2], x: [&Tensor; 2], rows: &Tensor) -> Result<KvWriteOp> {
        for (x, cache) in x.into_iter().zip(cache) {
            let fits = cache.dims().len() == 3 && x.dims().len() == 3 && cache.dims()[1..] == x.dims()[1..];
            if !fits || rows.dims() != [x.dims()[0]] || rows.dtype() != DType::U32 {
                let what = format!("{:?} to rows {:?} of a cache {:?}", x.dims(), rows.dims(), cache.dims());
                return Err(Error::call("kv_write", what));
            }
        }
        if x[0].dtype() != x[1].dtype() || cache[0].format() != cache[1].format() {
            return Err(Error::call("kv_write", "keys and values are of one format, and so is what keeps them"));
        }
        Ok(KvWriteOp { x: x.map(Tensor::clone), cache: cache.clone(), rows: rows.clone() })
    }

    /// Keys and values, each with its part of the cache.
    fn both(&self) -> impl Iterator<Item = (&Tensor, &KvTensor)> {
        self.x.iter().zip(&self.cache)
    }

    /// All of the keys that are kept: what the call is said to give.
    fn keys(&self) -> &Tensor {
        self.cache[0].elements()
    }

    /// The same when they are written.
    fn kept(&self) -> Result<candle_core::Tensor> {
        Ok(self.keys().candle()?.clone())
    }
}

#[cfg(any(cuda, metal))]
impl KvWriteOp {
    /// The tensors of keys and of values, their elements and perhaps their scales, as a device sees them.
    fn written<V>(&self, view: impl Fn(&Tensor) -> Result<V>) -> Result<[Vec<V>; 2]> {
        let [keys, values] = self.cache.each_ref().map(|cache| cache.tensors().map(&view).collect::<Result<_>>());
        Ok([keys?, values?])
    }
}

/// Queries that are turned in the same launch, as keys are.
#[cfg(any(cuda, metal))]
pub(crate) struct Turn<'a> {
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
        composed::scatters(self.keys().dtype(), device)
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Values after keys.
        let n = self.x().dims().iter().product::<usize>();
        match (rung, self.cache[0].format()) {
            // The rows in the cache's dtype, and a row number an element.
            (Rung::Composed, KvCacheFormat::Float(dtype)) => n * (2 * dtype.size() + 4),
            // Four stages in f32, and the same.
            (Rung::Composed, KvCacheFormat::Q8) => n * (4 * 4 + 2 + 4),
            // Only the CPU rounds all of them first and writes them then.
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
    Can::no("a copy of the cache would be written, and the cache not")
}

/// Sees that every one of `rows` is one of the cache's.
fn within(rows: &[u32], cache: &Tensor) -> Result<()> {
    let held = cache.dims()[0];
    match rows.iter().find(|row| **row as usize >= held) {
        Some(row) => Err(Error::call("kv_write", format!("row {row} of a cache of {held}"))),
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
    fn pages_are_copied_in_every_layer_and_rows_beyond_the_cache_refused() {
        let place = Place::cpu();
        for (format, rung) in KvCacheFormat::ALL.into_iter().flat_map(|f| [(f, Rung::Fused), (f, Rung::Composed)]) {
            let _here = ladder::Ladder::new(ladder::Policy { force: Some(rung), ..Default::default() }).enter();
            let cache = KvCache::new(KvCacheShape { layers: 2, heads: 1, size: 32 }, 4, format, &place).unwrap();
            // Whole numbers of which the largest is 127 are kept as they are in every format.
            let x = |v: f32| {
                let values: Vec<f32> = (0..32).map(|i| if i == 0 { 127.0 } else { v - i as f32 }).collect();
                (Tensor::from_f32(&values, &[1, 1, 32], DType::F32, &place).unwrap(), values)
            };
            for layer in 0..2 {
                cache.write(layer, &x(layer as f32).0, &x(10.0).0, &rows(&[3])).unwrap();
            }
            cache.copy(&rows(&[3]), &rows(&[1])).unwrap();
            for (layer, side, v) in [(1, 0, 1.0), (0, 1, 10.0)] {
                let held = cache.layer(layer).unwrap()[side].to_f32().unwrap();
                let empty = vec![0.0; 32];
                assert_eq!(held, [empty.clone(), x(v).1, empty, x(v).1].concat(), "{format}, {rung}");
            }
            assert!(cache.layer(2).is_err());
            if rung == Rung::Fused {
                assert!(cache.write(0, &x(1.0).0, &x(1.0).0, &rows(&[4])).is_err());
                assert!(cache.copy(&rows(&[4]), &rows(&[1])).is_err() && cache.copy(&rows(&[1]), &rows(&[4])).is_err());
            }
            assert!(cache.copy(&rows(&[1, 2]), &rows(&[1])).is_err());
        }
    }

    /// A model that is broken must not be taken for a sound one because its cache has no way to say so.
    #[test]
    fn what_is_no_number_stays_none_in_blocks() {
        let place = Place::cpu();
        for (rung, broken) in [Rung::Fused, Rung::Composed].into_iter().zip([f32::NAN, f32::INFINITY]) {
            let _here = ladder::Ladder::new(ladder::Policy { force: Some(rung), ..Default::default() }).enter();
            let cache =
                KvCache::new(KvCacheShape { layers: 1, heads: 1, size: 64 }, 1, KvCacheFormat::Q8, &place).unwrap();
            let mut values = vec![1.0; 64];
            values[40] = broken;
            let x = Tensor::from_f32(&values, &[1, 1, 64], DType::F32, &place).unwrap();
            cache.write(0, &x, &x, &rows(&[0])).unwrap();
            let held = cache.layer(0).unwrap()[0].to_f32().unwrap();
            assert!(held[..32].iter().all(|v| (v - 1.0).abs() < 1e-3), "{rung}: {held:?}");
            assert!(held[32..].iter().all(|v| v.is_nan()), "{rung}: {held:?}");
        }
    }

    #[test]
    fn a_cache_takes_the_bytes_that_were_counted() {
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
