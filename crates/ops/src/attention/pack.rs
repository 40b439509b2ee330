//! Packs the keys and values of a head into f32 panels, for products over SIMD lanes.

use super::cpu::Scratch;
use super::kv_view::{HeadView, RowRun, widen, with_runs};
use crate::Result;
use crate::cpu::gemm::{PANEL, packed_len};
use crate::cpu::{Isa, Kernel, Lanes};

/// Keys as columns, values in panels of columns; both in f32, whatever the KV cache's format.
pub(super) fn pack(isa: Isa, views: &[HeadView<'_>; 2], scratch: &mut Scratch) -> Result<()> {
    with_runs!([k, v] = views => isa.run(Pack { k, v, scratch }))
}

struct Pack<'a, R> {
    k: &'a [R],
    v: &'a [R],
    scratch: &'a mut Scratch,
}

impl<R: RowRun> Kernel for Pack<'_, R> {
    type Output = ();
    const BF16: bool = false;

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let Scratch { keys, values, row, .. } = self.scratch;
        pack_keys::<S, _>(self.k, keys, row);
        pack_values::<S, _>(self.v, values, row);
    }
}

/// Keys as columns: `[ceil(keys / PANEL)][size][PANEL]`.
#[inline(always)]
pub(super) fn pack_keys<S: Lanes, R: RowRun>(runs: &[R], out: &mut Vec<f32>, row: &mut Vec<f32>) {
    let (keys, size) = (runs.iter().map(|k| k.len()).sum(), runs.first().map_or(0, |k| k.size()));
    out.clear();
    out.resize(packed_len::<f32>(size, keys), 0.0);
    row.resize(size, 0.0);
    for (j, k) in runs.iter().flat_map(|run| (0..run.len()).map(|i| run.kv_row(i))).enumerate() {
        widen::<S>(k, &mut row[..size]);
        let panel = &mut out[j / PANEL * size * PANEL..];
        row[..size].iter().enumerate().for_each(|(i, v)| panel[i * PANEL + j % PANEL] = *v);
    }
}

/// Values in panels of columns: `[ceil(size / PANEL)][keys][PANEL]`.
#[inline(always)]
fn pack_values<S: Lanes, R: RowRun>(runs: &[R], out: &mut Vec<f32>, row: &mut Vec<f32>) {
    let (keys, size) = (runs.iter().map(|v| v.len()).sum::<usize>(), runs.first().map_or(0, |v| v.size()));
    out.clear();
    out.resize(packed_len::<f32>(keys, size), 0.0);
    row.resize(size, 0.0);
    for (j, v) in runs.iter().flat_map(|run| (0..run.len()).map(|i| run.kv_row(i))).enumerate() {
        widen::<S>(v, &mut row[..size]);
        for (p, part) in row[..size].chunks(PANEL).enumerate() {
            out[(p * keys + j) * PANEL..][..part.len()].copy_from_slice(part);
        }
    }
}
