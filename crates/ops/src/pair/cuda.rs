//! Launches `kernel.cu`: a warp per row, which reads 16 bytes at once if all rows are aligned.

use super::{MAX_OPERANDS, PairOp};
use crate::Result;
use crate::ladder::Op;
use crate::launch::cuda::{Binary, Call, Grid, Kernel, View, binary};
use crate::launch::params;

const BINARY: Binary = binary!("pair");

/// Rows of a block.
const WARPS: usize = 4;

pub(super) fn run(op: &PairOp) -> Result<candle_core::Tensor> {
    let (rows, n, run) = (op.rows(), op.n(), 16 / op.x().dtype().size());
    let open = |(matrix, ids): &(crate::Tensor, crate::Tensor)| {
        let (matrix, ids) = (View::of(matrix)?, View::whole(ids)?);
        let shape = matrix.rows()?;
        Ok((matrix, ids, shape))
    };
    let open = op.operands.iter().map(open).collect::<Result<Vec<_>>>()?;
    let offsets = op.offsets.as_ref().map(View::whole).transpose()?;
    let is_aligned = open.iter().all(|(m, _, shape)| [m.start, shape.stride, n].iter().all(|i| i.is_multiple_of(run)));
    let kind = if is_aligned { "aligned" } else { "unaligned" };
    let x = &open[0].0;
    let (dims, dtype) = op.out();
    let y = Call::alloc(x, dims.iter().product(), dtype)?;
    let call = Call::new(x, &Kernel::new(BINARY, format!("pair_{kind}_{}", op.x().dtype())))?;
    let call = (0..MAX_OPERANDS).fold(call, |call, i| match open.get(i) {
        Some((matrix, ids, shape)) => call.input(matrix).input(ids).u32(shape.rows).u32(shape.stride),
        None => call.optional_input(None).optional_input(None).u32(0).u32(0),
    });
    call.optional_input(offsets.as_ref())
        .made(&y)
        .numbers(&params![rows, n, op.combine as usize])
        .run(Grid::of(rows.div_ceil(WARPS), 32 * WARPS))?;
    y.tensor(&dims)
}
