//! The ops ladder: every computation that Sconce runs, and the only crate that names Candle.
//!
//! Each op has a folder with everything about it: its public functions and declarations (`mod.rs`),
//! our kernels (`cpu.rs`, `kernel.cu` with `cuda.rs`, `kernel.metal` with `metal.rs`), the formula
//! in Candle's ops (`composed.rs`), the formula in f64 (`reference.rs`), and the cases that compare
//! them (`cases.rs`).

#![cfg_attr(feature = "scalar-only", allow(dead_code, reason = "used by the other instruction sets"))]

mod activation;
mod buffer_pool;
pub mod case;
mod cpu;
mod device;
mod dtype;
pub mod eager;
mod error;
mod keys;
mod ladder;
mod launch;
mod ledger;
mod place;
mod quant;
pub mod replay;
mod segments;
mod tensor;
pub mod threads;
mod weights;

pub use activation::Activation;
pub use cpu::Isa;
pub use device::{Device, DeviceInfo};
pub use dtype::DType;
pub use error::{Error, Result};
pub use ladder::{Counted, Entered, Ladder, Policy, Rung, Step, Withdrawn, at};
pub use ledger::Ledger;
pub use place::Place;
pub use quant::{Quant, dequantize};
pub use segments::{Lengths, Segments};
pub use tensor::Tensor;
pub use weights::{Mapped, Raw, Store, Stored, WeightFormat, Weights};

// One line per op. Plain modules, which rustfmt can follow; `cases` below joins their cases.
pub mod attention;
pub mod embed;
pub mod experts;
pub mod glu;
pub mod kv_write;
pub mod l2_norm;
pub mod layer_norm;
pub mod linear;
pub mod lstm;
pub mod pair;
pub mod pool;
pub mod rms_norm;
pub mod rotary;
pub mod sample;
pub mod softmax;
pub mod splade;
pub mod unfold;

/// Every case of every op.
pub fn cases() -> Vec<case::Case> {
    let of = [
        attention::cases,
        sample::cases,
        embed::cases,
        experts::cases,
        glu::cases,
        l2_norm::cases,
        layer_norm::cases,
        linear::cases,
        lstm::cases,
        pair::cases,
        pool::cases,
        rms_norm::cases,
        rotary::cases,
        softmax::cases,
        splade::cases,
        kv_write::cases,
        unfold::cases,
    ];
    of.into_iter().flat_map(|cases| cases()).collect()
}

/// Every case of every op on a device: [`cases`] and those for kernels that only this device has.
pub fn cases_on(device: Device) -> Vec<case::Case> {
    let more: &[fn() -> Vec<case::Case>] = match device {
        Device::Cuda(_) => {
            &[attention::cases_of_cuda, embed::cases_of_cuda, experts::cases_of_cuda, linear::cases_of_cuda]
        }
        Device::Cpu | Device::Metal(_) => &[],
    };
    cases().into_iter().chain(more.iter().flat_map(|cases| cases())).collect()
}

pub use attention::{Attention, Bias, Disentangled, Mask, attention};
pub use embed::{Table, embed, embed_normed};
pub use experts::{ExpertParts, ExpertShape, Experts};
pub use glu::{Gate, activate, glu, glu_scaled};
pub use keys::{Keys, PageTables, Pages};
pub use kv_write::{KvCache, KvCacheFormat, KvCacheShape, KvTensor};
pub use l2_norm::l2_norm;
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use lstm::Lstm;
pub use pool::{Pooling, pool};
pub use rms_norm::RmsNorm;
pub use rotary::{Projected, Rotary};
pub use sample::{SamplingParams, sample};
pub use softmax::softmax;
pub use splade::{Splade, splade};
pub use unfold::unfold;
