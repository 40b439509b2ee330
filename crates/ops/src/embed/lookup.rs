//! y[t] = scale · W[ids[t]] + table[ids'[t]]        in f32, one rounding to T
//!
//! The word table as the matrix of a product, in whatever format that keeps it: models that tie the two keep one.

use crate::cpu::Isa;
use crate::cpu::elem::{Elem, with_elem};
use crate::cpu::rows::{Reading, fill_rows};
use crate::ladder::{self, Can, Op, Rung};
use crate::linear::Weight;
use crate::tensor::host;
use crate::{DType, Device, Error, Result, Tensor};

/// See [`crate::Linear::embed`].
pub(crate) fn lookup(words: &Weight, ids: &Tensor, scale: f32, also: Option<(&Tensor, &Tensor)>) -> Result<Tensor> {
    let is_ids = |t: &Tensor| t.dims().len() == 1 && t.dims() == ids.dims() && t.dtype() == DType::U32;
    let fits = |(table, ids): (&Tensor, &Tensor)| {
        table.dims().len() == 2 && table.dims()[1] == words.k() && table.dtype() == words.dtype() && is_ids(ids)
    };
    if !is_ids(ids) || !also.is_none_or(fits) {
        return Err(Error::call("embed", "tables of one width and dtype with u32 ids of one length are needed"));
    }
    let also = also.map(|(table, ids)| (table.clone(), ids.clone()));
    ladder::run(LookupOp { words: words.clone(), ids: ids.clone(), scale, also })
}

pub(crate) struct LookupOp {
    words: Weight,
    ids: Tensor,
    scale: f32,
    also: Option<(Tensor, Tensor)>,
}

impl LookupOp {
    /// The scale is a number of T too, as it is where models are trained.
    fn rounded_scale(&self) -> Result<f32> {
        with_elem!("embed", self.words.dtype(), T => Ok(T::narrow(self.scale).wide()))
    }
}

/// The method of a GPU: rows of floats as `embed` takes them, rows of blocks by a kernel of their own.
#[cfg(any(cuda, metal))]
macro_rules! on_gpu {
    ($device:ident) => {
        fn $device(&self) -> Result<candle_core::Tensor> {
            use $crate::launch::$device::View;
            let Some((quant, blocks)) = self.words.only_raw() else {
                let words = (self.words.data()?, &self.ids);
                let also = self.also.iter().map(|(table, ids)| (table, ids));
                return super::$device::run(
                    &[words].into_iter().chain(also).collect::<Vec<_>>(),
                    self.rounded_scale()?,
                );
            };
            let view = |(table, ids): &(Tensor, Tensor)| Ok::<_, Error>((View::of(table)?, View::whole(ids)?));
            let also = self.also.as_ref().map(view).transpose()?;
            let also = also.as_ref().map(|(table, ids)| (table, ids));
            let (blocks, ids, like) = (View::whole(blocks)?, View::whole(&self.ids)?, View::of(self.words.like())?);
            let to = (&like, self.words.k());
            $crate::quant::$device::look_up((quant, &blocks), &ids, self.rounded_scale()?, also, to)?
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
        let also = self.also.as_ref().map_or_else(String::new, |(table, _)| format!(" + {}", table.dims()[0]));
        format!("{}{also} → {}{}", self.words.n(), self.words.k(), self.words.formats())
    }

    fn fused(&self, device: Device) -> Can {
        // Rows as in the file, or all of them in one format of blocks; not in parts.
        let is_rows = |t: &Tensor| t.dims() == [self.words.n(), self.words.k()] && t.dtype() == self.words.dtype();
        match device {
            Device::Cpu => Can::Yes,
            _ if self.words.only_raw().is_some() || self.words.data().is_ok_and(is_rows) => Can::Yes,
            _ => Can::no("our kernels look up rows of one format"),
        }
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Composed: the rows as they are looked up, widened, scaled, and the sum, in f32.
        let (dims, _) = self.out();
        if rung == Rung::Composed { 5 * 4 * dims.iter().product::<usize>() + self.words.rows_scratch() } else { 0 }
    }

    fn cpu(&self, _: Isa) -> Result<candle_core::Tensor> {
        let (t, n) = (self.ids.dims()[0], self.words.k());
        let ids = Reading::of(&self.ids)?;
        let ids = ids.slice::<u32>()?;
        within(ids, self.words.n())?;
        with_elem!("embed", self.words.dtype(), T => {
            let also = self.also.as_ref();
            let also = also.map(|(table, ids)| Ok::<_, Error>((Reading::of(table)?, Reading::of(ids)?))).transpose()?;
            let also = also.as_ref();
            let also = also.map(|(t, ids)| Ok::<_, Error>((t.rows::<T>()?, ids.slice::<u32>()?))).transpose()?;
            if let Some((table, ids)) = &also {
                within(ids, table.rows)?;
            }
            let scale = self.rounded_scale()?;
            let y = fill_rows::<T>(t, n, n, |i, out, row| {
                // The row is there: that was checked.
                if self.words.row(ids[i] as usize, row).is_ok() {
                    out.iter_mut().zip(&*row).for_each(|(o, v)| *o = T::narrow(v * scale));
                }
                if let Some((table, ids)) = &also {
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
        if let Some((table, ids)) = &self.also {
            // Without gaps, as in `embed`.
            y = (y + table.candle()?.contiguous()?.index_select(ids.candle()?, 0)?.to_dtype(F32)?)?;
        }
        Ok(y.to_dtype(dtype)?)
    }

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let also = self.also.as_ref().map(|(table, ids)| Ok::<_, Error>((to(table)?, to(ids)?))).transpose()?;
        Ok(LookupOp { words: self.words.map_tensors(to)?, ids: to(&self.ids)?, scale: self.scale, also })
    }
}

fn within(ids: &[u32], rows: usize) -> Result<()> {
    match ids.iter().find(|id| **id as usize >= rows) {
        Some(id) => Err(Error::call("embed", format!("id {id} in a table of {rows} rows"))),
        None => Ok(()),
    }
}
