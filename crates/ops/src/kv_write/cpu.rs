//! Writes rows directly into the cache's memory.
#![allow(unsafe_code, reason = "SIMD lanes")]

use super::kv_tensor::BLOCK;
use super::{KvTensor, KvWriteOp, check_rows};
use crate::cpu::elem::{Elem, get, put, vectors, with_elem};
use crate::cpu::rows::Reading;
use crate::cpu::{Isa, Kernel, Lanes};
use crate::quant::q8_0_apart;
use crate::{Error, Result};
use candle_core::{CpuStorage, InplaceOp1, Layout};
use half::{bf16, f16};

pub(super) fn run(op: &KvWriteOp, isa: Isa) -> Result<candle_core::Tensor> {
    let rows = Reading::of(&op.rows)?;
    let rows = rows.slice::<u32>()?;
    op.pairs().try_for_each(|(x, cache)| kv_write(x, cache, rows, isa))?;
    op.written_keys()
}

fn kv_write(x: &crate::Tensor, cache: &KvTensor, rows: &[u32], isa: Isa) -> Result<()> {
    check_rows(rows, cache.elements())?;
    with_elem!("kv_write", x.dtype(), T => {
        let reading = Reading::of(x)?;
        let x = Heads::<T>::of(&reading, x.dims())?;
        match cache {
            KvTensor::Float(cache) => {
                with_elem!("kv_write", cache.dtype(), C => write(cache, rows, &|i, out: &mut [C]| {
                    out.chunks_exact_mut(x.size).enumerate().for_each(|(h, out)| isa.run(Row { x: x.head_of_token(i, h), out }));
                }))
            }
            KvTensor::Q8 { codes, scales } => {
                let mut d = vec![f16::ZERO; rows.len() * x.heads * x.size / BLOCK];
                let mut all_codes = vec![0; rows.len() * x.heads * x.size];
                let out = all_codes.chunks_exact_mut(x.size).zip(d.chunks_exact_mut(x.size / BLOCK));
                for (i, (codes, scales)) in out.enumerate() {
                    isa.run(Quantize { x: x.head_of_token(i / x.heads, i % x.heads), codes, scales });
                }
                write(scales, rows, &|i, out: &mut [f16]| out.copy_from_slice(&d[i * out.len()..][..out.len()]))?;
                write(codes, rows, &|i, out: &mut [u8]| out.copy_from_slice(&all_codes[i * out.len()..][..out.len()]))
            }
        }
    })
}

/// `[tokens, heads, size]` with the elements of a head contiguous.
struct Heads<'a, T> {
    data: &'a [T],
    token: usize,
    head: usize,
    heads: usize,
    size: usize,
}

impl<'a, T: Elem> Heads<'a, T> {
    fn of(reading: &'a Reading<'_>, dims: &[usize]) -> Result<Self> {
        match (dims, reading.strides()) {
            // An axis of length one may carry any stride.
            ([_, heads, size], [token, head, last]) if *last == 1 || *size == 1 => {
                Ok(Heads { data: reading.onwards()?, token: *token, head: *head, heads: *heads, size: *size })
            }
            (_, other) => Err(Error::call(
                "kv_write",
                format!("the elements of a head must be contiguous, not in strides {other:?}"),
            )),
        }
    }

    fn head_of_token(&self, token: usize, head: usize) -> &'a [T] {
        &self.data[token * self.token + head * self.head..][..self.size]
    }
}

/// Fills the given rows of `cache`; `fill` gets the index into `rows` and the row.
fn write<C: CacheElem>(cache: &crate::Tensor, rows: &[u32], fill: &dyn Fn(usize, &mut [C])) -> Result<()> {
    let width = cache.dims()[1..].iter().product();
    Ok(cache.candle()?.inplace_op1(&Write { rows, width, fill })?)
}

/// Element type of a KV cache on the CPU.
trait CacheElem: Sized {
    /// The storage as a slice of this type.
    fn of(storage: &mut CpuStorage) -> Option<&mut [Self]>;
}

macro_rules! cache_elem {
    ($($type:ty, $variant:ident);*) => {
        $(impl CacheElem for $type {
            fn of(storage: &mut CpuStorage) -> Option<&mut [Self]> {
                if let CpuStorage::$variant(data) = storage { Some(data) } else { None }
            }
        })*
    };
}
cache_elem!(f32, F32; bf16, BF16; f16, F16; u8, U8);

struct Write<'a, C> {
    rows: &'a [u32],
    /// Elements of a row.
    width: usize,
    fill: &'a dyn Fn(usize, &mut [C]),
}

impl<C: CacheElem> InplaceOp1 for Write<'_, C> {
    fn name(&self) -> &'static str {
        "kv_write"
    }

    fn cpu_fwd(&self, cache: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let Some((start, _)) = layout.contiguous_offsets() else {
            candle_core::bail!("kv_write: the KV cache has strides {:?}, it must be contiguous", layout.stride());
        };
        let Some(cache) = C::of(cache) else { candle_core::bail!("kv_write: the KV cache has another element type") };
        for (i, row) in self.rows.iter().enumerate() {
            (self.fill)(i, &mut cache[start + *row as usize * self.width..][..self.width]);
        }
        Ok(())
    }
}

struct Row<'a, T, C> {
    x: &'a [T],
    out: &'a mut [C],
}

impl<T: Elem, C: Elem> Kernel for Row<'_, T, C> {
    type Output = ();
    const BF16: bool = C::IS_BF16;

    #[inline(always)]
    fn run<S: Lanes>(self) {
        vectors!(S, self.x.len(), |i, lanes| {
            put::<S, C>(self.out, i, lanes, get::<S, T>(self.x, i, lanes, 0.0));
        });
    }
}

/// Quantizes a head of a token to Q8.
struct Quantize<'a, T> {
    x: &'a [T],
    codes: &'a mut [u8],
    scales: &'a mut [f16],
}

impl<T: Elem> Kernel for Quantize<'_, T> {
    type Output = ();
    const BF16: bool = false;

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let blocks = self.x.as_chunks::<BLOCK>().0.iter().zip(self.codes.chunks_exact_mut(BLOCK));
        for ((x, codes), scale) in blocks.zip(self.scales) {
            let mut wide = [0f32; BLOCK];
            let mut finite = true;
            for (wide, x) in wide.iter_mut().zip(x) {
                *wide = x.wide();
                finite &= wide.is_finite();
            }
            *scale = q8_0_apart(&wide, codes);
            // A value that is not finite has no code: the scale becomes NaN, so that the error
            // shows.
            if !finite {
                *scale = f16::NAN;
            }
        }
    }
}
