//! The MLP (feed-forward part) of a block.

use crate::Result;
use sconce_ops::{Activation, Experts, Gate, LayerNorm, Linear, Tensor, glu, glu_scaled};

pub(crate) enum Mlp {
    /// Gated linear unit: down(act(gate(x)) · up(x)). Gate and up are one matrix, in the order that
    /// `gate` names.
    Gated { gate_up: Linear, activation: Activation, gate: Gate, down: Linear },
    /// down(act(up(x))).
    Plain { up: Linear, down: Linear },
    /// Mixture of experts.
    Experts(Box<Experts>),
    /// Mixture of experts, plus an expert for all tokens.
    SharedExpert { experts: Box<Experts>, shared: Box<SharedExpert> },
}

/// An expert for all tokens: σ(scale(x)) · down(act(gate(x)) · up(x)), computed with the scale
/// before the down projection.
pub(crate) struct SharedExpert {
    pub gate_up: Linear,
    pub activation: Activation,
    pub down: Linear,
    /// One output per token, with the sigmoid.
    pub scale: Linear,
}

impl SharedExpert {
    fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let inner = glu_scaled(&self.gate_up.forward(x)?, &self.scale.forward(x)?, self.activation, Gate::First)?;
        Ok(self.down.forward_residual(&inner, residual)?)
    }
}

impl Mlp {
    /// A gated MLP whose matrix has the gate first.
    pub(crate) fn gated(gate_up: Linear, activation: Activation, down: Linear) -> Mlp {
        Mlp::Gated { gate_up, activation, gate: Gate::First, down }
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Mlp::Gated { down, .. } | Mlp::Plain { down, .. } => down.forward(&self.inner(x)?)?,
            Mlp::Experts(experts) => experts.forward(x)?,
            Mlp::SharedExpert { experts, shared } => shared.forward_residual(x, &experts.forward(x)?)?,
        })
    }

    pub(crate) fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Mlp::Gated { down, .. } | Mlp::Plain { down, .. } => down.forward_residual(&self.inner(x)?, residual)?,
            Mlp::Experts(experts) => experts.forward_residual(x, residual)?,
            Mlp::SharedExpert { experts, shared } => {
                shared.forward_residual(x, &experts.forward_residual(x, residual)?)?
            }
        })
    }

    /// norm(x + Mlp(x)).
    pub(crate) fn forward_normed(&self, x: &Tensor, norm: &LayerNorm) -> Result<Tensor> {
        Ok(match self {
            Mlp::Gated { down, .. } | Mlp::Plain { down, .. } => down.forward_normed(&self.inner(x)?, x, norm)?,
            Mlp::Experts(_) | Mlp::SharedExpert { .. } => norm.forward_residual(&self.forward(x)?, x)?,
        })
    }

    fn inner(&self, x: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Mlp::Gated { gate_up, activation, gate, .. } => glu(&gate_up.forward(x)?, *activation, *gate)?,
            Mlp::Plain { up, .. } => up.forward(x)?,
            Mlp::Experts(_) | Mlp::SharedExpert { .. } => x.clone(),
        })
    }
}
