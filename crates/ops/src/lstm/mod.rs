//! A bidirectional LSTM over each sequence (Hochreiter and Schmidhuber 1997)        in f32, one
//! rounding to T
//!
//! - i, f, g, o = x′ₜ + W·hₜ₋₁, with x′ = x·W_inᵀ + b, the product of all tokens and both directions
//! - cₜ = σ(f)·cₜ₋₁ + σ(i)·tanh(g), hₜ = σ(o)·tanh(cₜ); h and c are 0 before the first token
//!
//! The result of a token is h of the direction that reads forwards, then of the one that reads
//! backwards. h and c stay in f32 from token to token; only results are rounded.

mod cases;
mod composed;
mod cpu;
#[cfg(cuda)]
mod cuda;
#[cfg(metal)]
mod metal;
mod reference;

pub(crate) use cases::cases;

use crate::ladder::{self, Can, Op, Rung, own_kernels};
use crate::replay::{OpScope, op_scope};
use crate::{DType, Device, Error, Linear, Result, Segments, Tensor, Weights};

/// Units side by side in the recurrent weight: `[directions, panels, h, gates, UNITS]`. The gates of
/// a unit are computed together, and a vector of units is read at once on every device.
const UNITS: usize = 16;

/// The gates i, f, g and o.
const GATES: usize = 4;

/// The largest hidden size of our GPU kernels, which hold h in shared memory.
const MAX_HIDDEN: usize = 1024;

/// One bidirectional layer.
#[derive(Clone, Debug)]
pub struct Lstm {
    /// The product of the inputs, for both directions.
    input: Linear,
    /// The recurrent weights of both directions, in panels; zeros beyond the last unit.
    recurrent: Tensor,
    hidden: usize,
}

impl Lstm {
    /// Layer `layer` of PyTorch's `nn.LSTM`, from `inputs` to two directions of `hidden` units.
    pub fn load(w: &Weights, layer: usize, inputs: usize, hidden: usize) -> Result<Lstm> {
        let gates = GATES.checked_mul(hidden).filter(|n| *n > 0);
        let gates = gates.ok_or_else(|| Error::call("lstm", format!("a hidden size of {hidden}")))?;
        let names = |name: &str| [format!("{name}_l{layer}"), format!("{name}_l{layer}_reverse")];
        let [forward, backward] = names("weight_ih");
        let input = Linear::shaped(&[(w.clone(), &forward), (w.clone(), &backward)], &[gates, inputs])?;
        let mut bias = Vec::new();
        for (input, recurrent) in names("bias_ih").iter().zip(&names("bias_hh")) {
            let (input, recurrent) = (w.values(input, &[gates])?, w.values(recurrent, &[gates])?);
            bias.extend(input.iter().zip(&recurrent).map(|(a, b)| a + b));
        }
        let input = input.with_bias(w.put(&bias, &[2 * gates])?)?;
        let mut recurrent = Vec::new();
        for name in names("weight_hh") {
            recurrent.extend(panels(&w.values(&name, &[gates, hidden])?, hidden));
        }
        let recurrent = w.put(&recurrent, &[2, hidden.div_ceil(UNITS), hidden, GATES * UNITS])?;
        Ok(Lstm { input, recurrent, hidden })
    }

    /// `x` `[tokens, inputs]` to `[tokens, 2 · hidden]`.
    pub fn forward(&self, x: &Tensor, segments: &Segments) -> Result<Tensor> {
        self.recur(&self.input.forward(x)?, segments)
    }

    /// The recurrence over the gates' inputs `x` `[tokens, directions · gates · hidden]`.
    fn recur(&self, x: &Tensor, segments: &Segments) -> Result<Tensor> {
        let fits = *x.dims() == [segments.tokens(), 2 * GATES * self.hidden] && x.dtype() == self.recurrent.dtype();
        if !fits {
            let (dims, dtype, tokens) = (x.dims(), x.dtype(), segments.tokens());
            let what = format!("x {dims:?} in {dtype} for {tokens} packed tokens and {} units", self.hidden);
            return Err(Error::call("lstm", what));
        }
        let (x, recurrent, segments) = (x.clone(), self.recurrent.clone(), segments.clone());
        ladder::run(LstmOp { x, recurrent, hidden: self.hidden, segments, scope: op_scope() })
    }
}

/// The weight `[gates · hidden, hidden]` of a direction in panels.
fn panels(w: &[f32], hidden: usize) -> Vec<f32> {
    let mut packed = vec![0f32; hidden.div_ceil(UNITS) * hidden * GATES * UNITS];
    for (row, values) in w.chunks_exact(hidden).enumerate() {
        let (gate, unit) = (row / hidden, row % hidden);
        let first = unit / UNITS * hidden * GATES * UNITS + gate * UNITS + unit % UNITS;
        for (k, v) in values.iter().enumerate() {
            packed[first + k * GATES * UNITS] = *v;
        }
    }
    packed
}

pub(crate) struct LstmOp {
    /// `[tokens, directions · gates · hidden]`.
    x: Tensor,
    recurrent: Tensor,
    hidden: usize,
    segments: Segments,
    scope: OpScope,
}

impl Op for LstmOp {
    const NAME: &'static str = "lstm";

    fn x(&self) -> &Tensor {
        &self.x
    }

    fn out(&self) -> (Vec<usize>, DType) {
        (vec![self.segments.tokens(), 2 * self.hidden], self.x.dtype())
    }

    fn detail(&self) -> String {
        format!("2 × {}", self.hidden)
    }

    fn fused(&self, device: Device) -> Can {
        match device {
            Device::Metal(_) | Device::Cuda(_) if self.hidden > MAX_HIDDEN => {
                Can::no(format!("our kernel takes up to {MAX_HIDDEN} units"))
            }
            _ => Can::Yes,
        }
    }

    fn scratch(&self, rung: Rung) -> usize {
        let gates = GATES * self.hidden;
        match rung {
            // Composed, in f32: x, a direction's weight twice, the results of both directions and
            // of single tokens, and some vectors.
            Rung::Composed => {
                4 * (self.segments.tokens() * (2 * gates + 4 * self.hidden) + 3 * gates * self.hidden + 16 * gates)
            }
            // h, the next h and c of the sequences that are computed at once.
            Rung::Fused if self.x.device() == Device::Cpu => {
                let sequences = (2 * self.segments.count()).min(cpu::MOST * crate::threads::count());
                4 * sequences * 3 * self.hidden.next_multiple_of(UNITS)
            }
            _ => 0,
        }
    }

    own_kernels!(cpu, cuda, metal, composed);

    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let (x, recurrent) = (to(&self.x)?, to(&self.recurrent)?);
        Ok(LstmOp { x, recurrent, hidden: self.hidden, segments: self.segments.clone(), scope: self.scope })
    }
}
