//! The ops ladder: every computation that Sconce runs, and the only crate that names Candle.
//!
//! One folder an op, and in it everything there is to know about the op: its face and its declaration (`mod.rs`), our kernels
//! (`cpu.rs`, `kernel.cu` with `cuda.rs`, `kernel.metal` with `metal.rs`), the formula in Candle's ops (`composed.rs`), the
//! formula in f64 (`reference.rs`), and the cases that hold them together (`cases.rs`).

mod activation;
pub mod case;
mod cpu;
mod device;
mod dtype;
mod error;
mod ladder;
mod launch;
mod ledger;
mod place;
mod segments;
mod tensor;
mod weights;

pub use activation::Activation;
pub use cpu::Isa;
pub use device::{Device, DeviceInfo};
pub use dtype::DType;
pub use error::{Error, Result};
pub use ladder::{Counted, Entered, Ladder, Policy, Rung, Step, Withdrawn, at};
pub use ledger::Ledger;
pub use place::Place;
pub use segments::Segments;
pub use tensor::Tensor;
pub use weights::{Raw, Store, Weights};

/// Declares the ops: each name is a folder, and its cases join the others.
macro_rules! ops {
    ($($op:ident),* $(,)?) => {
        $(pub mod $op;)*

        /// Every case of every op.
        pub fn cases() -> Vec<case::Case> {
            [$($op::cases()),*].into_iter().flatten().collect()
        }
    };
}

ops!(attention, embed, experts, glu, l2_norm, layer_norm, linear, pool, rms_norm, rotary, softmax, splade, unfold);

pub use attention::{Attention, Bias, Disentangled, Sees, attention};
pub use embed::embed;
pub use experts::{ExpertShape, Experts};
pub use glu::{Gate, glu};
pub use l2_norm::l2_norm;
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use pool::{Pooling, pool};
pub use rms_norm::RmsNorm;
pub use rotary::Rotary;
pub use softmax::softmax;
pub use splade::{Splade, splade};
pub use unfold::unfold;
