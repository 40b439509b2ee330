//! The storage format of weight matrices on each device, which a plan relies on.

use sconce_ops::{
    DType, Device, Ladder, Linear, Place, Policy, Quant, Raw, Result, Store, Stored, WeightFormat, Weights,
};
use std::sync::Arc;

/// One matrix with a shape only, as in a plan.
struct Shape(Stored, Vec<usize>);

impl Store for Shape {
    fn get(&self, name: &str) -> Result<Option<Raw<'_>>> {
        let raw = Raw { stored: self.0, dims: self.1.clone(), bytes: [][..].into() };
        Ok((name == "weight").then_some(raw))
    }
    fn names(&self) -> Vec<String> {
        vec!["weight".into()]
    }
}

/// Bytes that `[n, k]` takes on `device` with activations in f16, without the one activation that
/// is allocated with it.
fn stored_bytes(stored: Stored, format: WeightFormat, (n, k): (usize, usize), device: Device) -> u64 {
    let ladder = Ladder::new(Policy::default());
    let _here = ladder.clone().enter();
    let store = Arc::new(Shape(stored, vec![n, k]));
    let weights = Weights::new(store, DType::F16, Place::phantom(device)).with_format(format);
    let _linear = Linear::load(&weights, k, n, false).unwrap();
    ladder.ledger.live() - 2
}

#[test]
fn copies_of_blocks_are_for_cuda_only() {
    let bytes =
        |quant, device| stored_bytes(Stored::Blocks(quant), WeightFormat::FileAndActivations, (70, 512), device);
    for quant in [Quant::Q4K, Quant::Q6K, Quant::Iq2Xs] {
        let blocks = (70 * quant.bytes(512).unwrap()) as u64;
        assert_eq!(bytes(quant, Device::Cuda(0)), blocks + 2 * 70 * 512, "{quant}");
        assert_eq!(bytes(quant, Device::Metal(0)), blocks, "{quant}");
    }
    let half = Stored::Float(DType::F16);
    assert_eq!(stored_bytes(half, WeightFormat::FileAndActivations, (70, 512), Device::Cuda(0)), 2 * 70 * 512);
}

#[test]
fn blocks_stay_quantized_on_gpus() {
    let (n, k) = (70, 512);
    for gpu in [Device::Metal(0), Device::Cuda(0)] {
        for quant in Quant::all() {
            let blocks = (n * quant.bytes(k).unwrap()) as u64;
            assert_eq!(stored_bytes(Stored::Blocks(quant), WeightFormat::File, (n, k), gpu), blocks, "{quant}");
            assert_eq!(
                stored_bytes(Stored::Blocks(quant), WeightFormat::Activations, (n, k), gpu),
                2 * 70 * 512,
                "{quant}"
            );
        }
        let (half, q4_k) = (Stored::Float(DType::F16), WeightFormat::Blocks(Quant::Q4K));
        assert_eq!(stored_bytes(half, q4_k, (n, k), gpu), 70 * 2 * 144);
        // Rows that are not a multiple of 256 become blocks of 32, and rows that are not a multiple
        // of 32 stay floats.
        assert_eq!(stored_bytes(half, q4_k, (n, 96), gpu), 70 * 3 * 34);
        assert_eq!(stored_bytes(half, q4_k, (n, 90), gpu), 2 * 70 * 90);
        assert_eq!(stored_bytes(half, WeightFormat::File, (n, k), gpu), 2 * 70 * 512);
        assert_eq!(stored_bytes(half, WeightFormat::Bytes, (n, k), gpu), 2 * 70 * 512);
    }
}
