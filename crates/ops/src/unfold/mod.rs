//! `y[t][c][j] = x[t + j − (width − 1)/2][c]`, zero beyond the ends of t's sequence    (a copy)
//!
//! The windows of a convolution over tokens (im2col). The convolution is then a [`crate::Linear`],
//! whose weight `[out, c, width]` keeps its layout in the file.

mod cases;
mod composed;
mod cpu;
#[cfg(cuda)]
mod cuda;
#[cfg(metal)]
mod metal;
mod reference;

pub(crate) use cases::cases;

use crate::ladder::{self, Op, Rung, own_kernels};
use crate::replay::{OpScope, op_scope};
use crate::{DType, Error, Result, Segments, Tensor};

/// Windows of `width` (odd) tokens around each token of `x` `[tokens, n]`: `[tokens, n · width]`.
pub fn unfold(x: &Tensor, segments: &Segments, width: usize) -> Result<Tensor> {
    let scope = op_scope();
    match *x.dims() {
        [tokens, n]
            if tokens == segments.lengths(scope).iter().map(|range| range.len()).sum::<usize>()
                && width % 2 == 1
                && n.checked_mul(width).is_some() =>
        {
            ladder::run(UnfoldOp { x: x.clone(), segments: segments.clone(), scope, width })
        }
        ref other => {
            let what = format!("x {other:?} for {} packed tokens in windows of {width}", segments.tokens());
            Err(Error::call("unfold", what))
        }
    }
}

pub(crate) struct UnfoldOp {
    x: Tensor,
    segments: Segments,
    scope: OpScope,
    width: usize,
}

impl Op for UnfoldOp {
    const NAME: &'static str = "unfold";

    fn x(&self) -> &Tensor {
        &self.x
    }

    fn out(&self) -> (Vec<usize>, DType) {
        (vec![self.x.dims()[0], self.x.dims()[1] * self.width], self.x.dtype())
    }

    fn detail(&self) -> String {
        format!("{} × {}", self.x.dims()[1], self.width)
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Composed: the windows of each sequence and their concatenation.
        let (dims, dtype) = self.out();
        if rung == Rung::Composed { 2 * dtype.size() * dims.iter().product::<usize>() } else { 0 }
    }

    own_kernels!(cpu, cuda, metal, composed);

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(UnfoldOp { x: to(&self.x)?, segments: self.segments.clone(), ..*self })
    }
}
