//! Packs the matrices of a weight file into parts of W, each in the format that suits the device.

use super::weight::{Data, Part, Weight};
use crate::cpu::bytes::{Bytes, MAX_DEPTH};
use crate::cpu::elem::{Elem, with_elem};
use crate::cpu::gemm::{LINE, PANEL, packed_len, panel_len, place};
use crate::ladder;
use crate::quant::{self, PASS_BYTES, Packed, Quant};
use crate::tensor::host;
use crate::weights::{Raw, Stored, WeightFormat};
use crate::{DType, Error, Result, Tensor, Weights, threads};
use std::borrow::Cow;
use std::sync::Arc;

/// Rows of a matrix in a file.
pub(super) struct Source<'a> {
    pub(super) raw: Raw<'a>,
    /// The file's weights.
    pub(super) w: &'a Weights,
    pub(super) name: &'a str,
    pub(super) n: usize,
    pub(super) order: Order<'a>,
}

/// Which rows of the file make up the matrix.
#[derive(Clone, Copy)]
pub(super) enum Order<'a> {
    /// Consecutive rows from this index on.
    From(usize),
    /// The file's row for each row of the matrix.
    By(&'a (dyn Fn(usize) -> usize + Sync)),
    /// The file holds the matrix transposed: its rows are inputs, from the first index on; its
    /// columns are outputs, of this number.
    Transposed(usize, usize),
}

impl Source<'_> {
    /// Storage format of the rows for `w`. Blocks lie along the inputs, so a transposed matrix has
    /// to become floats.
    fn part_format(&self, k: usize, w: &Weights) -> PartFormat {
        let transposed = matches!(self.order, Order::Transposed(..));
        let device = w.place().device();
        let as_in_file = matches!(w.format(), WeightFormat::File | WeightFormat::FileAndActivations);
        match (w.format(), self.raw.stored) {
            (_, Stored::Blocks(quant)) if as_in_file && quant.stays(device) && !transposed => PartFormat::Blocks(quant),
            (_, Stored::Float(dtype)) if as_in_file && w.dtype() == DType::F32 && !device.is_gpu() => {
                PartFormat::Float(dtype)
            }
            (WeightFormat::Blocks(quant), _)
                if quant.stays(device) && quant.bytes(k).is_some() && quant.quantizes() =>
            {
                PartFormat::Blocks(quant)
            }
            // Rows that are not whole blocks of 256 elements may be whole blocks of 32.
            (WeightFormat::Blocks(_), _) if Quant::Q8_0.stays(device) && Quant::Q8_0.bytes(k).is_some() => {
                PartFormat::Blocks(Quant::Q8_0)
            }
            (WeightFormat::Bytes, _) if k <= MAX_DEPTH && !device.is_gpu() => PartFormat::Bytes,
            _ => PartFormat::Float(w.dtype()),
        }
    }

    /// The file's own memory, if the device can read it there without conversion.
    fn zero_copy(&self, k: usize, w: &Weights) -> Option<Data> {
        let Order::From(first) = self.order else { return None };
        let rows = |bytes: usize| first * bytes..(first + self.n) * bytes;
        match (self.part_format(k, w), self.raw.stored) {
            (PartFormat::Float(dtype), Stored::Float(stored)) if stored == dtype => {
                let shape = (&[self.n, k][..], dtype);
                self.w.lent(self.name, &self.raw, rows(k * dtype.size()), shape).map(Data::Rows)
            }
            (PartFormat::Blocks(quant), Stored::Blocks(stored)) if stored == quant => {
                let bytes = quant.bytes(k)?;
                let shape = (&[self.n, bytes][..], DType::U8);
                self.w.lent(self.name, &self.raw, rows(bytes), shape).map(|blocks| Data::Raw(quant, blocks))
            }
            _ => None,
        }
    }

    fn read<T: Elem>(&self, row: usize, out: &mut [T]) {
        let k = out.len();
        match self.order {
            Order::From(first) => self.raw.read((first + row) * k, out),
            Order::By(order) => self.raw.read(order(row) * k, out),
            Order::Transposed(first, columns) => out.iter_mut().enumerate().for_each(|(i, v)| {
                self.raw.read((first + i) * columns + row, std::slice::from_mut(v));
            }),
        }
    }

    /// A row's blocks, from the file or quantized.
    fn blocks(&self, row: usize, k: usize, quant: Quant) -> Cow<'_, [u8]> {
        let from = match self.order {
            Order::From(first) => first + row,
            Order::By(order) => order(row),
            Order::Transposed(..) => row,
        };
        match (self.raw.stored, quant.bytes(k)) {
            (Stored::Blocks(stored), Some(bytes)) if stored == quant => {
                Cow::Borrowed(&self.raw.bytes[from * bytes..][..bytes])
            }
            _ => {
                let mut values = vec![0f32; k];
                self.read(row, &mut values);
                let mut bytes = Vec::new();
                // Cannot fail: `part_format` chooses only formats that are whole blocks and that
                // `quantize` can make.
                let quantized = quant::quantize(quant, &values, &mut bytes).is_ok();
                debug_assert!(quantized);
                Cow::Owned(bytes)
            }
        }
    }
}

/// Storage format of a part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PartFormat {
    Float(DType),
    Blocks(Quant),
    Bytes,
}

/// Stacks matrices, in the format and place of `w`; adjacent ones in the same format become one
/// part.
pub(super) fn pack(sources: &[Source<'_>], k: usize, w: &Weights) -> Result<Weight> {
    let mut parts = Vec::new();
    for group in sources.chunk_by(|a, b| a.part_format(k, w) == b.part_format(k, w)) {
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
        // The file's pages that have been read need not stay in memory beside the packed copy.
        let release = || group.iter().for_each(|source| source.w.taken(source.name));
        if let [only] = group
            && let Some(data) = only.zero_copy(k, w)
        {
            parts.push(Part { data, n });
            continue;
        }
        let data = match group[0].part_format(k, w) {
            PartFormat::Float(dtype) => with_elem!("linear", dtype, T => {
                let read = |row: usize, out: &mut [T]| {
                    let (source, row) = find(row);
                    source.read(row, out);
                };
                float::<T>(n, k, w, &read, &release)
            })?,
            PartFormat::Blocks(quant) => {
                let row = |row: usize| {
                    let (source, row) = find(row);
                    source.blocks(row, k, quant)
                };
                blocks(quant, (n, k), w, &row, &release)?
            }
            PartFormat::Bytes => {
                let read = |row: usize, out: &mut [f32]| {
                    let (source, row) = find(row);
                    source.read(row, out);
                };
                let packed = (!w.place().is_phantom()).then(|| Arc::new(Bytes::pack(n, k, &read, &release)));
                Data::Bytes(packed, ladder::current().ledger.lease(Bytes::size_of(n, k)))
            }
        };
        parts.push(Part { data, n });
    }
    let n = parts.iter().map(|p| p.n).sum();
    let weight = Weight { parts: parts.into(), k, n, like: w.put(&[0.0], &[1])?, floats: None };
    if w.format() == WeightFormat::FileAndActivations { weight.with_floats(w.place()) } else { Ok(weight) }
}

fn float<T: Elem>(
    n: usize,
    k: usize,
    w: &Weights,
    read: &(dyn Fn(usize, &mut [T]) + Sync),
    release: &dyn Fn(),
) -> Result<Data> {
    if w.place().device().is_gpu() {
        let dims = [n, k];
        return Ok(Data::Rows(Tensor::upload(&dims, T::TYPE, w.place(), || {
            let mut all = vec![T::default(); n * k];
            all.chunks_mut(k.max(1)).enumerate().for_each(|(row, out)| read(row, out));
            release();
            host(all, &dims)
        })?));
    }
    let dims = [packed_len::<T>(k, n)];
    Ok(Data::Panels(Tensor::upload(&dims, T::TYPE, w.place(), || panels::<T>(n, k, read, release))?))
}

fn blocks<'a>(
    quant: Quant,
    (n, k): (usize, usize),
    w: &Weights,
    row: &(dyn Fn(usize) -> Cow<'a, [u8]> + Sync),
    release: &dyn Fn(),
) -> Result<Data> {
    if w.place().device().is_gpu() {
        return raw(quant, (n, k), w, row, release);
    }
    let packed = if w.place().is_phantom() { None } else { Some(Arc::new(Packed::pack(quant, n, k, row, release)?)) };
    let bytes = packed.as_ref().map_or_else(|| Packed::size_of(quant, n, k), |p| p.size());
    Ok(Data::Blocks(quant, packed, ladder::current().ledger.lease(bytes)))
}

/// Blocks in the file's layout, row after row.
fn raw<'a>(
    quant: Quant,
    (n, k): (usize, usize),
    w: &Weights,
    row: &(dyn Fn(usize) -> Cow<'a, [u8]> + Sync),
    release: &dyn Fn(),
) -> Result<Data> {
    let bytes = quant
        .bytes(k)
        .ok_or_else(|| Error::call("linear", format!("rows of {k} elements are not whole blocks of {quant}")))?;
    let dims = [n, bytes];
    let tensor = Tensor::upload(&dims, DType::U8, w.place(), || {
        let mut all = vec![0u8; n * bytes];
        let per_pass = (PASS_BYTES / bytes.max(1)).max(1);
        for (i, out) in all.chunks_mut(per_pass * bytes.max(1)).enumerate() {
            threads::for_each_chunk_mut(out, bytes.max(1), |j, out| out.copy_from_slice(&row(i * per_pass + j)));
            release();
        }
        host(all, &dims)
    })?;
    Ok(Data::Raw(quant, tensor))
}

/// Packs panels, `[ceil(rows / PANEL)][k][PANEL]`, with rows in pairs in bf16, and zeros after the
/// last row. The result starts on a cache line, unlike an allocation: tiles that cross cache lines
/// load at half the speed.
pub(super) fn panels<T: Elem>(
    rows: usize,
    k: usize,
    read: &(dyn Fn(usize, &mut [T]) + Sync),
    release: &dyn Fn(),
) -> Result<candle_core::Tensor> {
    let (len, padding) = (packed_len::<T>(k, rows), LINE / size_of::<T>());
    let mut all = vec![T::default(); len + padding];
    let first = all.as_ptr().align_offset(LINE).min(padding);
    if k > 0 {
        fill(&mut all[first..][..len], rows, k, read, release);
    }
    Ok(host(all, &[len + padding])?.narrow(0, first, len)?)
}

fn fill<T: Elem>(out: &mut [T], rows: usize, k: usize, read: &(dyn Fn(usize, &mut [T]) + Sync), release: &dyn Fn()) {
    let len = panel_len::<T>(k);
    let per_pass = (PASS_BYTES / (len * size_of::<T>())).max(1);
    for (i, out) in out.chunks_mut(per_pass * len).enumerate() {
        // A few panels per task share one row buffer.
        let per_task = out.len().div_ceil(len).div_ceil(8 * threads::count());
        threads::for_each_chunk_mut(out, per_task * len, |task, out| {
            let mut row = vec![T::default(); k];
            for (panel, out) in out.chunks_mut(len).enumerate() {
                let first = (i * per_pass + task * per_task + panel) * PANEL;
                for c in 0..PANEL.min(rows - first) {
                    read(first + c, &mut row);
                    row.iter().enumerate().for_each(|(i, v)| out[place::<T>(i, c)] = *v);
                }
            }
        });
        release();
    }
}
