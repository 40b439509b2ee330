//! The activations, shared by every op that fuses one: name, composed form in Candle's ops,
//! reference in f64. The SIMD form is in [`crate::cpu::math`].

use crate::Result;
use std::fmt;

/// An element-wise function on the result of a product, or on the gate of a gated linear unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// The identity.
    #[default]
    None,
    /// x·Φ(x), exactly, by erf.
    Gelu,
    /// GELU's tanh approximation, for models that were trained with it.
    GeluTanh,
    /// x·σ(1.702·x): OpenAI's CLIP.
    QuickGelu,
    /// max(x, 0).
    Relu,
    /// x·σ(x).
    Silu,
    /// σ(x) = 1 / (1 + e⁻ˣ).
    Sigmoid,
    /// tanh(x).
    Tanh,
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Activation::None => "none",
            Activation::Gelu => "gelu",
            Activation::GeluTanh => "gelu (tanh)",
            Activation::QuickGelu => "gelu (quick)",
            Activation::Relu => "relu",
            Activation::Silu => "silu",
            Activation::Sigmoid => "sigmoid",
            Activation::Tanh => "tanh",
        })
    }
}

impl Activation {
    /// The composed form, in Candle's ops, with their rounding.
    pub(crate) fn composed(self, x: candle_core::Tensor) -> Result<candle_core::Tensor> {
        let dtype = x.dtype();
        // In f32: far below zero σ is so small that sums in f16 or bf16 would lose it.
        let sigmoid = |x: &candle_core::Tensor| (x.neg()?.exp()? + 1.0)?.recip();
        let wide = || x.to_dtype(candle_core::DType::F32);
        Ok(match self {
            Activation::None => x,
            Activation::Gelu => x.gelu_erf()?,
            Activation::GeluTanh => x.gelu()?,
            Activation::QuickGelu => (wide()? * sigmoid(&(wide()? * 1.702)?)?)?.to_dtype(dtype)?,
            Activation::Relu => x.relu()?,
            Activation::Silu => x.silu()?,
            Activation::Sigmoid => sigmoid(&wide()?)?.to_dtype(dtype)?,
            Activation::Tanh => x.tanh()?,
        })
    }

    /// The reference, in f64.
    pub(crate) fn reference(self, x: f64) -> f64 {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        match self {
            Activation::None => x,
            Activation::Gelu => 0.5 * x * (1.0 + libm::erf(x / std::f64::consts::SQRT_2)),
            Activation::GeluTanh => {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
            }
            Activation::QuickGelu => x * sigmoid(1.702 * x),
            Activation::Relu => x.max(0.0),
            Activation::Silu => x * sigmoid(x),
            Activation::Sigmoid => sigmoid(x),
            Activation::Tanh => x.tanh(),
        }
    }
}
