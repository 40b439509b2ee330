//! Launches `kernel.cu`: a warp per row if a row fits into its registers, else a block.

use super::LayerNormOp;
use crate::Result;
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary};
use crate::launch::params;

const BINARY: Binary = binary!("layer_norm");

/// Warps of a block that processes a row with each warp.
const WARPS: usize = 4;

pub(super) fn run(op: &LayerNormOp) -> Result<candle_core::Tensor> {
    let (x, w) = (View::of(&op.x)?, View::whole(&op.norm.weight)?);
    let residual = op.residual.as_ref().map(View::of).transpose()?;
    let bias = op.norm.bias.as_ref().map(View::whole).transpose()?;
    let [lines, added] = x.lines_with("layer_norm", residual.as_deref())?;
    let (n, rows) = (lines.size, lines.tokens * lines.heads);
    let run = 16 / op.x.dtype().size();
    let starts = [x.start, residual.as_ref().map_or(0, |r| r.start), w.start, bias.as_ref().map_or(0, |b| b.start)];
    let steps = [n, lines.token, lines.head, added.token, added.head];
    let in_runs = starts.iter().chain(&steps).all(|i| i.is_multiple_of(run));
    let kind = match n {
        ..=512 if in_runs => "512",
        ..=1024 if in_runs => "1024",
        ..=256 => "unaligned",
        _ => "long",
    };
    let grid = match kind {
        "long" => Grid::of(rows, n.div_ceil(4).next_multiple_of(32).min(1024)),
        _ => Grid::of(rows.div_ceil(WARPS), 32 * WARPS),
    };
    let y = Call::alloc(&x, rows * n, op.x.dtype())?;
    Call::new(&x, &Kernel::new(BINARY, format!("layer_norm_{kind}_{}", op.x.dtype())))?
        .input(&x)
        .optional_input(residual.as_ref())
        .input(&w)
        .optional_input(bias.as_ref())
        .made(&y)
        .numbers(&params![rows, n, lines.heads])
        .numbers(&params![lines.token, lines.head, added.token, added.head])
        .numbers(&params![w.elements() / n, op.norm.eps])
        .run(grid)?;
    y.tensor(op.x.dims())
}
