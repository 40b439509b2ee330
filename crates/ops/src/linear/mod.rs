//! y = act(x · Wᵀ + b) + residual        everything in f32, one rounding to T
//!
//! Matrix products (GEMM; GEMV for one row). The weight is packed once, when it is loaded, in the
//! layout that this device's kernel reads. There is no second copy, unless
//! [`WeightFormat::FileAndActivations`](crate::WeightFormat::FileAndActivations) asks for one.

mod cases;
mod composed;
mod cpu;
#[cfg(cuda)]
pub(crate) mod cuda;
mod epilogue;
mod large_cases;
mod linear_norm;
#[cfg(metal)]
pub(crate) mod metal;
mod pack;
#[cfg(any(cuda, metal))]
mod product;
mod reference;
mod tiling;
mod weight;

pub(crate) use cases::{cases, cases_of_cuda};
pub(crate) use cpu::product;
pub(crate) use epilogue::EpilogueParams;
pub(crate) use weight::Weight;

use crate::ladder::{self, Op, Rung, own_kernels};
use crate::weights::{Raw, Stored};
use crate::{Activation, DType, Error, Result, Tensor, Weights, embed};
use pack::{Order, Source, pack};
use std::borrow::Cow;
use std::ops::Range;

/// A linear layer: a weight matrix packed for this device, with its bias and activation.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Weight,
    bias: Option<Tensor>,
    activation: Activation,
}

impl Linear {
    /// Weight, bias and activation, for ops with an epilogue of their own.
    pub(crate) fn parts(&self) -> (&Weight, Option<&Tensor>, Activation) {
        (&self.weight, self.bias.as_ref(), self.activation)
    }

    /// Loads `weight` `[n, k]` and, if `bias` is set, `bias` `[n]`.
    pub fn load(w: &Weights, k: usize, n: usize, bias: bool) -> Result<Linear> {
        Linear::stacked(std::slice::from_ref(w), k, n, bias)
    }

    /// Several matrices of `n` rows each as one, so that layers with the same input are one
    /// product.
    pub fn stacked(parts: &[Weights], k: usize, n: usize, bias: bool) -> Result<Linear> {
        Linear::joined(&parts.iter().map(|w| (w.clone(), n)).collect::<Vec<_>>(), k, bias)
    }

    /// Several matrices, each with its number of rows, as one (query, key and value).
    pub fn joined(parts: &[(Weights, usize)], k: usize, bias: bool) -> Result<Linear> {
        let matrices: Vec<_> = parts.iter().map(|(w, n)| (w, "weight", vec![*n, k])).collect();
        let mut linear = Linear::of(&matrices)?;
        if bias {
            let raws = parts.iter().map(|(w, n)| Ok((w.raw("bias", &[*n])?, *n))).collect::<Result<Vec<_>>>()?;
            linear.bias = Some(first(parts)?.0.join(&raws)?);
        }
        Ok(linear)
    }

    /// Loads weights by name and shape; the axes after the first count as one: `[n, channels,
    /// width]` of a convolution over patches that are rows already. Without a bias;
    /// [`Linear::with_bias`] adds one.
    pub fn shaped(parts: &[(Weights, &str)], dims: &[usize]) -> Result<Linear> {
        Linear::of(&parts.iter().map(|(w, name)| (w, *name, dims.to_vec())).collect::<Vec<_>>())
    }

    fn of(parts: &[(&Weights, &str, Vec<usize>)]) -> Result<Linear> {
        // Shapes from the configuration are unlimited, and their product might overflow; those in
        // the file are limited by its size.
        let mut raws = Vec::new();
        for (w, name, dims) in parts {
            let raw = w.raw(name, dims)?;
            let [n, ref inner @ ..] = **dims else { return Err(Error::call("linear", "a weight has no axes")) };
            raws.push((raw, n, inner.iter().product::<usize>()));
        }
        let k = raws.first().map_or(0, |(_, _, k)| *k);
        if k == 0 || raws.iter().any(|(_, n, other)| *n == 0 || *other != k) {
            let sizes: Vec<_> = raws.iter().map(|(_, n, k)| format!("{n} × {k}")).collect();
            let what =
                format!("a matrix of {} is empty, or its parts differ in the number of inputs", sizes.join(" and "));
            return Err(Error::call("linear", what));
        }
        let sources: Vec<_> = raws
            .into_iter()
            .zip(parts)
            .map(|((raw, n, _), (w, name, _))| Source { raw, w, name, n, order: Order::From(0) })
            .collect();
        let (w, name, _) = first(parts)?;
        let weight = match parts.len() {
            1 => w.laid_out(name, || pack(&sources, k, w))?,
            _ => pack(&sources, k, w)?,
        };
        Linear::plain(weight)
    }

    /// A matrix with its rows in another order: row i is row `order(i)` of the file, and the bias
    /// likewise.
    pub fn reordered(
        w: &Weights,
        k: usize,
        n: usize,
        order: &(dyn Fn(usize) -> usize + Sync),
        bias: bool,
    ) -> Result<Linear> {
        let raw = w.raw("weight", &[n, k])?;
        if k == 0 || n == 0 || (0..n).any(|row| order(row) >= n) {
            return Err(Error::call(
                "linear",
                format!("the row order of a matrix {n} × {k} names a row that does not exist"),
            ));
        }
        let source = Source { raw, w, name: "weight", n, order: Order::By(order) };
        let mut linear = Linear::plain(pack(&[source], k, w)?)?;
        if bias {
            let values = w.values("bias", &[n])?;
            linear.bias = Some(w.put(&(0..n).map(|row| values[order(row)]).collect::<Vec<_>>(), &[n])?);
        }
        Ok(linear)
    }

    /// The rows `rows` of a matrix `[n, k]`, in this order, such as a few tokens of a vocabulary.
    pub fn select_rows(w: &Weights, k: usize, n: usize, rows: &[usize]) -> Result<Linear> {
        let raw = w.raw("weight", &[n, k])?;
        if k == 0 || rows.is_empty() || rows.iter().any(|row| *row >= n) {
            return Err(Error::call("linear", format!("cannot select rows {rows:?} of a matrix {n} × {k}")));
        }
        let order = |row: usize| rows[row];
        let source = Source { raw, w, name: "weight", n: rows.len(), order: Order::By(&order) };
        Linear::plain(pack(&[source], k, w)?)
    }

    /// A matrix `[n, k]` that the model computes when it loads, such as a factor of a low-rank
    /// update.
    pub fn from_values(w: &Weights, values: &[f32], k: usize, n: usize) -> Result<Linear> {
        if values.is_empty() || n.checked_mul(k) != Some(values.len()) {
            return Err(Error::call("linear", format!("{} values are not a matrix {n} × {k}", values.len())));
        }
        let bytes = Cow::Owned(values.iter().flat_map(|v| v.to_le_bytes()).collect());
        let raw = Raw { stored: Stored::Float(DType::F32), dims: vec![n, k], bytes };
        // In any order other than the file's, so that nothing looks for the values in the file.
        let source = Source { raw, w, name: "", n, order: Order::By(&|row| row) };
        Linear::plain(pack(&[source], k, w)?)
    }

    /// The columns of part `part` of `parts` equal ones of a matrix `[n, parts · k]`: the product of
    /// joined inputs is the sum of the parts' products. Without a bias.
    pub fn part(w: &Weights, k: usize, n: usize, (part, parts): (usize, usize)) -> Result<Linear> {
        let columns = parts.checked_mul(k).filter(|columns| *columns > 0 && part < parts);
        let columns =
            columns.ok_or_else(|| Error::call("linear", format!("no part {part} of {parts} of {k} inputs")))?;
        let raw = w.raw("weight", &[n, columns])?;
        // A row of the file is a row of `k` elements for each part.
        let order = |row: usize| row * parts + part;
        Linear::plain(pack(&[Source { raw, w, name: "weight", n, order: Order::By(&order) }], k, w)?)
    }

    /// A matrix that the file holds transposed, `[k, n]`.
    pub fn transposed(w: &Weights, k: usize, n: usize, bias: bool) -> Result<Linear> {
        let mut linear = Linear::from_rows(w, "weight", &[k, n], 0..k, true)?;
        if bias {
            linear.bias = Some(w.tensor("bias", &[n])?);
        }
        Ok(linear)
    }

    /// Rows `rows` of the tensor `name` `[.., ..]`; `transposed`: its rows are inputs and not
    /// outputs.
    pub(crate) fn from_rows(
        w: &Weights,
        name: &str,
        dims: &[usize; 2],
        rows: Range<usize>,
        transposed: bool,
    ) -> Result<Linear> {
        let raw = w.raw(name, dims)?;
        if rows.is_empty() || dims[1] == 0 || rows.end > dims[0] {
            return Err(Error::call("linear", format!("cannot take rows {rows:?} of a matrix {dims:?}")));
        }
        let (source, k) = match transposed {
            true => (Source { raw, w, name, n: dims[1], order: Order::Transposed(rows.start, dims[1]) }, rows.len()),
            false => (Source { raw, w, name, n: rows.len(), order: Order::From(rows.start) }, dims[1]),
        };
        Linear::plain(pack(&[source], k, w)?)
    }

    fn plain(weight: Weight) -> Result<Linear> {
        Ok(Linear { weight, bias: None, activation: Activation::None })
    }

    /// Embedding lookup in the matrix: `scale` · row of each of `ids` `[tokens]`, plus the rows of
    /// a second table if given. With tied embeddings, the token table is also the last layer's
    /// weight, and is stored once.
    pub fn embed(&self, ids: &Tensor, scale: f32, also: Option<(&Tensor, &Tensor)>) -> Result<Tensor> {
        embed::lookup(&self.weight, ids, scale, also)
    }

    /// Sets the bias `[outputs]`, for one that has another name in the file.
    pub fn with_bias(self, bias: Tensor) -> Result<Linear> {
        if bias.dims() != [self.weight.n] || bias.dtype() != self.weight.dtype() {
            let what =
                format!("a bias of {:?} in {} does not fit {} outputs", bias.dims(), bias.dtype(), self.weight.n);
            return Err(Error::call("linear", what));
        }
        Ok(Linear { bias: Some(bias), ..self })
    }

    /// Width of the result.
    pub fn outputs(&self) -> usize {
        self.weight.n
    }

    /// Width of the input.
    pub fn inputs(&self) -> usize {
        self.weight.k
    }

    /// Sets the activation.
    pub fn with(self, activation: Activation) -> Linear {
        Linear { activation, ..self }
    }

    /// act(x · Wᵀ + b) over the last axis of `x`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(x, None)
    }

    /// act(x · Wᵀ + b) + residual, with the sum in the epilogue.
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.run(x, Some(residual))
    }

    fn run(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        ladder::run(self.op(x, residual)?)
    }

    /// Checks the arguments and makes the call.
    fn op(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<LinearOp> {
        let (k, dtype) = (self.weight.k, self.weight.dtype());
        if x.dims().last() != Some(&k) || x.dtype() != dtype {
            let what = format!("x {:?} in {} does not fit a weight with {k} inputs for {dtype}", x.dims(), x.dtype());
            return Err(Error::call("linear", what));
        }
        let op = LinearOp {
            x: x.clone(),
            weight: self.weight.clone(),
            bias: self.bias.clone(),
            activation: self.activation,
            residual: residual.cloned(),
        };
        let (dims, dtype) = op.out();
        if let Some(r) = residual.filter(|r| r.dims() != dims || r.dtype() != dtype) {
            let what = format!("a residual {:?} in {} does not fit a result {dims:?} in {dtype}", r.dims(), r.dtype());
            return Err(Error::call("linear", what));
        }
        Ok(op)
    }
}

pub(crate) struct LinearOp {
    x: Tensor,
    weight: Weight,
    bias: Option<Tensor>,
    activation: Activation,
    residual: Option<Tensor>,
}

impl Op for LinearOp {
    const NAME: &'static str = "linear";

    fn x(&self) -> &Tensor {
        &self.x
    }

    fn out(&self) -> (Vec<usize>, DType) {
        let mut dims = self.x.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = self.weight.n;
        }
        (dims, self.x.dtype())
    }

    fn detail(&self) -> String {
        let bias = if self.bias.is_some() { " + bias" } else { "" };
        let activation = match self.activation {
            Activation::None => String::new(),
            other => format!(", {other}"),
        };
        let residual = if self.residual.is_some() { ", residual" } else { "" };
        format!("{} → {}{}{bias}{activation}{residual}", self.weight.k, self.weight.n, self.weight.formats())
    }

    fn scratch(&self, rung: Rung) -> usize {
        // The composed form keeps the product, the sums and the activation's intermediate results
        // to its end; the quick GELU and the sigmoid take four steps in f32.
        let activation = match self.activation {
            Activation::None => 0,
            Activation::QuickGelu | Activation::Sigmoid => 4 * 4 / self.x.dtype().size(),
            _ => 1,
        };
        let steps = usize::from(self.bias.is_some()) + activation + usize::from(self.residual.is_some());
        let rows = self.x.dims().iter().product::<usize>() / self.weight.k;
        let result = rows * self.weight.n * self.x.dtype().size();
        let has_epilogue = self.activation != Activation::None || self.residual.is_some();
        match rung {
            Rung::Composed => steps * result + self.weight.rows_scratch(),
            _ => self.weight.scratch(rows, has_epilogue),
        }
    }

    own_kernels!(cpu, cuda, metal, composed);

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let weight = self.weight.moved(to)?;
        let bias = self.bias.as_ref().map(to).transpose()?;
        let residual = self.residual.as_ref().map(to).transpose()?;
        Ok(LinearOp { x: to(&self.x)?, weight, bias, activation: self.activation, residual })
    }
}

fn first<T>(parts: &[T]) -> Result<&T> {
    parts.first().ok_or_else(|| Error::call("linear", "no matrices to join"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{InBlocks, Input, weights};
    use crate::launch::BLAS_WORKSPACE;
    use crate::{Device, Ladder, Place, Policy, Quant, WeightFormat};

    const K: usize = 64;
    const N: usize = 96;

    /// Scratch memory of a product of `rows` rows on CUDA, as a plan counts it: the peak less the
    /// tensors before and after it.
    fn planned_scratch_bytes(rows: usize, dtype: DType, make: impl Fn(&Place) -> Linear, has_residual: bool) -> usize {
        let place = Place::phantom(Device::Cuda(0));
        let ladder = Ladder::new(Policy::default());
        let (taken, _) = ladder.trace(|| {
            let zeros = |n: usize| Input::new(&[rows, n], dtype, move || vec![0.0; rows * n]).on(&place).unwrap();
            let (linear, x, residual) = (make(&place), zeros(K), zeros(N));
            ladder.ledger.reset_peak();
            let _y = linear.run(&x, has_residual.then_some(&residual)).unwrap();
            ladder.ledger.peak() - ladder.ledger.live()
        });
        usize::try_from(taken).unwrap()
    }

    #[test]
    fn plan_counts_the_workspace_of_products_on_cuda() {
        let floats = |dtype| {
            move |place: &Place| {
                let w = Input::new(&[N, K], dtype, || vec![0.0; N * K]);
                Linear::load(&weights(&[("weight", &w)], place), K, N, false).unwrap()
            }
        };
        for dtype in DType::FLOATS {
            let plain = floats(dtype);
            // Our own kernel computes a single row, with its sums in registers.
            assert_eq!(planned_scratch_bytes(1, dtype, plain, true), 0);
            assert_eq!(planned_scratch_bytes(2, dtype, plain, false), BLAS_WORKSPACE);
            // Sums in f32, for a second pass.
            let gelu = move |place: &Place| plain(place).with(Activation::Gelu);
            assert_eq!(planned_scratch_bytes(1000, dtype, gelu, false), BLAS_WORKSPACE + 1000 * N * 4);
            assert_eq!(planned_scratch_bytes(1000, dtype, plain, true), BLAS_WORKSPACE + 1000 * N * 4);
        }
        // cuBLASLt multiplies blocks that are dequantized to f16; other blocks need no workspace.
        let blocks = |dtype, format| {
            move |place: &Place| {
                let blocks = InBlocks::of(1, Quant::Q8_0, [N, K], || vec![0.0; N * K]);
                Linear::load(&blocks.weights(dtype, place).with_format(format), K, N, false).unwrap()
            }
        };
        let scratch = |dtype, format| planned_scratch_bytes(128, dtype, blocks(dtype, format), true);
        let (as_floats, sums) = (N * K * 2, 128 * N * 4);
        assert_eq!(scratch(DType::F16, WeightFormat::File), BLAS_WORKSPACE + as_floats + sums);
        let in_8_bits = crate::quant::activation_bytes(128, K);
        assert_eq!(scratch(DType::BF16, WeightFormat::File), in_8_bits);
        // A copy in floats needs no dequantization; q8_0 has none in bf16.
        assert_eq!(scratch(DType::F16, WeightFormat::FileAndActivations), BLAS_WORKSPACE + sums);
        assert_eq!(scratch(DType::BF16, WeightFormat::FileAndActivations), in_8_bits);
    }
}
