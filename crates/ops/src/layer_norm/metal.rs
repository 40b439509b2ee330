//! Launches `kernel.metal`: a threadgroup per row, with as many threads as the row can use and the
//! pipeline allows.

use super::LayerNormOp;
use crate::Result;
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;

const SOURCE: &str = kernels!();

pub(super) fn run(op: &LayerNormOp) -> Result<candle_core::Tensor> {
    let (x, w) = (View::of(&op.x)?, View::whole(&op.norm.weight)?);
    let residual = op.residual.as_ref().map(View::of).transpose()?;
    let bias = op.norm.bias.as_ref().map(View::whole).transpose()?;
    let [lines, added] = x.lines_with("layer_norm", residual.as_deref())?;
    let (n, rows) = (lines.size, lines.tokens * lines.heads);
    let kernel =
        Kernel::new(SOURCE, format!("layer_norm_{}", op.x.dtype())).flag(residual.is_some()).flag(bias.is_some());
    let y = Call::alloc(&x, rows * n, op.x.dtype())?;
    // The fields of `Row` in the kernel.
    let params =
        params![n, lines.heads, lines.head, lines.token, added.head, added.token, w.elements() / n, op.norm.eps];
    let call = Call::new(&x, &kernel)?;
    let threads = n.div_ceil(4).next_multiple_of(32).min(call.most_threads());
    call.input(&x)
        .input_or(residual.as_ref(), &x)
        .input(&w)
        .input_or(bias.as_ref(), &x)
        .result(&y)
        .numbers(&params)
        .run(Grid { groups: [rows, 1, 1], threads })?;
    y.tensor(op.x.dims())
}
