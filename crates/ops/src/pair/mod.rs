//! Rows of several matrices combined by index, for scores of pairs        in f32, one rounding to T
//!
//! With a, b, c the rows that the indices of a result's row select:
//!
//! - relu sum: max(a + b + c, 0) · product: a ∘ b
//! - dot: a · b · score: max(a + b, 0) · c + offset; both stay in f32, one number per row
//!
//! A score is that of an MLP whose last layer is folded into c: max(a + b, 0)·Wᵀ·pᵀ with c = p·W. So
//! the hidden layer of a pair, which is wide, is never stored.

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
use crate::{DType, Error, Result, Tensor};

/// A matrix `[.., n]`, and the index of its row for each row of the result, u32 `[rows]`. An index
/// beyond it is an error on the CPU and must not be sent to a GPU.
pub type Rows<'a> = (&'a Tensor, &'a Tensor);

/// Most matrices of a call.
const MAX_OPERANDS: usize = 3;

/// max(a + b, 0), or of three rows, `[rows, n]`.
pub fn relu_sum(operands: &[Rows<'_>]) -> Result<Tensor> {
    run(Combine::ReluSum, operands, None)
}

/// The product of two rows, element by element, `[rows, n]`.
pub fn product(a: Rows<'_>, b: Rows<'_>) -> Result<Tensor> {
    run(Combine::Product, &[a, b], None)
}

/// The dot product of two rows, f32 `[rows, 1]`.
pub fn dot(a: Rows<'_>, b: Rows<'_>) -> Result<Tensor> {
    run(Combine::Dot, &[a, b], None)
}

/// The dot product of max(a + b, 0) and c, plus the offset of c's row, f32 `[.., 1]`; f32 `[rows,
/// 1]`.
pub fn score(a: Rows<'_>, b: Rows<'_>, c: Rows<'_>, offsets: &Tensor) -> Result<Tensor> {
    run(Combine::Score, &[a, b, c], Some(offsets))
}

/// What becomes of the rows; the GPU kernels have the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Combine {
    ReluSum,
    Product,
    Dot,
    Score,
}

impl Combine {
    /// Whether a row becomes one number.
    fn reduces(self) -> bool {
        matches!(self, Combine::Dot | Combine::Score)
    }
}

fn run(combine: Combine, operands: &[Rows<'_>], offsets: Option<&Tensor>) -> Result<Tensor> {
    let Some((first, ids)) = operands.first() else { return Err(Error::call("pair", "no rows")) };
    let fits = |(t, i): &Rows<'_>| {
        let is_matrix = t.dims().len() == 2 && t.dims().last() == first.dims().last() && t.dtype() == first.dtype();
        is_matrix && t.dims()[0] > 0 && i.dims().len() == 1 && i.dims() == ids.dims() && i.dtype() == DType::U32
    };
    let of_last = operands.last().map_or(0, |(t, _)| t.dims().first().copied().unwrap_or(0));
    let offset_fits = |t: &Tensor| t.dims() == [of_last, 1] && t.dtype() == DType::F32;
    if operands.len() > MAX_OPERANDS || !operands.iter().all(fits) || !offsets.is_none_or(offset_fits) {
        let what = "matrices must have rows of one width and dtype, indices must be u32 of one length, and offsets \
                    f32, one per row of the last matrix";
        return Err(Error::call("pair", what));
    }
    let operands = operands.iter().map(|(t, i)| ((*t).clone(), (*i).clone())).collect();
    ladder::run(PairOp { combine, operands, offsets: offsets.cloned() })
}

pub(crate) struct PairOp {
    combine: Combine,
    /// At least one: matrices and indices.
    operands: Vec<(Tensor, Tensor)>,
    offsets: Option<Tensor>,
}

impl PairOp {
    fn rows(&self) -> usize {
        self.operands[0].1.dims()[0]
    }

    fn n(&self) -> usize {
        self.operands[0].0.dims()[1]
    }
}

impl Op for PairOp {
    const NAME: &'static str = "pair";

    fn x(&self) -> &Tensor {
        &self.operands[0].0
    }

    fn out(&self) -> (Vec<usize>, DType) {
        match self.combine.reduces() {
            true => (vec![self.rows(), 1], DType::F32),
            false => (vec![self.rows(), self.n()], self.x().dtype()),
        }
    }

    fn detail(&self) -> String {
        let what = match self.combine {
            Combine::ReluSum => "relu sum",
            Combine::Product => "product",
            Combine::Dot => "dot",
            Combine::Score => "score",
        };
        format!("{what} of {} rows of {}", self.operands.len(), self.n())
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Composed: the rows of each matrix in T and in f32, and two steps of their combination.
        let rows = self.rows() * self.n();
        if rung == Rung::Composed { rows * (self.operands.len() * 8 + 2 * 4) } else { 0 }
    }

    own_kernels!(cpu, cuda, metal, composed);

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let operands = self.operands.iter().map(|(t, i)| Ok((to(t)?, to(i)?))).collect::<Result<_>>()?;
        Ok(PairOp { combine: self.combine, operands, offsets: self.offsets.as_ref().map(to).transpose()? })
    }
}
