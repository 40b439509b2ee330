//! W, laid out once at load as the device's kernel reads it. It is not kept a second time.
//!
//! A matrix may be several files' matrices below each other, and on the CPU each keeps the format that suits it: floats in panels
//! or blocks of few bits. What has one format is one part.

use crate::cpu::bytes::{Bytes, Codes, DEEPEST};
use crate::cpu::elem::{Elem, with_elem};
use crate::cpu::gemm::{LINE, PANEL, packed_len, panel_len, place};
use crate::cpu::rows::Reading;
use crate::ladder;
use crate::ledger::Lease;
use crate::quant::{self, Packed, Quant, STRETCH};
use crate::tensor::host;
use crate::weights::{Keep, Raw, Stored};
use crate::{DType, Error, Place, Result, Tensor, Weights};
use rayon::prelude::*;
use std::borrow::Cow;
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
            Data::Blocks(quant, ..) => quant.fmt(f),
            Data::Bytes(..) => f.write_str(INT8),
        }
    }
}

/// What bytes are called.
const INT8: &str = "int8";

/// Rows of a file's matrix.
pub(super) struct Source<'a> {
    pub(super) raw: Raw<'a>,
    /// Where it is.
    pub(super) w: &'a Weights,
    pub(super) name: &'a str,
    pub(super) n: usize,
    pub(super) order: Order<'a>,
}

/// Which of the file's rows are the matrix's.
#[derive(Clone, Copy)]
pub(super) enum Order<'a> {
    /// Those from here on.
    From(usize),
    /// This one for each.
    By(&'a (dyn Fn(usize) -> usize + Sync)),
    /// The file's rows are inputs, these many in all and from here on; its columns are outputs.
    Turned(usize, usize),
}

impl Source<'_> {
    /// How its weights are kept for `w`. Blocks lie along the inputs, so that a turned matrix has to become floats.
    fn kept(&self, k: usize, w: &Weights) -> Kept {
        let turned = matches!(self.order, Order::Turned(..));
        if w.place().device().is_gpu() {
            return Kept::Float(w.dtype());
        }
        match (w.keep(), self.raw.stored) {
            (Keep::File, Stored::Blocks(quant)) if quant.packs() && !turned => Kept::Blocks(quant),
            (Keep::File, Stored::Float(dtype)) if w.dtype() == DType::F32 => Kept::Float(dtype),
            (Keep::Blocks(quant), _) if quant.bytes(k).is_some() && quant.quantizes() => Kept::Blocks(quant),
            // Rows that are no whole blocks of 256 may still be of 32.
            (Keep::Blocks(_), _) if Quant::Q8_0.bytes(k).is_some() => Kept::Blocks(Quant::Q8_0),
            (Keep::Bytes, _) if k <= DEEPEST => Kept::Bytes,
            _ => Kept::Float(w.dtype()),
        }
    }

    fn read<T: Elem>(&self, row: usize, out: &mut [T]) {
        let k = out.len();
        match self.order {
            Order::From(first) => self.raw.read((first + row) * k, out),
            Order::By(order) => self.raw.read(order(row) * k, out),
            Order::Turned(first, columns) => out.iter_mut().enumerate().for_each(|(i, v)| {
                self.raw.read((first + i) * columns + row, std::slice::from_mut(v));
            }),
        }
    }

    /// A row's blocks, as they are or made.
    fn blocks(&self, row: usize, k: usize, quant: Quant) -> Cow<'_, [u8]> {
        let from = match self.order {
            Order::From(first) => first + row,
            Order::By(order) => order(row),
            Order::Turned(..) => row,
        };
        match (self.raw.stored, quant.bytes(k)) {
            (Stored::Blocks(stored), Some(bytes)) if stored == quant => {
                Cow::Borrowed(&self.raw.bytes[from * bytes..][..bytes])
            }
            _ => {
                let mut values = vec![0f32; k];
                self.read(row, &mut values);
                let mut bytes = Vec::new();
                // Whole blocks of a format that is made: `kept` asks for no other.
                let made = quant::quantize(quant, &values, &mut bytes).is_ok();
                debug_assert!(made);
                Cow::Owned(bytes)
            }
        }
    }
}

/// What a part is kept in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    Float(DType),
    Blocks(Quant),
    Bytes,
}

/// Matrices below each other, as `w`'s place and wish have them; those next to each other in one format become one part.
pub(super) fn pack(sources: &[Source<'_>], k: usize, w: &Weights) -> Result<Weight> {
    let mut parts = Vec::new();
    for group in sources.chunk_by(|a, b| a.kept(k, w) == b.kept(k, w)) {
        let n = group.iter().map(|s| s.n).sum();
        let find = |mut row: usize| {
            for source in group {
                if row < source.n {
                    return (source, row);
                }
                row -= source.n;
            }
            unreachable!("a row beyond all sources")
        };
        // What has been read need not stay in memory beside what became of it.
        let let_go = || group.iter().for_each(|source| source.w.taken(source.name));
        let data = match group[0].kept(k, w) {
            Kept::Float(dtype) => with_elem!("linear", dtype, T => {
                let read = |row: usize, out: &mut [T]| {
                    let (source, row) = find(row);
                    source.read(row, out);
                };
                float::<T>(n, k, w, &read, &let_go)
            })?,
            Kept::Blocks(quant) => {
                let row = |row: usize| {
                    let (source, row) = find(row);
                    source.blocks(row, k, quant)
                };
                blocks(quant, (n, k), w, &row, &let_go)?
            }
            Kept::Bytes => {
                let read = |row: usize, out: &mut [f32]| {
                    let (source, row) = find(row);
                    source.read(row, out);
                };
                let packed = (!w.place().is_phantom()).then(|| Arc::new(Bytes::pack(n, k, &read, &let_go)));
                Data::Bytes(packed, ladder::current().ledger.lease(Bytes::size_of(n, k)))
            }
        };
        parts.push(Part { data, n });
    }
    let n = parts.iter().map(|p| p.n).sum();
    Ok(Weight { parts: parts.into(), k, n, like: w.put(&[0.0], &[1])? })
}

fn float<T: Elem>(
    n: usize,
    k: usize,
    w: &Weights,
    read: &(dyn Fn(usize, &mut [T]) + Sync),
    let_go: &dyn Fn(),
) -> Result<Data> {
    if w.place().device().is_gpu() {
        let dims = [n, k];
        return Ok(Data::Rows(Tensor::upload(&dims, T::TYPE, w.place(), || {
            let mut all = vec![T::default(); n * k];
            all.chunks_mut(k.max(1)).enumerate().for_each(|(row, out)| read(row, out));
            let_go();
            host(all, &dims)
        })?));
    }
    let dims = [packed_len::<T>(k, n)];
    Ok(Data::Panels(Tensor::upload(&dims, T::TYPE, w.place(), || panels::<T>(n, k, read, let_go))?))
}

fn blocks<'a>(
    quant: Quant,
    (n, k): (usize, usize),
    w: &Weights,
    row: &(dyn Fn(usize) -> Cow<'a, [u8]> + Sync),
    let_go: &dyn Fn(),
) -> Result<Data> {
    let packed = if w.place().is_phantom() { None } else { Some(Arc::new(Packed::pack(quant, n, k, row, let_go)?)) };
    let bytes = packed.as_ref().map_or_else(|| Packed::size_of(quant, n, k), |p| p.size());
    Ok(Data::Blocks(quant, packed, ladder::current().ledger.lease(bytes)))
}

/// `[ceil(rows / PANEL)][k][PANEL]` with pairs as the format has them, zeros behind the last row. It begins with a line of the
/// cache, which an allocation does not: tiles that lie across two lines are read at half the speed.
fn panels<T: Elem>(
    rows: usize,
    k: usize,
    read: &(dyn Fn(usize, &mut [T]) + Sync),
    let_go: &dyn Fn(),
) -> Result<candle_core::Tensor> {
    let (whole, spare) = (packed_len::<T>(k, rows), LINE / size_of::<T>());
    let mut all = vec![T::default(); whole + spare];
    let first = all.as_ptr().align_offset(LINE).min(spare);
    if k > 0 {
        fill(&mut all[first..][..whole], rows, k, read, let_go);
    }
    Ok(host(all, &[whole + spare])?.narrow(0, first, whole)?)
}

fn fill<T: Elem>(out: &mut [T], rows: usize, k: usize, read: &(dyn Fn(usize, &mut [T]) + Sync), let_go: &dyn Fn()) {
    let len = panel_len::<T>(k);
    let stretch = (STRETCH / (len * size_of::<T>())).max(1);
    for (i, out) in out.chunks_mut(stretch * len).enumerate() {
        out.par_chunks_mut(len).enumerate().for_each_init(
            || vec![T::default(); k],
            |row, (panel, out)| {
                let first = (i * stretch + panel) * PANEL;
                for c in 0..PANEL.min(rows - first) {
                    read(first + c, row);
                    row.iter().enumerate().for_each(|(i, v)| out[place::<T>(i, c)] = *v);
                }
            },
        );
        let_go();
    }
}

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
            Data::Blocks(quant, ..) => Some(quant.to_string()),
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
        let moved = |part: &Part| -> Result<Part> {
            let data = match &part.data {
                Data::Rows(t) => Data::Rows(to(t)?),
                Data::Panels(t) => Data::Panels(to(t)?),
                packed @ (Data::Blocks(..) | Data::Bytes(..)) => packed.clone(),
            };
            Ok(Part { data, n: part.n })
        };
        let parts = self.parts.iter().map(moved).collect::<Result<Vec<_>>>()?;
        Weight { parts: parts.into(), like: to(&self.like)?, ..self.clone() }.in_panels()
    }

    /// The same on the CPU with its rows in panels or blocks, as its kernels read them.
    pub(super) fn in_panels(self) -> Result<Weight> {
        if !self.parts.iter().any(|p| matches!(p.data, Data::Rows(_))) {
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

    /// Memory that a product with `rows` rows of activations takes beside its result.
    pub(super) fn scratch(&self, rows: usize) -> usize {
        let in_bytes = self.parts.iter().any(|p| matches!(p.data, Data::Bytes(..)));
        if in_bytes { Codes::size_of(rows, self.k) } else { 0 }
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
