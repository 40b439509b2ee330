//! The weight matrix W, packed once at load in the layout that the device's kernel reads. There is
//! no second copy, unless [`WeightFormat::FileAndActivations`] asks for one.
//!
//! A weight may be several matrices of a file, stacked, and each has the format that suits it:
//! floats or quantized blocks, on the CPU packed into panels. Consecutive rows of one format are
//! one part.

use super::pack::panels;
use crate::cpu::bytes::{Bytes, Codes};
use crate::cpu::elem::{Elem, with_elem};
use crate::cpu::gemm::{PANEL, packed_len, panel_len, place};
use crate::cpu::rows::Reading;
use crate::ladder::{Ladder, Policy};
use crate::launch::BLAS_WORKSPACE;
use crate::ledger::Lease;
use crate::quant::{Packed, Quant, activation_bytes, dequantize, rows_as_floats};
use crate::tensor::host;
use crate::{DType, Device, Error, Place, Result, Tensor};
use std::fmt;
use std::sync::Arc;

/// A weight matrix in the layout of the device's kernel.
#[derive(Clone, Debug)]
pub(crate) struct Weight {
    pub(super) parts: Arc<[Part]>,
    pub(super) k: usize,
    pub(super) n: usize,
    /// An element in the dtype of the activations, on the weight's device. Calls without
    /// activations take dtype and device from it.
    pub(super) like: Tensor,
    /// A copy of parts in blocks, dequantized to the dtype of the activations, `[n, k]`.
    pub(super) floats: Option<Arc<Tensor>>,
}

/// Rows of W in one format.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) data: Data,
    pub(super) n: usize,
}

#[derive(Clone)]
pub(super) enum Data {
    /// `[n, k]`, as in the file: for cuBLAS and our Metal kernel.
    Rows(Tensor),
    /// `[n, bytes of a row]`, blocks as in the file: for our GPU kernels.
    Raw(Quant, Tensor),
    /// Panels of columns: see [`crate::cpu::gemm`].
    Panels(Tensor),
    /// Panels of quantized blocks: see [`crate::quant`]. `None` in a phantom place; the lease is
    /// their entry in the ledger.
    Blocks(
        Quant,
        Option<Arc<Packed>>,
        #[allow(dead_code, reason = "held for its memory booking, not read")] Arc<Lease>,
    ),
    /// Panels of int8: see [`crate::cpu::bytes`]. `None` and the lease as for `Blocks`.
    Bytes(Option<Arc<Bytes>>, #[allow(dead_code, reason = "held for its memory booking, not read")] Arc<Lease>),
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

/// Name of the int8 format.
const INT8: &str = "int8";

impl Weight {
    /// Number of inputs: the depth of the product.
    pub(crate) fn k(&self) -> usize {
        self.k
    }

    /// Number of outputs.
    pub(crate) fn n(&self) -> usize {
        self.n
    }

    /// Dtype of the activations.
    pub(crate) fn dtype(&self) -> DType {
        self.like.dtype()
    }

    /// An element in the dtype of the activations.
    pub(crate) fn like(&self) -> &Tensor {
        &self.like
    }

    /// Formats of the parts, if they differ from the dtype of the activations.
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

    /// Dequantizes to `[n, k]` in the dtype of the activations, for composed forms.
    pub(crate) fn rows(&self) -> Result<candle_core::Tensor> {
        if let [Part { data: Data::Rows(rows), .. }] = &*self.parts {
            return Ok(rows.candle()?.clone());
        }
        let device = self.like.candle()?.device();
        if !device.is_cpu() {
            // Memory of the host does not count in the device's ledger.
            let _own_ledger = Ladder::new(Policy::default()).enter();
            let to_host = |t: &Tensor| {
                Tensor::upload(t.dims(), t.dtype(), &Place::cpu(), || {
                    Ok(t.candle()?.to_device(&candle_core::Device::Cpu)?)
                })
            };
            return Ok(self.map_tensors(&to_host)?.rows()?.to_device(device)?);
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

    /// Bytes that [`Weight::rows`] allocates on a GPU: floats need no copy.
    pub(crate) fn rows_scratch(&self) -> usize {
        if self.is_raw() { self.n * self.k * self.dtype().size() } else { 0 }
    }

    /// Whether a part is in blocks as in the file.
    pub(crate) fn is_raw(&self) -> bool {
        self.parts.iter().any(|part| matches!(part.data, Data::Raw(..)))
    }

    /// The matrix of a weight that is a single part in floats, on a GPU.
    #[cfg(cuda)]
    pub(super) fn only_rows(&self) -> Option<&Tensor> {
        match &*self.parts {
            [Part { data: Data::Rows(rows), .. }] => Some(rows),
            _ => None,
        }
    }

    /// Format and blocks of a weight that is a single part in blocks as in the file.
    pub(crate) fn only_raw(&self) -> Option<(Quant, &Tensor)> {
        match &*self.parts {
            [part] => part.blocks(),
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
        Err(Error::call("linear", format!("a row beyond the last of {}", self.n)))
    }

    /// Copies the weight to the host with `to` and packs it into panels, which the host's kernels
    /// read.
    pub(crate) fn moved(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Weight> {
        self.map_tensors(to)?.in_panels()
    }

    /// Maps the tensors with `to` without packing them, for embedding lookups.
    pub(crate) fn map_tensors(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Weight> {
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
        Ok(Weight { parts: parts.into(), like: to(&self.like)?, floats: None, ..*self })
    }

    /// Packs the weight on the CPU into panels or blocks, if it is not packed yet.
    pub(super) fn in_panels(self) -> Result<Weight> {
        if !self.parts.iter().any(|p| matches!(p.data, Data::Rows(_) | Data::Raw(..))) {
            return Ok(self);
        }
        self.one_panel()
    }

    /// Packs the weight on the CPU into one part of panels in the dtype of the activations, for
    /// kernels that support no other format.
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
                // Cannot fail: the row exists and is on the CPU, as was checked with the call.
                if self.row(row, &mut wide).is_ok() {
                    out.iter_mut().zip(&wide).for_each(|(o, v)| *o = T::narrow(*v));
                }
            };
            Tensor::upload(&dims, T::TYPE, &Place::cpu(), || panels::<T>(self.n, self.k, &read, &|| ()))
        })?;
        Ok(Weight { parts: [Part { data: Data::Panels(data), n: self.n }].into(), ..self })
    }

    /// Adds a copy in floats, if every part is in blocks that products of many rows on CUDA
    /// dequantize anyway: so the copy changes no result.
    pub(super) fn with_floats(self, place: &Place) -> Result<Weight> {
        let is_dequantized = self.parts.iter().all(|part| self.becomes_floats(part, usize::MAX));
        if !is_dequantized || !matches!(place.device(), Device::Cuda(_)) {
            return Ok(self);
        }
        let floats = match place.is_phantom() {
            true => Tensor::phantom(&[self.n, self.k], self.dtype(), place.device()),
            #[cfg(cuda)]
            false => Tensor::real(super::cuda::dequantized(&self)?, self.dtype(), place.device()),
            #[cfg(not(cuda))]
            false => return Err(Error::call("linear", "this build has no CUDA")),
        };
        Ok(Weight { floats: Some(Arc::new(floats)), ..self })
    }

    /// Without a copy in floats, for ops that read the blocks only.
    pub(crate) fn without_floats(&self) -> Weight {
        Weight { floats: None, ..self.clone() }
    }

    /// The copy in floats, if there is one and a product with this many rows of activations reads
    /// it.
    pub(super) fn floats(&self, rows: usize) -> Option<&Tensor> {
        self.floats.as_deref().filter(|_| self.becomes_floats(&self.parts[0], rows))
    }

    /// Scratch memory of a product with `rows` rows of activations; `has_epilogue`: with more than
    /// a bias.
    pub(super) fn scratch(&self, rows: usize, has_epilogue: bool) -> usize {
        let in_bytes = self.parts.iter().any(|p| matches!(p.data, Data::Bytes(..)));
        match self.like.device() {
            Device::Cuda(_) => self.scratch_on_cuda(rows, has_epilogue),
            _ if in_bytes => Codes::size_of(rows, self.k),
            _ => 0,
        }
    }

    /// Upper bound for every card: on Hopper some products need no second pass, but a plan may be
    /// made without the card.
    fn scratch_on_cuda(&self, rows: usize, has_epilogue: bool) -> usize {
        let sums = |n: usize| if has_epilogue { rows * n * 4 } else { 0 };
        if self.floats(rows).is_some() {
            return sums(self.n) + BLAS_WORKSPACE;
        }
        let of = |parts: &[Part]| {
            let n = parts.iter().map(|part| part.n).sum::<usize>();
            match parts[0].data {
                Data::Raw(..) if self.becomes_floats(&parts[0], rows) => {
                    let row = self.k * self.dtype().size();
                    let n = n.min(rows_as_floats(self.k, self.dtype()));
                    n * row + sums(n) + BLAS_WORKSPACE
                }
                Data::Raw(..) => 0,
                _ if rows > 1 => sums(n) + BLAS_WORKSPACE,
                _ => 0,
            }
        };
        // Groups run one after another and each frees its scratch memory, except for the 8-bit
        // activations, which all of them read.
        let all_become_floats = self.parts.iter().all(|part| self.becomes_floats(part, rows));
        let in_8_bits = if self.is_raw() && !all_become_floats { activation_bytes(rows, self.k) } else { 0 };
        in_8_bits + self.groups(rows).map(of).max().unwrap_or(0)
    }

    /// Whether a product on CUDA with this many rows of activations dequantizes the part.
    pub(super) fn becomes_floats(&self, part: &Part, rows: usize) -> bool {
        matches!(part.data, Data::Raw(quant, _) if quant.becomes_floats(self.dtype(), rows))
    }

    /// The parts that a product on CUDA multiplies together: consecutive ones that it dequantizes.
    pub(super) fn groups(&self, rows: usize) -> impl Iterator<Item = &[Part]> {
        self.parts.chunk_by(move |a, b| self.becomes_floats(a, rows) && self.becomes_floats(b, rows))
    }

    /// The tensor of a weight that is a single part in floats.
    pub(crate) fn data(&self) -> Result<&Tensor> {
        match &*self.parts {
            [Part { data: Data::Rows(t) | Data::Panels(t), .. }] => Ok(t),
            _ => Err(Error::call(
                "linear",
                "needs a weight in one part in floats, not in several parts, in blocks or in int8",
            )),
        }
    }
}

impl Part {
    /// Format and blocks of a part in blocks as in the file.
    pub(super) fn blocks(&self) -> Option<(Quant, &Tensor)> {
        match &self.data {
            Data::Raw(quant, blocks) => Some((*quant, blocks)),
            _ => None,
        }
    }

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
