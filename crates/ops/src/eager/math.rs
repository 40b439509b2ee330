//! Arithmetic, products, selection and reductions.

use super::{Array, Call, run};
use crate::{DType, Device, Error, Result};
use candle_core::Tensor as Candle;

/// A function of each element.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Unary {
    Sin,
    Cos,
    /// The natural logarithm.
    Log,
    Sqr,
    Sqrt,
    /// 1 / x.
    Recip,
    Exp,
    /// x to this power.
    Pow(f64),
}

/// An operation on pairs of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
}

/// What a reduction computes along an axis. `ArgMax` and `ArgMin` give the index of the first such
/// element, in u32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Reduction {
    Sum,
    Mean,
    Max,
    Min,
    ArgMax,
    ArgMin,
}

impl Unary {
    pub(super) fn name(self) -> &'static str {
        match self {
            Unary::Sin => "sin",
            Unary::Cos => "cos",
            Unary::Log => "log",
            Unary::Sqr => "sqr",
            Unary::Sqrt => "sqrt",
            Unary::Recip => "recip",
            Unary::Exp => "exp",
            Unary::Pow(_) => "pow",
        }
    }

    fn of(self, x: &Candle) -> candle_core::Result<Candle> {
        match self {
            Unary::Sin => x.sin(),
            Unary::Cos => x.cos(),
            Unary::Log => x.log(),
            Unary::Sqr => x.sqr(),
            Unary::Sqrt => x.sqrt(),
            Unary::Recip => x.recip(),
            Unary::Exp => x.exp(),
            Unary::Pow(p) => x.powf(p),
        }
    }
}

impl Binary {
    pub(super) fn name(self) -> &'static str {
        match self {
            Binary::Add => "add",
            Binary::Sub => "sub",
            Binary::Mul => "mul",
            Binary::Div => "div",
        }
    }
}

impl Reduction {
    pub(super) fn name(self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Mean => "mean",
            Reduction::Max => "max",
            Reduction::Min => "min",
            Reduction::ArgMax => "argmax",
            Reduction::ArgMin => "argmin",
        }
    }
}

impl Array {
    /// A function of each element; only floats have them.
    pub fn unary(&self, function: Unary) -> Result<Array> {
        let op = function.name();
        self.check_float(op)?;
        self.run(op, &[], self.dims(), self.dtype, || function.of(&self.candle))
    }

    /// An operation on two arrays of one shape.
    pub fn binary(&self, with: Binary, other: &Array) -> Result<Array> {
        if self.dims() != other.dims() {
            let what =
                format!("the shapes {:?} and {:?} differ; use broadcast_{}", self.dims(), other.dims(), with.name());
            return Err(Error::call(with.name(), what));
        }
        self.broadcast(with, other)
    }

    /// An operation on two arrays; axes of length 1 are repeated, and missing first axes added.
    pub fn broadcast(&self, with: Binary, other: &Array) -> Result<Array> {
        let op = with.name();
        if self.dtype != other.dtype {
            let what = format!("one array is {}, the other {}: convert one with to_dtype", self.dtype, other.dtype);
            return Err(Error::call(op, what));
        }
        // Candle would panic.
        if with == Binary::Div && !self.dtype.is_float() && other.to_f64()?.contains(&0.0) {
            return Err(Error::call(op, "an integer cannot be divided by zero"));
        }
        let dims = broadcast_dims(op, self.dims(), other.dims())?;
        let (a, b) = (&self.candle, &other.candle);
        self.run(op, &[other], &dims, self.dtype, || match with {
            Binary::Add => a.broadcast_add(b),
            Binary::Sub => a.broadcast_sub(b),
            Binary::Mul => a.broadcast_mul(b),
            Binary::Div => a.broadcast_div(b),
        })
    }

    /// An operation on each element and a number.
    pub fn scalar(&self, with: Binary, number: f64) -> Result<Array> {
        let op = with.name();
        // In integers Candle would round the number without a word.
        if !self.dtype.is_float() && (number.fract() != 0.0 || !self.dtype.holds(number)) {
            let what = format!("{number} is not a number that {} can hold: convert with to_dtype first", self.dtype);
            return Err(Error::call(op, what));
        }
        let one = Array::full(number, &[1], self.dtype, &self.on)?;
        let dims = self.dims().to_vec();
        // A scalar array has no axis; the result of broadcasting has one.
        self.broadcast(with, &one)?.reshape(&dims)
    }

    /// The matrix product over the last two axes; the axes before them must be equal.
    pub fn matmul(&self, other: &Array) -> Result<Array> {
        self.check_float("matmul")?;
        let (a, b) = (self.dims(), other.dims());
        let (rank, fits) = (a.len(), a.len() == b.len() && a.len() >= 2 && self.dtype == other.dtype);
        if !fits || a[..rank - 2] != b[..rank - 2] || a[rank - 1] != b[rank - 2] {
            let what = format!("{a:?} in {} and {b:?} in {} cannot be multiplied", self.dtype, other.dtype);
            return Err(Error::call("matmul", what));
        }
        let mut dims = a.to_vec();
        dims[rank - 1] = b[rank - 1];
        self.run("matmul", &[other], &dims, self.dtype, || {
            self.candle.contiguous()?.matmul(&other.candle.contiguous()?)
        })
    }

    /// `a` where this array is not 0, else `b`. This array holds integers.
    pub fn where_cond(&self, a: &Array, b: &Array) -> Result<Array> {
        if self.dtype.is_float() || a.dtype != b.dtype {
            let what = format!(
                "takes a condition of integers and two arrays of one dtype, not {}, {} and {}",
                self.dtype, a.dtype, b.dtype
            );
            return Err(Error::call("where_cond", what));
        }
        if self.dims() != a.dims() || a.dims() != b.dims() {
            let what = format!("the shapes {:?}, {:?} and {:?} differ", self.dims(), a.dims(), b.dims());
            return Err(Error::call("where_cond", what));
        }
        self.run("where_cond", &[a, b], self.dims(), a.dtype, || self.candle.where_cond(&a.candle, &b.candle))
    }

    /// The entries of an axis at `indices`, a list of integers.
    pub fn index_select(&self, indices: &Array, axis: usize) -> Result<Array> {
        let most = self.axis("index_select", axis)?;
        let [count] = *indices.dims() else {
            return Err(Error::call("index_select", format!("indices are a list, not {:?}", indices.dims())));
        };
        if indices.dtype.is_float() {
            return Err(Error::call("index_select", format!("indices are integers, not {}", indices.dtype)));
        }
        // Only the CPU's kernel checks them, and it takes 2^32 - 1 for "no entry".
        if let Some(i) = indices.to_f64()?.into_iter().find(|i| *i < 0.0 || *i >= most as f64) {
            return Err(Error::call(
                "index_select",
                format!("index {i} is outside of axis {axis}, which has {most} entries"),
            ));
        }
        let mut dims = self.dims().to_vec();
        dims[axis] = count;
        self.run("index_select", &[indices], &dims, self.dtype, || {
            self.candle.contiguous()?.index_select(&indices.candle.contiguous()?, axis)
        })
    }

    /// A reduction along an axis, which stays with length 1 if `keep`, else disappears.
    pub fn reduce(&self, reduction: Reduction, axis: usize, keep: bool) -> Result<Array> {
        let op = reduction.name();
        if self.axis(op, axis)? == 0 && !matches!(reduction, Reduction::Sum) {
            return Err(Error::call(op, format!("axis {axis} of {:?} is empty", self.dims())));
        }
        if reduction == Reduction::Mean {
            self.check_float(op)?;
        }
        let dtype = match reduction {
            Reduction::ArgMax | Reduction::ArgMin => DType::U32,
            _ => self.dtype,
        };
        let mut dims = self.dims().to_vec();
        dims[axis] = 1;
        let kept = self.run(op, &[], &dims, dtype, || {
            let x = self.candle.contiguous()?;
            match reduction {
                Reduction::Sum => x.sum_keepdim(axis),
                Reduction::Mean => x.mean_keepdim(axis),
                Reduction::Max => x.max_keepdim(axis),
                Reduction::Min => x.min_keepdim(axis),
                Reduction::ArgMax => x.argmax_keepdim(axis),
                Reduction::ArgMin => x.argmin_keepdim(axis),
            }
        })?;
        if keep { Ok(kept) } else { kept.squeeze(axis) }
    }

    /// A reduction over all elements, to an array without axes.
    pub fn reduce_all(&self, reduction: Reduction) -> Result<Array> {
        self.reshape(&[self.len()])?.reduce(reduction, 0, false)
    }

    fn run(
        &self,
        op: &'static str,
        others: &[&Array],
        dims: &[usize],
        dtype: DType,
        f: impl FnOnce() -> candle_core::Result<Candle> + Send,
    ) -> Result<Array> {
        let inputs: Vec<&Array> = [self].into_iter().chain(others.iter().copied()).collect();
        run(&Call { op, inputs: &inputs, dims: dims.to_vec(), dtype }, &self.on, f)
    }

    fn check_float(&self, op: &'static str) -> Result<()> {
        match self.dtype.is_float() {
            true if self.dtype == DType::F64 && matches!(self.on.device(), Device::Metal(_)) => {
                Err(Error::call(op, "Metal has no f64: convert with to_dtype"))
            }
            true => Ok(()),
            false => Err(Error::call(op, format!("takes floats, not {}: convert with to_dtype", self.dtype))),
        }
    }

    /// The length of an axis, which must exist.
    pub(super) fn axis(&self, op: &'static str, axis: usize) -> Result<usize> {
        let missing = || Error::call(op, format!("{:?} has no axis {axis}", self.dims()));
        self.dims().get(axis).copied().ok_or_else(missing)
    }
}

fn broadcast_dims(op: &'static str, a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    let rank = a.len().max(b.len());
    let at = |dims: &[usize], i: usize| (i + dims.len()).checked_sub(rank).map_or(1, |i| dims[i]);
    let both = |i| match (at(a, i), at(b, i)) {
        (x, y) if x == y || y == 1 => Some(x),
        (1, y) => Some(y),
        _ => None,
    };
    (0..rank)
        .map(both)
        .collect::<Option<_>>()
        .ok_or_else(|| Error::call(op, format!("{a:?} and {b:?} cannot be broadcast together")))
}
