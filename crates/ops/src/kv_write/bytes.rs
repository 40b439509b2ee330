//! Rows of a KV cache as bytes, exactly as they are stored, for prefixes that are kept on disk. On
//! the CPU only: on a GPU a row would have to cross the bus.

use super::{KvCache, check_rows};
use crate::cpu::rows::Reading;
use crate::{DType, Device, Error, Result, Tensor};
use candle_core::{CpuStorage, InplaceOp1, Layout, WithDType};
use half::{bf16, f16};

impl KvCache {
    /// Bytes per row, of keys and values in all layers.
    pub fn row_bytes(&self) -> usize {
        self.tensors().map(row_bytes).sum()
    }

    /// The bytes of `rows`, tensor by tensor.
    pub fn read_rows(&self, rows: &[u32]) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(rows.len().saturating_mul(self.row_bytes()));
        for tensor in self.tensors() {
            check(tensor, rows)?;
            match tensor.dtype() {
                DType::F32 => read(tensor, rows, f32::to_le_bytes, &mut bytes)?,
                DType::BF16 => read(tensor, rows, bf16::to_le_bytes, &mut bytes)?,
                DType::F16 => read(tensor, rows, f16::to_le_bytes, &mut bytes)?,
                DType::U8 => read(tensor, rows, |byte: u8| [byte], &mut bytes)?,
                other => return Err(Error::call("kv_write", format!("a KV cache cannot hold {other}"))),
            }
        }
        Ok(bytes)
    }

    /// Writes to `rows` what [`KvCache::read_rows`] returned for as many rows of a cache of the same
    /// shape and format.
    pub fn write_rows(&self, rows: &[u32], bytes: &[u8]) -> Result<()> {
        let wanted = rows.len().saturating_mul(self.row_bytes());
        if bytes.len() != wanted {
            let what = format!("{} rows of the KV cache have {wanted} bytes, not {}", rows.len(), bytes.len());
            return Err(Error::call("kv_write", what));
        }
        let mut rest = bytes;
        for tensor in self.tensors() {
            check(tensor, rows)?;
            let (bytes, after) = rest.split_at(rows.len() * row_bytes(tensor));
            tensor.candle()?.inplace_op1(&Write { rows, width: width(tensor), bytes })?;
            rest = after;
        }
        Ok(())
    }

    /// All tensors, in one order.
    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.layers.iter().flatten().flat_map(|half| half.tensors())
    }
}

/// Elements of a row.
fn width(tensor: &Tensor) -> usize {
    tensor.dims()[1..].iter().product()
}

fn row_bytes(tensor: &Tensor) -> usize {
    width(tensor) * tensor.dtype().size()
}

fn check(tensor: &Tensor, rows: &[u32]) -> Result<()> {
    match tensor.device() {
        Device::Cpu => check_rows(rows, tensor),
        other => Err(Error::call("kv_write", format!("the bytes of a KV cache on {other} are not accessible"))),
    }
}

fn read<T: WithDType, const N: usize>(
    tensor: &Tensor,
    rows: &[u32],
    to_bytes: impl Fn(T) -> [u8; N],
    bytes: &mut Vec<u8>,
) -> Result<()> {
    let (width, reading) = (width(tensor), Reading::of(tensor)?);
    let all = reading.slice::<T>()?;
    for row in rows {
        let at = *row as usize * width;
        let begin = bytes.len();
        bytes.resize(begin + width * N, 0);
        let out = bytes[begin..].as_chunks_mut::<N>().0;
        all[at..at + width].iter().zip(out).for_each(|(value, out)| *out = to_bytes(*value));
    }
    Ok(())
}

struct Write<'a> {
    rows: &'a [u32],
    width: usize,
    bytes: &'a [u8],
}

impl Write<'_> {
    fn fill<T, const N: usize>(&self, cache: &mut [T], from_bytes: impl Fn([u8; N]) -> T) {
        let values = self.bytes.as_chunks::<N>().0;
        for (row, values) in self.rows.iter().zip(values.chunks_exact(self.width.max(1))) {
            let out = &mut cache[*row as usize * self.width..][..self.width];
            out.iter_mut().zip(values).for_each(|(out, value)| *out = from_bytes(*value));
        }
    }
}

impl InplaceOp1 for Write<'_> {
    fn name(&self) -> &'static str {
        "kv_write"
    }

    fn cpu_fwd(&self, cache: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        if !layout.is_contiguous() || layout.start_offset() != 0 {
            candle_core::bail!("kv_write: cannot write rows within a strided view");
        }
        match cache {
            CpuStorage::F32(cache) => self.fill(cache, f32::from_le_bytes),
            CpuStorage::BF16(cache) => self.fill(cache, bf16::from_le_bytes),
            CpuStorage::F16(cache) => self.fill(cache, f16::from_le_bytes),
            CpuStorage::U8(cache) => self.fill(cache, |[byte]: [u8; 1]| byte),
            _ => candle_core::bail!("kv_write: the KV cache must be floats or Q8 blocks"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_write::{KvCacheFormat, KvCacheShape};
    use crate::{Place, Tensor};

    #[test]
    fn rows_come_back_to_the_bit_in_every_format() {
        let place = Place::cpu();
        for format in KvCacheFormat::ALL {
            let shape = KvCacheShape { layers: 2, heads: 3, size: 32 };
            let new = || KvCache::new(shape, 6, format, &place).unwrap();
            let (from, to) = (new(), new());
            let rows = Tensor::from_u32(&[0, 1, 2, 3, 4, 5], &place).unwrap();
            let x = |seed: f32| {
                let values: Vec<f32> = (0..6 * 3 * 32).map(|i| (i as f32 * seed).sin()).collect();
                Tensor::from_f32(&values, &[6, 3, 32], DType::F32, &place).unwrap()
            };
            for layer in 0..2 {
                from.write(layer, &x(0.3 + layer as f32), &x(0.7 + layer as f32), &rows).unwrap();
            }
            let bytes = from.read_rows(&[4, 1, 5]).unwrap();
            assert_eq!(bytes.len(), 3 * from.row_bytes(), "{format}");
            assert_eq!(from.row_bytes(), shape.bytes(format), "{format}");
            to.write_rows(&[2, 3, 0], &bytes).unwrap();
            assert_eq!(to.read_rows(&[2, 3, 0]).unwrap(), bytes, "{format}");
            let values = |cache: &KvCache, row: usize| {
                cache.layer(1).unwrap()[1].to_f32().unwrap()[row * 96..(row + 1) * 96].to_vec()
            };
            assert_eq!(values(&to, 2), values(&from, 4), "{format}");
            assert!(values(&to, 1).iter().all(|v| *v == 0.0), "{format}");
            assert!(to.write_rows(&[0], &bytes).is_err() && to.write_rows(&[0, 1, 6], &bytes).is_err(), "{format}");
            assert!(from.read_rows(&[6]).is_err(), "{format}");
        }
    }
}
