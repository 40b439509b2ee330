//! y = act(x · Wᵀ + b)        products and sums in f32, bias and activation before the one rounding to T
//!
//! The weight is packed once at load, in the layout that this device's kernel reads; it is not kept a second time.

mod cases;
mod composed;
mod cpu;
mod reference;

pub(crate) use cases::cases;

use crate::cpu::Isa;
use crate::ladder::{self, Op, Rung};
use crate::{DType, Error, Place, Result, Tensor, Weights};

/// What stands behind the product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// x·Φ(x), exactly, by erf.
    Gelu,
    /// GELU's tanh approximation, for models that were trained with it.
    GeluTanh,
    /// max(x, 0).
    Relu,
    /// x·σ(x).
    Silu,
    /// tanh(x).
    Tanh,
}

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

impl Linear {
    /// `weight` `[n, k]` and, if the configuration says `bias`, `bias` `[n]`.
    pub fn load(w: &Weights, k: usize, n: usize, bias: bool) -> Result<Linear> {
        Linear::stacked(std::slice::from_ref(w), k, n, bias)
    }

    /// Several matrices of `n` rows each as one, so that what reads the same input is one product (query, key and value).
    pub fn stacked(parts: &[Weights], k: usize, n: usize, bias: bool) -> Result<Linear> {
        let first = parts.first().ok_or_else(|| Error::call("linear", "no parts"))?;
        if k == 0 || n == 0 {
            return Err(Error::call("linear", format!("a matrix of {n} × {k} holds nothing")));
        }
        let raws = parts.iter().map(|w| w.raw("weight", &[n, k])).collect::<Result<Vec<_>>>()?;
        let weight = cpu::pack(&raws, k, n, first)?;
        let bias = bias.then(|| {
            let raws = parts.iter().map(|w| w.raw("bias", &[n])).collect::<Result<Vec<_>>>()?;
            cpu::join(&raws, n, first)
        });
        let bias = bias.transpose()?;
        Ok(Linear { weight, bias, activation: Activation::None })
    }

    /// The same with an activation behind it.
    pub fn with(self, activation: Activation) -> Linear {
        Linear { activation, ..self }
    }

    /// act(x · Wᵀ + b) over the last axis of `x`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let Weight { k, data, .. } = &self.weight;
        if x.dims().last() != Some(k) || x.dtype() != data.dtype() {
            let what = format!("x {:?} in {} against a weight of depth {k} in {}", x.dims(), x.dtype(), data.dtype());
            return Err(Error::call("linear", what));
        }
        ladder::run(LinearOp {
            x: x.clone(),
            weight: self.weight.clone(),
            bias: self.bias.clone(),
            activation: self.activation,
        })
    }
}

pub(crate) struct LinearOp {
    x: Tensor,
    weight: Weight,
    bias: Option<Tensor>,
    activation: Activation,
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
            Activation::None => "",
            Activation::Gelu => ", gelu",
            Activation::GeluTanh => ", gelu (tanh)",
            Activation::Relu => ", relu",
            Activation::Silu => ", silu",
            Activation::Tanh => ", tanh",
        };
        format!("{} → {}{bias}{activation}", self.weight.k, self.weight.n)
    }

    fn scratch(&self, rung: Rung) -> usize {
        // Composed keeps the product, the sum and what the activation makes until the last of them is the result.
        let steps = usize::from(self.bias.is_some()) + usize::from(self.activation != Activation::None);
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
        let rows = Weight { data: to(&self.weight.data)?, ..self.weight.clone() };
        // The host's kernel reads panels, the device's product rows.
        let weight = cpu::repack(rows)?;
        let bias = self.bias.as_ref().map(to).transpose()?;
        Ok(LinearOp { x: to(&self.x)?, weight, bias, activation: self.activation })
    }
}

/// The layout that kernels in `place` read.
fn layout_in(place: &Place) -> Layout {
    if place.device().is_gpu() { Layout::Rows } else { Layout::Panels }
}
