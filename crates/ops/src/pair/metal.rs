//! Launches `kernel.metal`: a SIMD-group per row.

use super::{MAX_OPERANDS, PairOp};
use crate::Result;
use crate::ladder::Op;
use crate::launch::metal::{Call, Grid, Kernel, View, kernels};
use crate::launch::params;

const SOURCE: &str = kernels!();

/// Rows of a threadgroup.
const SIMDS: usize = 4;

pub(super) fn run(op: &PairOp) -> Result<candle_core::Tensor> {
    let open = |(matrix, ids): &(crate::Tensor, crate::Tensor)| Ok((View::of(matrix)?, View::whole(ids)?));
    let open = op.operands.iter().map(open).collect::<Result<Vec<_>>>()?;
    let offsets = op.offsets.as_ref().map(View::whole).transpose()?;
    let (x, rows) = (&open[0].0, op.rows());
    // The fields of `Pairs` in the kernel.
    let mut params = params![rows, op.n()].to_vec();
    for i in 0..MAX_OPERANDS {
        let shape = open.get(i).unwrap_or(&open[0]).0.rows()?;
        params.extend(params![shape.rows, shape.stride]);
    }
    let kernel = Kernel::new(SOURCE, format!("pair_{}", op.x().dtype()))
        .number(op.combine as u16)
        .flag(open.len() > 2)
        .flag(offsets.is_some());
    let (dims, dtype) = op.out();
    let y = Call::alloc(x, dims.iter().product(), dtype)?;
    let mut call = Call::new(x, &kernel)?;
    for i in 0..MAX_OPERANDS {
        let (matrix, ids) = open.get(i).unwrap_or(&open[0]);
        call = call.input(matrix).input(ids);
    }
    let call = call.input_or(offsets.as_ref(), x).result(&y).result(&y).numbers(&params);
    call.run(Grid { groups: [rows.div_ceil(SIMDS), 1, 1], threads: 32 * SIMDS })?;
    y.tensor(&dims)
}
