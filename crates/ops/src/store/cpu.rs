//! Row by row into the cache's own memory.
#![allow(unsafe_code, reason = "SIMD lanes")]

use super::StoreOp;
use crate::cpu::elem::{Elem, get, put, vectors};
use crate::cpu::rows::Reading;
use crate::cpu::{Isa, Kernel, Lanes};
use crate::{Error, Result};
use candle_core::{CpuStorage, InplaceOp2, Layout};

pub(super) fn run(op: &StoreOp, isa: Isa) -> Result<candle_core::Tensor> {
    let cache = op.cache.candle()?;
    let rows = Reading::of(&op.rows)?;
    let rows = rows.slice::<u32>()?;
    let (held, width) = (op.cache.dims()[0], op.cache.dims()[1] * op.cache.dims()[2]);
    if let Some(row) = rows.iter().find(|row| **row as usize >= held) {
        return Err(Error::call("store", format!("row {row} of a cache of {held}")));
    }
    cache.inplace_op2(op.x.candle()?, &Write { isa, rows, width, size: op.cache.dims()[2] })?;
    Ok(cache.clone())
}

struct Write<'a> {
    isa: Isa,
    rows: &'a [u32],
    /// Elements of a row, and of one of its heads.
    width: usize,
    size: usize,
}

impl InplaceOp2 for Write<'_> {
    fn name(&self) -> &'static str {
        "store"
    }

    fn cpu_fwd(&self, cache: &mut CpuStorage, to: &Layout, x: &CpuStorage, from: &Layout) -> candle_core::Result<()> {
        match x {
            CpuStorage::F32(x) => self.write_from(cache, to, x, from),
            CpuStorage::BF16(x) => self.write_from(cache, to, x, from),
            CpuStorage::F16(x) => self.write_from(cache, to, x, from),
            _ => candle_core::bail!("store: needs floats"),
        }
    }
}

impl Write<'_> {
    fn write_from<T: Elem>(
        &self,
        cache: &mut CpuStorage,
        to: &Layout,
        x: &[T],
        from: &Layout,
    ) -> candle_core::Result<()> {
        match cache {
            CpuStorage::F32(cache) => self.copy(cache, to, x, from),
            CpuStorage::BF16(cache) => self.copy(cache, to, x, from),
            CpuStorage::F16(cache) => self.copy(cache, to, x, from),
            _ => candle_core::bail!("store: a cache of floats"),
        }
    }

    fn copy<T: Elem, C: Elem>(&self, cache: &mut [C], to: &Layout, x: &[T], from: &Layout) -> candle_core::Result<()> {
        let ([token, head, 1], true) = (from.stride(), to.is_contiguous()) else {
            candle_core::bail!("store: rows with strides {:?} into {:?}", from.stride(), to.stride());
        };
        for (i, row) in self.rows.iter().enumerate() {
            let out = &mut cache[to.start_offset() + *row as usize * self.width..][..self.width];
            for (h, out) in out.chunks_exact_mut(self.size).enumerate() {
                let x = &x[from.start_offset() + i * token + h * head..][..self.size];
                self.isa.run(Row { x, out });
            }
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

    #[inline(always)]
    fn run<S: Lanes>(self) {
        vectors!(S, self.x.len(), |i, lanes| {
            put::<S, C>(self.out, i, lanes, get::<S, T>(self.x, i, lanes, 0.0));
        });
    }
}
