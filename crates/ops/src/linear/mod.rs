//! y = act(x · Wᵀ + b) + residual        products and sums in f32, everything before the one rounding to T
//!
//! The weight is packed once at load, in the layout that this device's kernel reads; it is not kept a second time.

mod cases;
mod composed;
mod cpu;
mod reference;

pub(crate) use cases::cases;
pub(crate) use cpu::{Then, product};

use crate::cpu::Isa;
use crate::ladder::{self, Op, Rung};
use crate::{Activation, DType, Error, Place, Result, Tensor, Weights};
use std::ops::Range;

/// A weight matrix ready for this device, with its bias and activation.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Weight,
    bias: Option<Tensor>,
    activation: Activation,
}

/// W, as the device's kernel wants it.
#[derive(Clone, Debug)]
pub(crate) struct Weight {
    data: Tensor,
    layout: Layout,
    k: usize,
    n: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// `[n, k]`, as in the file: what cuBLAS and Metal's product take.
    Rows,
    /// Panels of columns: see [`crate::cpu::gemm`].
    Panels,
}

impl Weight {
    /// Depth of a product.
    pub(crate) fn k(&self) -> usize {
        self.k
    }

    /// Outputs.
    pub(crate) fn n(&self) -> usize {
        self.n
    }

    pub(crate) fn dtype(&self) -> DType {
        self.data.dtype()
    }

    pub(crate) fn data(&self) -> &Tensor {
        &self.data
    }

    /// `[n, k]`, for composed forms.
    pub(crate) fn rows(&self) -> Result<candle_core::Tensor> {
        match self.layout {
            Layout::Rows => Ok(self.data.candle()?.clone()),
            Layout::Panels => cpu::unpack(self),
        }
    }

    /// Taken through `to`, which leads to the host: its kernels read panels, the device's product rows.
    pub(crate) fn moved(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Weight> {
        in_panels(&Weight { data: to(&self.data)?, ..self.clone() })
    }
}

/// The same weight on the CPU as its kernels read it.
pub(crate) fn in_panels(weight: &Weight) -> Result<Weight> {
    cpu::repack(weight.clone())
}

impl Linear {
    /// Weight, bias and activation, for ops that end a product in another way.
    pub(crate) fn parts(&self) -> (&Weight, Option<&Tensor>, Activation) {
        (&self.weight, self.bias.as_ref(), self.activation)
    }

    /// `weight` `[n, k]` and, if the configuration says `bias`, `bias` `[n]`.
    pub fn load(w: &Weights, k: usize, n: usize, bias: bool) -> Result<Linear> {
        Linear::stacked(std::slice::from_ref(w), k, n, bias)
    }

    /// Several matrices of `n` rows each as one, so that what reads the same input is one product (query, key and value).
    pub fn stacked(parts: &[Weights], k: usize, n: usize, bias: bool) -> Result<Linear> {
        let named: Vec<_> = parts.iter().map(|w| (w.clone(), "weight")).collect();
        let mut linear = Linear::shaped(&named, &[n, k])?;
        if bias {
            let raws = parts.iter().map(|w| w.raw("bias", &[n])).collect::<Result<Vec<_>>>()?;
            linear.bias = Some(cpu::join(&raws, n, &parts[0])?);
        }
        Ok(linear)
    }

    /// Weights under names of their own, and of a shape whose axes behind the first count as one: `[n, channels, width]` of a
    /// convolution over patches that are rows already. Without a bias; [`Linear::with_bias`] adds one.
    pub fn shaped(parts: &[(Weights, &str)], dims: &[usize]) -> Result<Linear> {
        let (first, _) = parts.first().ok_or_else(|| Error::call("linear", "no parts"))?;
        let [n, ref inner @ ..] = *dims else { return Err(Error::call("linear", "a weight without axes")) };
        // The file's shapes are held by its size; the configuration's are not, and their product might not fit.
        let raws = parts.iter().map(|(w, name)| w.raw(name, dims)).collect::<Result<Vec<_>>>()?;
        let k = inner.iter().product::<usize>();
        if k == 0 || n == 0 {
            return Err(Error::call("linear", format!("a matrix of {n} × {k} holds nothing")));
        }
        Ok(Linear { weight: cpu::pack(&raws, k, n, first)?, bias: None, activation: Activation::None })
    }

    /// Rows `rows` of the tensor `name` `[.., ..]`; `turned`: its rows are inputs and not outputs.
    pub(crate) fn from_rows(
        w: &Weights,
        name: &str,
        dims: &[usize; 2],
        rows: Range<usize>,
        turned: bool,
    ) -> Result<Linear> {
        let raw = w.raw(name, dims)?;
        if rows.is_empty() || dims[1] == 0 || rows.end > dims[0] {
            return Err(Error::call("linear", format!("rows {rows:?} of {dims:?}")));
        }
        Ok(Linear { weight: cpu::pack_rows(&raw, dims[1], rows, turned, w)?, bias: None, activation: Activation::None })
    }

    /// The same with this bias `[outputs]`, instead of one under the usual name.
    pub fn with_bias(self, bias: Tensor) -> Result<Linear> {
        if bias.dims() != [self.weight.n] || bias.dtype() != self.weight.data.dtype() {
            let what = format!("a bias of {:?} in {} for {} outputs", bias.dims(), bias.dtype(), self.weight.n);
            return Err(Error::call("linear", what));
        }
        Ok(Linear { bias: Some(bias), ..self })
    }

    /// Width of a result.
    pub fn outputs(&self) -> usize {
        self.weight.n
    }

    /// The same with an activation behind it.
    pub fn with(self, activation: Activation) -> Linear {
        Linear { activation, ..self }
    }

    /// act(x · Wᵀ + b) over the last axis of `x`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(x, None)
    }

    /// act(x · Wᵀ + b) + residual, without a pass of its own for the sum.
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.run(x, Some(residual))
    }

    fn run(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let Weight { k, data, .. } = &self.weight;
        if x.dims().last() != Some(k) || x.dtype() != data.dtype() {
            let what = format!("x {:?} in {} against a weight of depth {k} in {}", x.dims(), x.dtype(), data.dtype());
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
            let what = format!("a residual {:?} in {} for a result {dims:?} in {dtype}", r.dims(), r.dtype());
            return Err(Error::call("linear", what));
        }
        ladder::run(op)
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
        format!("{} → {}{bias}{activation}{residual}", self.weight.k, self.weight.n)
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Composed keeps the product, the sums and what the activation makes until the last of them is the result; the
        // quick GELU and the sigmoid take four steps in f32.
        let activation = match self.activation {
            Activation::None => 0,
            Activation::QuickGelu | Activation::Sigmoid => 4 * 4 / self.x.dtype().size(),
            _ => 1,
        };
        let steps = usize::from(self.bias.is_some()) + activation + usize::from(self.residual.is_some());
        let result = self.x.dims().iter().product::<usize>() / self.weight.k * self.weight.n * self.x.dtype().size();
        if rung == Rung::Composed { steps * result } else { 0 }
    }

    fn cpu(&self, isa: Isa) -> Result<candle_core::Tensor> {
        cpu::run(self, isa)
    }

    fn composed(&self) -> Result<candle_core::Tensor> {
        composed::run(self)
    }

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let weight = self.weight.moved(to)?;
        let bias = self.bias.as_ref().map(to).transpose()?;
        let residual = self.residual.as_ref().map(to).transpose()?;
        Ok(LinearOp { x: to(&self.x)?, weight, bias, activation: self.activation, residual })
    }
}

/// The layout that kernels in `place` read.
fn layout_in(place: &Place) -> Layout {
    if place.device().is_gpu() { Layout::Rows } else { Layout::Panels }
}
