//! One token's window at a time. The writes are strided; they cost little compared to the product
//! that follows.

use super::UnfoldOp;
use crate::Result;
use crate::cpu::Isa;
use crate::cpu::elem::with_elem;
use crate::cpu::rows::{Reading, fill_rows};
use crate::ladder::Op;
use crate::tensor::host;

pub(super) fn run(op: &UnfoldOp, _: Isa) -> Result<candle_core::Tensor> {
    let (dims, _) = op.out();
    // The rows that the window of token t may read.
    let all = op.segments.lengths(op.scope);
    let owner: Vec<_> = all.iter().flat_map(|range| range.clone().map(move |_| range.clone())).collect();
    with_elem!("unfold", op.x.dtype(), T => {
        let x = Reading::of(&op.x)?;
        let x = x.rows::<T>()?;
        let y = fill_rows::<T>(x.rows, dims[1], 0, |t, out, _| {
            out.fill(T::default());
            for j in 0..op.width {
                let Some(from) = (t + j).checked_sub(op.width / 2).filter(|from| owner[t].contains(from)) else { continue };
                x.row(from).iter().zip(out[j..].iter_mut().step_by(op.width)).for_each(|(v, y)| *y = *v);
            }
        });
        host(y, &dims)
    })
}
