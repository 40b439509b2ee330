//! cache[rowᵢ] = xᵢ        rounded to the cache's dtype
//!
//! The keys and values of tokens that were seen, kept in rows of tensors that are made once. Which row belongs to whom is decided
//! elsewhere; here they are written, copied and lent out.

mod cases;
mod composed;
mod cpu;

pub(crate) use cases::cases;

use crate::cpu::Isa;
use crate::ladder::{self, Can, Op, Rung};
use crate::{DType, Error, Place, Result, Tensor};
use std::sync::Arc;

/// Keys and values of every layer, `[rows, heads, size]` each.
#[derive(Clone, Debug)]
pub struct Cache {
    layers: Arc<[[Tensor; 2]]>,
    rows: usize,
}

/// What a model keeps of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Layers that keep something.
    pub layers: usize,
    /// Heads of keys and values.
    pub heads: usize,
    /// Of a head.
    pub size: usize,
}

impl CacheShape {
    /// Bytes a token in `dtype`, of all layers.
    pub fn bytes(&self, dtype: DType) -> usize {
        [2, self.layers, self.heads, self.size].into_iter().fold(dtype.size(), usize::saturating_mul)
    }
}

impl Cache {
    /// Room for `rows` tokens, all zeros.
    pub fn new(shape: CacheShape, rows: usize, dtype: DType, place: &Place) -> Result<Cache> {
        let dims = [rows, shape.heads, shape.size];
        let zeros = || {
            Tensor::upload(&dims, dtype, place, || {
                Ok(candle_core::Tensor::zeros(&dims, dtype.candle(), &candle_core::Device::Cpu)?)
            })
        };
        let layers = (0..shape.layers).map(|_| Ok([zeros()?, zeros()?])).collect::<Result<Vec<_>>>()?;
        Ok(Cache { layers: layers.into(), rows })
    }

    /// Rows for tokens.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Writes `k` and `v` `[tokens, heads, size]` of `layer` to `rows`, and lends all of the layer's.
    pub fn write(&self, layer: usize, k: &Tensor, v: &Tensor, rows: &Tensor) -> Result<(Tensor, Tensor)> {
        let [keys, values] = self.layer(layer)?;
        for (cache, x) in [(keys, k), (values, v)] {
            store(cache, x, rows)?;
        }
        Ok((keys.clone(), values.clone()))
    }

    /// A layer's keys and values as they are.
    pub fn layer(&self, layer: usize) -> Result<&[Tensor; 2]> {
        let kept = self.layers.len();
        self.layers.get(layer).ok_or_else(|| Error::call("store", format!("layer {layer} of a cache of {kept}")))
    }

    /// Copies rows `from` to rows `to`, of every layer: a page that two sequences share and one goes on to write.
    pub fn copy(&self, from: &Tensor, to: &Tensor) -> Result<()> {
        for cache in self.layers.iter().flatten() {
            let rows = crate::embed(&[(&flat(cache)?, from)])?;
            store(cache, &rows.reshape(&[&from.dims()[..1], &cache.dims()[1..]].concat())?, to)?;
        }
        Ok(())
    }
}

/// `[rows, heads · size]`.
fn flat(cache: &Tensor) -> Result<Tensor> {
    let [rows, heads, size] = *cache.dims() else { return Err(Error::call("store", "a cache has three axes")) };
    cache.reshape(&[rows, heads * size])
}

/// Writes row i of `x` to row `rows[i]` of `cache`. A row beyond the cache is an error on the CPU and must not be sent to a GPU.
fn store(cache: &Tensor, x: &Tensor, rows: &Tensor) -> Result<()> {
    let fits = cache.dims().len() == 3 && x.dims().len() == 3 && cache.dims()[1..] == x.dims()[1..];
    if !fits || rows.dims() != [x.dims()[0]] || rows.dtype() != DType::U32 {
        let what = format!("{:?} to rows {:?} of a cache {:?}", x.dims(), rows.dims(), cache.dims());
        return Err(Error::call("store", what));
    }
    ladder::run_in_place(StoreOp { x: x.clone(), cache: cache.clone(), rows: rows.clone() })
}

pub(crate) struct StoreOp {
    x: Tensor,
    cache: Tensor,
    rows: Tensor,
}

impl Op for StoreOp {
    const NAME: &'static str = "store";

    fn x(&self) -> &Tensor {
        &self.x
    }

    fn out(&self) -> (Vec<usize>, DType) {
        (self.cache.dims().to_vec(), self.cache.dtype())
    }

    fn detail(&self) -> String {
        format!("{} heads of {}, in {}", self.x.dims()[1], self.x.dims()[2], self.cache.dtype())
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Composed: the rows in the cache's dtype, and a row number an element.
        let n = self.x.dims().iter().product::<usize>();
        if rung == Rung::Composed { n * (2 * self.cache.dtype().size() + 4) } else { 0 }
    }

    fn cpu(&self, isa: Isa) -> Result<candle_core::Tensor> {
        cpu::run(self, isa)
    }

    fn composed(&self) -> Result<candle_core::Tensor> {
        composed::run(self)
    }

    fn movable(&self) -> Can {
        Can::no("a copy of the cache would be written, and the cache not")
    }

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(StoreOp { x: to(&self.x)?, cache: to(&self.cache)?, rows: to(&self.rows)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_copied_in_every_layer_and_rows_beyond_the_cache_refused() {
        let place = Place::cpu();
        let cache = Cache::new(CacheShape { layers: 2, heads: 1, size: 2 }, 4, DType::F16, &place).unwrap();
        let x = |v: f32| Tensor::from_f32(&[v, v + 1.0], &[1, 1, 2], DType::F32, &place).unwrap();
        let rows = |rows: &[u32]| Tensor::from_u32(rows, &place).unwrap();
        for layer in 0..2 {
            cache.write(layer, &x(layer as f32), &x(10.0), &rows(&[3])).unwrap();
        }
        cache.copy(&rows(&[3]), &rows(&[1])).unwrap();
        assert_eq!(cache.layer(1).unwrap()[0].to_f32().unwrap(), [0., 0., 1., 2., 0., 0., 1., 2.]);
        assert_eq!(cache.layer(0).unwrap()[1].to_f32().unwrap(), [0., 0., 10., 11., 0., 0., 10., 11.]);
        assert!(cache.write(0, &x(1.0), &x(1.0), &rows(&[4])).is_err() && cache.layer(2).is_err());
    }
}
