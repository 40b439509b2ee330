//! Tied embeddings: y[t] = scale · W[ids[t]] + table[ids'[t]], in f32 with one rounding to T.
//!
//! Looks up token embeddings in the weight matrix of a linear layer, in that layer's format: models
//! with tied embeddings store one matrix.

use crate::cpu::Isa;
use crate::cpu::elem::{Elem, with_elem};
use crate::cpu::rows::{Reading, fill_rows};
use crate::ladder::{self, Can, Op, Rung};
use crate::linear::Weight;
use crate::tensor::host;
use crate::{DType, Device, Error, Result, Tensor};

/// See [`crate::Linear::embed`].
pub(crate) fn lookup(words: &Weight, ids: &Tensor, scale: f32, second: Option<(&Tensor, &Tensor)>) -> Result<Tensor> {
    let is_ids = |t: &Tensor| t.dims().len() == 1 && t.dims() == ids.dims() && t.dtype() == DType::U32;
    let fits = |(table, ids): (&Tensor, &Tensor)| {
        table.dims().len() == 2 && table.dims()[1] == words.k() && table.dtype() == words.dtype() && is_ids(ids)
    };
    if !is_ids(ids) || !second.is_none_or(fits) {
        return Err(Error::call("embed", "tables must have one width and dtype, and ids must be u32 of one length"));
    }
    let second = second.map(|(table, ids)| (table.clone(), ids.clone()));
    ladder::run(LookupOp { words: words.clone(), ids: ids.clone(), scale, second })
}

pub(crate) struct LookupOp {
    words: Weight,
    ids: Tensor,
    scale: f32,
    second: Option<(Tensor, Tensor)>,
}

impl LookupOp {
    /// The scale rounded to T, as in training.
    fn rounded_scale(&self) -> Result<f32> {
        with_elem!("embed", self.words.dtype(), T => Ok(T::narrow(self.scale).wide()))
    }
}

/// The method of a GPU: rows of floats by the `embed` kernel, rows of quantized blocks by a kernel
/// of their own.
#[cfg(any(cuda, metal))]
macro_rules! on_gpu {
    ($device:ident) => {
        fn $device(&self) -> Result<candle_core::Tensor> {
            use $crate::launch::$device::View;
            let Some((quant, blocks)) = self.words.only_raw() else {
                let words = (self.words.data()?, &self.ids);
                let second = self.second.iter().map(|(table, ids)| (table, ids));
                return super::$device::run(
                    &[words].into_iter().chain(second).collect::<Vec<_>>(),
                    self.rounded_scale()?,
                );
            };
            let view = |(table, ids): &(Tensor, Tensor)| Ok::<_, Error>((View::of(table)?, View::whole(ids)?));
            let second = self.second.as_ref().map(view).transpose()?;
            let second = second.as_ref().map(|(table, ids)| (table, ids));
            let (blocks, ids, like) = (View::whole(blocks)?, View::whole(&self.ids)?, View::of(self.words.like())?);
            let to = (&like, self.words.k());
            $crate::quant::$device::look_up((quant, &blocks), &ids, self.rounded_scale()?, second, to)?
                .tensor(&self.out().0)
        }
    };
}

impl Op for LookupOp {
    const NAME: &'static str = "embed";

    fn x(&self) -> &Tensor {
        self.words.like()
    }

    fn out(&self) -> (Vec<usize>, DType) {
        (vec![self.ids.dims()[0], self.words.k()], self.words.dtype())
    }

    fn detail(&self) -> String {
        let second = self.second.as_ref().map_or_else(String::new, |(table, _)| format!(" + {}", table.dims()[0]));
        format!("{}{second} → {}{}", self.words.n(), self.words.k(), self.words.formats())
    }

    fn fused(&self, device: Device) -> Can {
        // Rows as in the file, or all of them in one block format; not split into parts.
        let is_rows = |t: &Tensor| t.dims() == [self.words.n(), self.words.k()] && t.dtype() == self.words.dtype();
        match device {
            Device::Cpu => Can::Yes,
            _ if self.words.only_raw().is_some() || self.words.data().is_ok_and(is_rows) => Can::Yes,
            _ => Can::no("our kernels look up rows only in a matrix of one format"),
        }
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Composed: the gathered rows, in f32, scaled, and the sum, in f32.
        let (dims, _) = self.out();
        if rung == Rung::Composed { 5 * 4 * dims.iter().product::<usize>() + self.words.rows_scratch() } else { 0 }
    }

    fn cpu(&self, _: Isa) -> Result<candle_core::Tensor> {
        let (t, n) = (self.ids.dims()[0], self.words.k());
        let ids = Reading::of(&self.ids)?;
        let ids = ids.slice::<u32>()?;
        check_ids(ids, self.words.n())?;
        with_elem!("embed", self.words.dtype(), T => {
            let second = self.second.as_ref();
            let second = second.map(|(table, ids)| Ok::<_, Error>((Reading::of(table)?, Reading::of(ids)?))).transpose()?;
            let second = second.as_ref();
            let second = second.map(|(t, ids)| Ok::<_, Error>((t.rows::<T>()?, ids.slice::<u32>()?))).transpose()?;
            if let Some((table, ids)) = &second {
                check_ids(ids, table.rows)?;
            }
            let scale = self.rounded_scale()?;
            let y = fill_rows::<T>(t, n, n, |i, out, row| {
                // Cannot fail: the id was checked.
                if self.words.row(ids[i] as usize, row).is_ok() {
                    out.iter_mut().zip(&*row).for_each(|(o, v)| *o = T::narrow(v * scale));
                }
                if let Some((table, ids)) = &second {
                    let table = table.row(ids[i] as usize);
                    let sums = row.iter().zip(table).map(|(v, p)| T::narrow(v * scale + p.wide()));
                    out.iter_mut().zip(sums).for_each(|(o, sum)| *o = sum);
                }
            });
            host(y, &[t, n])
        })
    }

    #[cfg(cuda)]
    on_gpu!(cuda);

    #[cfg(metal)]
    on_gpu!(metal);

    fn composed(&self) -> Result<candle_core::Tensor> {
        use candle_core::DType::F32;
        let dtype = self.words.dtype().candle();
        let rows = self.words.rows()?.index_select(self.ids.candle()?, 0)?;
        let mut y = (rows.to_dtype(F32)? * f64::from(self.rounded_scale()?))?;
        if let Some((table, ids)) = &self.second {
            // Contiguous, as in `embed`.
            y = (y + table.candle()?.contiguous()?.index_select(ids.candle()?, 0)?.to_dtype(F32)?)?;
        }
        Ok(y.to_dtype(dtype)?)
    }

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let second = self.second.as_ref().map(|(table, ids)| Ok::<_, Error>((to(table)?, to(ids)?))).transpose()?;
        Ok(LookupOp { words: self.words.map_tensors(to)?, ids: to(&self.ids)?, scale: self.scale, second })
    }
}

fn check_ids(ids: &[u32], rows: usize) -> Result<()> {
    match ids.iter().find(|id| **id as usize >= rows) {
        Some(id) => Err(Error::call("embed", format!("id {id} is beyond the table of {rows} rows"))),
        None => Ok(()),
    }
}
