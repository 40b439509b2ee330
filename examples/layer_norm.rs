//! One op on your own tensors: a layer norm on a device, and which kernel ran it.
//!
//! `cargo run --release --example layer_norm [DEVICE]`: cpu, cuda or metal; by default the best
//! one.

use sconce_ops::{DType, Device, Ladder, LayerNorm, Place, Policy, Raw, Result, Rung, Store, Stored, Tensor, Weights};
use std::sync::Arc;

const SIZE: usize = 8;

/// A `Store` supplies weights from any source; here they are constants.
struct Ones;

impl Store for Ones {
    fn get(&self, name: &str) -> Result<Option<Raw<'_>>> {
        let value = match name {
            "norm.weight" => 1f32,
            "norm.bias" => 0.0,
            _ => return Ok(None),
        };
        let bytes: Vec<u8> = value.to_le_bytes().repeat(SIZE);
        Ok(Some(Raw { stored: Stored::Float(DType::F32), dims: vec![SIZE], bytes: bytes.into() }))
    }
    fn names(&self) -> Vec<String> {
        vec!["norm.weight".into(), "norm.bias".into()]
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let device: Device = std::env::args().nth(1).map_or_else(|| Ok(Device::best().0), |name| name.parse())?;
    let place = Place::open(device)?;
    let values: Vec<f32> = (0..2 * SIZE as u32).map(|i| 10.0 + (i as f32).sin()).collect();

    for (dtype, force) in [(DType::F32, None), (DType::F32, Some(Rung::Composed)), (DType::BF16, None)] {
        // The ladder chooses the rung that runs the op, and counts it.
        let ladder = Ladder::new(Policy::default().with_force(force));
        let entered = ladder.clone().enter();
        let norm = LayerNorm::load(&Weights::new(Arc::new(Ones), dtype, place.clone()).sub("norm"), SIZE, 1e-12, true)?;
        let y = norm.forward(&Tensor::from_f32(&values, &[2, SIZE], dtype, &place)?)?;
        let row: Vec<String> = y.to_f32()?[..SIZE].iter().map(|v| format!("{v:+.4}")).collect();
        drop(entered);
        println!("{}", row.join(" "));
        for (what, calls) in ladder.counts() {
            println!("  {} on {} in {}: {} × {calls}", what.op, what.device, what.dtype, what.rung);
        }
    }
    Ok(())
}
