//! W, laid out once at load as the device's kernel reads it. It is not kept a second time.
//!
//! A matrix may be several files' matrices below each other, and each keeps the format that suits it: floats or blocks of few bits,
//! on the CPU in panels. What has one format is one part.

use super::pack::panels;
use crate::cpu::bytes::{Bytes, Codes};
use crate::cpu::elem::{Elem, with_elem};
use crate::cpu::gemm::{PANEL, packed_len, panel_len, place};
use crate::cpu::rows::Reading;
use crate::ladder::{Ladder, Policy};
use crate::launch::BLAS_WORKSPACE;
use crate::ledger::Lease;
use crate::quant::{MANY, PART, Packed, Quant, dequantize, rounded_bytes};
use crate::tensor::host;
use crate::{DType, Device, Error, Place, Result, Tensor};
use std::fmt;
use std::sync::Arc;

/// W, as the device's kernel wants it.
#[derive(Clone, Debug)]
pub(crate) struct Weight {
    pub(super) parts: Arc<[Part]>,
    pub(super) k: usize,
    pub(super) n: usize,
    /// An element in the dtype of the activations, where the weight is: what a call without activations goes by.
    pub(super) like: Tensor,
}

/// Rows of W in one format.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) data: Data,
    pub(super) n: usize,
}

#[derive(Clone)]
pub(super) enum Data {
    /// `[n, k]`, as in the file: what cuBLAS and Metal's product take.
    Rows(Tensor),
    /// `[n, bytes of a row]`, blocks as in the file: what our kernels on GPUs read.
    Raw(Quant, Tensor),
    /// Panels of columns: see [`crate::cpu::gemm`].
    Panels(Tensor),
    /// Panels of blocks: see [`crate::quant`]. Not there on phantoms; booked as long as they live.
    Blocks(Quant, Option<Arc<Packed>>, #[allow(dead_code, reason = "held, not read")] Arc<Lease>),
    /// Panels of bytes: see [`crate::cpu::bytes`]. As blocks are.
    Bytes(Option<Arc<Bytes>>, #[allow(dead_code, reason = "held, not read")] Arc<Lease>),
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Data::Rows(t) | Data::Panels(t) => t.fmt(f),
            Data::Blocks(quant, ..) | Data::Raw(quant, _) => quant.fmt(f),
            Data::Bytes(..) => f.write_str(INT8),
        }
    }
}

/// What bytes are called.
const INT8: &str = "int8";

impl Weight {
    /// Depth of a product.
    pub(crate) fn k(&self) -> usize {
        self.k
    }

    /// Outputs.
    pub(crate) fn n(&self) -> usize {
        self.n
    }

    /// Of the activations that it takes.
    pub(crate) fn dtype(&self) -> DType {
        self.like.dtype()
    }

    /// An element of the activations that it takes.
    pub(crate) fn like(&self) -> &Tensor {
        &self.like
    }

    /// What its parts are kept in, where that is not the dtype of the activations.
    pub(crate) fn formats(&self) -> String {
        let name = |part: &Part| match &part.data {
            Data::Rows(t) | Data::Panels(t) if t.dtype() == self.dtype() => None,
            Data::Rows(t) | Data::Panels(t) => Some(t.dtype().to_string()),
            Data::Blocks(quant, ..) | Data::Raw(quant, _) => Some(quant.to_string()),
            Data::Bytes(..) => Some(INT8.to_string()),
        };
        let mut names: Vec<_> = self.parts.iter().filter_map(name).collect();
        names.dedup();
        if names.is_empty() { String::new() } else { format!(" in {}", names.join(" + ")) }
    }

    /// `[n, k]` in the dtype of the activations, for composed forms.
    pub(crate) fn rows(&self) -> Result<candle_core::Tensor> {
        if let [Part { data: Data::Rows(rows), .. }] = &*self.parts {
            return Ok(rows.candle()?.clone());
        }
        let there = self.like.candle()?.device();
        if !there.is_cpu() {
            // What passes through the host is not the device's to book.
            let _apart = Ladder::new(Policy::default()).enter();
            let here = |t: &Tensor| {
                Tensor::upload(t.dims(), t.dtype(), &Place::cpu(), || {
                    Ok(t.candle()?.to_device(&candle_core::Device::Cpu)?)
                })
            };
            return Ok(self.taken(&here)?.rows()?.to_device(there)?);
        }
        with_elem!("linear", self.dtype(), T => {
            let mut all = vec![T::default(); self.n * self.k];
            let mut row = vec![0f32; self.k];
            for (i, out) in all.chunks_mut(self.k.max(1)).enumerate() {
                self.row(i, &mut row)?;
                out.iter_mut().zip(&row).for_each(|(o, v)| *o = T::narrow(*v));
            }
            host(all, &[self.n, self.k])
        })
    }

    /// Bytes that [`Weight::rows`] makes on a GPU: floats are there already.
    pub(crate) fn rows_scratch(&self) -> usize {
        if self.is_raw() { self.n * self.k * self.dtype().size() } else { 0 }
    }

    /// Whether a part of it is in blocks as the file has them.
    pub(crate) fn is_raw(&self) -> bool {
        self.parts.iter().any(|part| matches!(part.data, Data::Raw(..)))
    }

    /// A weight that is one part, in floats as a GPU has them.
    #[cfg(cuda)]
    pub(super) fn only_rows(&self) -> Option<&Tensor> {
        match &*self.parts {
            [Part { data: Data::Rows(rows), .. }] => Some(rows),
            _ => None,
        }
    }

    /// Format and blocks of a weight that is one part, in blocks as the file has them.
    pub(crate) fn only_raw(&self) -> Option<(Quant, &Tensor)> {
        match &*self.parts {
            [Part { data: Data::Raw(quant, blocks), .. }] => Some((*quant, blocks)),
            _ => None,
        }
    }

    /// Row `i` in f32, on the CPU.
    pub(crate) fn row(&self, mut i: usize, out: &mut [f32]) -> Result<()> {
        for part in &*self.parts {
            if i < part.n {
                return part.row(i, self.k, out);
            }
            i -= part.n;
        }
        Err(Error::call("linear", format!("a row beyond {}", self.n)))
    }

    /// Taken through `to`, which leads to the host: its kernels read panels, the device's product rows.
    pub(crate) fn moved(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Weight> {
        self.taken(to)?.in_panels()
    }

    /// The same as it lies, for what looks rows up.
    pub(crate) fn taken(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Weight> {
        let moved = |part: &Part| -> Result<Part> {
            let data = match &part.data {
                Data::Rows(t) => Data::Rows(to(t)?),
                Data::Raw(quant, t) => Data::Raw(*quant, to(t)?),
                Data::Panels(t) => Data::Panels(to(t)?),
                packed @ (Data::Blocks(..) | Data::Bytes(..)) => packed.clone(),
            };
            Ok(Part { data, n: part.n })
        };
        let parts = self.parts.iter().map(moved).collect::<Result<Vec<_>>>()?;
        Ok(Weight { parts: parts.into(), like: to(&self.like)?, ..self.clone() })
    }

    /// The same on the CPU with its rows in panels or blocks, as its kernels read them.
    pub(super) fn in_panels(self) -> Result<Weight> {
        if !self.parts.iter().any(|p| matches!(p.data, Data::Rows(_) | Data::Raw(..))) {
            return Ok(self);
        }
        self.one_panel()
    }

    /// The same on the CPU as one part in panels of the activations' dtype, for kernels that know nothing else.
    pub(crate) fn one_panel(self) -> Result<Weight> {
        if let [Part { data: Data::Panels(t), .. }] = &*self.parts
            && t.dtype() == self.dtype()
        {
            return Ok(self);
        }
        let data = with_elem!("linear", self.dtype(), T => {
            let dims = [packed_len::<T>(self.k, self.n)];
            let read = |row: usize, out: &mut [T]| {
                let mut wide = vec![0f32; self.k];
                // The row is there and on the CPU: it was when the call was made.
                if self.row(row, &mut wide).is_ok() {
                    out.iter_mut().zip(&wide).for_each(|(o, v)| *o = T::narrow(*v));
                }
            };
            Tensor::upload(&dims, T::TYPE, &Place::cpu(), || panels::<T>(self.n, self.k, &read, &|| ()))
        })?;
        Ok(Weight { parts: [Part { data: Data::Panels(data), n: self.n }].into(), ..self })
    }

    /// Memory that a product with `rows` rows of activations takes beside its result; `is_more`: with more than a bias behind it.
    pub(super) fn scratch(&self, rows: usize, is_more: bool) -> usize {
        let in_bytes = self.parts.iter().any(|p| matches!(p.data, Data::Bytes(..)));
        match self.like.device() {
            Device::Cuda(_) => self.scratch_on_cuda(rows, is_more),
            _ if in_bytes => Codes::size_of(rows, self.k),
            _ => 0,
        }
    }

    /// At most, on whatever card: on Hopper some products need no second pass, but a plan may be made without the card.
    fn scratch_on_cuda(&self, rows: usize, is_more: bool) -> usize {
        let becomes_floats = self.dtype() == DType::F16 && rows >= MANY;
        let sums = |n: usize| if is_more { rows * n * 4 } else { 0 };
        let of = |part: &Part| match part.data {
            Data::Raw(..) if becomes_floats => {
                let row = self.k * self.dtype().size();
                let n = part.n.min((PART / row).max(1));
                n * row + sums(n) + BLAS_WORKSPACE
            }
            Data::Raw(..) => 0,
            _ if rows > 1 => sums(part.n) + BLAS_WORKSPACE,
            _ => 0,
        };
        // Parts follow each other and each gives back what it took, but for the activations in 8 bits, which all of them read.
        let in_8_bits = if self.is_raw() && !becomes_floats { rounded_bytes(rows, self.k) } else { 0 };
        in_8_bits + self.parts.iter().map(of).max().unwrap_or(0)
    }

    /// The tensor of a weight that is one part of floats.
    pub(crate) fn data(&self) -> Result<&Tensor> {
        match &*self.parts {
            [Part { data: Data::Rows(t) | Data::Panels(t), .. }] => Ok(t),
            _ => Err(Error::call("linear", "a weight in several parts, in blocks or in bytes")),
        }
    }
}

impl Part {
    fn row(&self, i: usize, k: usize, out: &mut [f32]) -> Result<()> {
        match &self.data {
            Data::Blocks(_, Some(packed), _) => packed.row(i, out),
            Data::Bytes(Some(bytes), _) => bytes.column(i, out),
            Data::Raw(quant, t) => {
                let (reading, bytes) = (Reading::of(t)?, t.dims()[1]);
                dequantize(*quant, &reading.slice::<u8>()?[i * bytes..][..bytes], out)?;
            }
            Data::Blocks(_, None, _) | Data::Bytes(None, _) => return Err(Error::Phantom),
            Data::Panels(t) => with_elem!("linear", t.dtype(), T => {
                let reading = Reading::of(t)?;
                let panel = &reading.slice::<T>()?[i / PANEL * panel_len::<T>(k)..];
                out.iter_mut().enumerate().for_each(|(j, v)| *v = panel[place::<T>(j, i % PANEL)].wide());
                Ok(())
            })?,
            Data::Rows(t) => with_elem!("linear", t.dtype(), T => {
                let reading = Reading::of(t)?;
                out.iter_mut().zip(reading.rows::<T>()?.row(i)).for_each(|(o, v)| *o = v.wide());
                Ok(())
            })?,
        }
        Ok(())
    }
}
