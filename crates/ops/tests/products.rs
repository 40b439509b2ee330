//! Large products with exact integer sums, besides the sampled rows that `linear/large_cases.rs`
//! compares. GPUs use other kernels for products of this size. The inputs are small integers, whose
//! sums are exact in every format. A reference of all rows would take minutes, so a sample of rows
//! is compared.

use half::{bf16, f16};
use sconce_ops::case::{devices, places};
use sconce_ops::{Activation, DType, LayerNorm, Linear, Raw, Result, Store, Stored, Tensor, Weights};
use sconce_testkit::{Suite, mix};
use std::sync::Arc;

/// A pseudo-random integer from −2 to 2 for each index.
fn integer(i: usize, j: usize) -> f32 {
    (mix(i as u64, j as u64) >> 60) as f32 % 5.0 - 2.0
}

/// W `[n, k]` and a bias, in f16 and times `scale`.
struct TestWeights(usize, usize, f32);

impl Store for TestWeights {
    fn get(&self, name: &str) -> Result<Option<Raw<'_>>> {
        let TestWeights(n, k, scale) = *self;
        let bytes = |of: &dyn Fn(usize) -> f32, len: usize| -> Vec<u8> {
            (0..len).flat_map(|i| f16::from_f32(of(i) * scale).to_le_bytes()).collect()
        };
        let stored = Stored::Float(DType::F16);
        Ok(match name {
            "weight" => {
                let bytes = bytes(&|i| integer(i % k, i / k), n * k).into();
                Some(Raw { stored, dims: vec![n, k], bytes })
            }
            "bias" => Some(Raw { stored, dims: vec![n], bytes: bytes(&|i| integer(i, 7), n).into() }),
            "norm.weight" => {
                Some(Raw { stored, dims: vec![n], bytes: bytes(&|i| 1.0 + integer(i, 8) / 4.0, n).into() })
            }
            "norm.bias" => Some(Raw { stored, dims: vec![n], bytes: bytes(&|i| integer(i, 9), n).into() }),
            _ => None,
        })
    }

    fn names(&self) -> Vec<String> {
        ["weight", "bias", "norm.weight", "norm.bias"].map(str::to_owned).to_vec()
    }
}

fn large_products_are_exact() {
    // 192 columns of W that a block keeps, more columns, deeper W that two blocks share, and shapes
    // for other kernels; row counts end in the middle of a tile.
    let shapes = [(8500, 192, 384), (4200, 1152, 384), (17000, 768, 768), (5000, 384, 1536), (3000, 3072, 768)];
    for (place, _) in places("cuda") {
        for (rows, n, k) in shapes {
            let values: Vec<f32> = (0..rows * k).map(|i| integer(i / k, i % k)).collect();
            for (dtype, gelu) in [(DType::F16, false), (DType::F16, true), (DType::BF16, false), (DType::BF16, true)] {
                // So that most inputs are where GELU is curved.
                let scale = if gelu { 1.0 / 32.0 } else { 1.0 };
                let weights = Weights::new(Arc::new(TestWeights(n, k, scale)), dtype, place.clone());
                let linear = Linear::load(&weights, k, n, true).unwrap();
                let linear = if gelu { linear.with(Activation::Gelu) } else { linear };
                let x = Tensor::from_f32(&values, &[rows, k], dtype, &place).unwrap();
                let y = linear.forward(&x).unwrap();
                for row in (0..rows).step_by(331).chain(rows - 3..rows) {
                    let got = y.narrow(0, row, 1).unwrap().to_f32().unwrap();
                    for (column, got) in got.iter().enumerate() {
                        let dot: f32 = (0..k).map(|i| values[row * k + i] * integer(i, column)).sum();
                        let sum = f64::from((dot + integer(column, 7)) * scale);
                        let want = if gelu { sum * 0.5 * libm::erfc(-sum / 2f64.sqrt()) } else { sum };
                        let off = (f64::from(*got) - want).abs();
                        // Half a unit in the last place, and 1e-6 for the polynomial of GELU.
                        let allowed = want.abs() * dtype.unit_roundoff() * 1.001 + if gelu { 1e-6 } else { 0.0 };
                        assert!(off <= allowed, "{rows} × {n} × {k} in {dtype}: {got} for {want} at {row}, {column}");
                    }
                }
            }
        }
    }
}

/// A product of whole rows with a norm. A third is not an integer, so that a sum rounded before
/// its norm shows.
fn norms_of_large_products_are_rounded_once() {
    // Rows of one block and of two, one round of tiles and more, ending in the middle of a tile.
    let shapes = [(33000, 384, 384), (13000, 384, 1536), (8200, 768, 768), (16500, 768, 3072)];
    let eps = 1e-5;
    for (place, _) in places("cuda") {
        for (rows, n, k) in shapes {
            let values: Vec<f32> = (0..rows * k).map(|i| integer(i / k, i % k)).collect();
            let residuals: Vec<f32> = (0..rows * n).map(|i| integer(i % n, i / n) * 8.0).collect();
            for dtype in [DType::F16, DType::BF16] {
                let third = f16::from_f32(1.0 / 3.0).to_f32();
                let third = if dtype == DType::F16 { third } else { bf16::from_f32(third).to_f32() };
                let weights = Weights::new(Arc::new(TestWeights(n, k, third)), dtype, place.clone());
                let linear = Linear::load(&weights, k, n, true).unwrap();
                let norm = LayerNorm::load(&weights.sub("norm"), n, eps, true).unwrap();
                let read = |name| weights.sub("norm").tensor(name, &[n]).unwrap().to_f32().unwrap();
                let (weight, bias) = (read("weight"), read("bias"));
                let x = Tensor::from_f32(&values, &[rows, k], dtype, &place).unwrap();
                let residual = Tensor::from_f32(&residuals, &[rows, n], dtype, &place).unwrap();
                let y = linear.forward_normed(&x, &residual, &norm).unwrap();
                for row in (0..rows).step_by(331).chain(rows - 3..rows) {
                    let got = y.narrow(0, row, 1).unwrap().to_f32().unwrap();
                    let sum = |column: usize| {
                        let dot: f32 = (0..k).map(|i| values[row * k + i] * integer(i, column)).sum();
                        f64::from(dot + integer(column, 7)) * f64::from(third) + f64::from(residuals[row * n + column])
                    };
                    let sums: Vec<f64> = (0..n).map(sum).collect();
                    let mean = sums.iter().sum::<f64>() / n as f64;
                    let variance = sums.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / n as f64;
                    for (column, got) in got.iter().enumerate() {
                        let normal = (sums[column] - mean) / (variance + f64::from(eps)).sqrt();
                        let want = normal * f64::from(weight[column]) + f64::from(bias[column]);
                        let off = (f64::from(*got) - want).abs();
                        // Half a unit in the last place, and the error of sums in f32.
                        let allowed = want.abs() * dtype.unit_roundoff() * 1.001 + 2e-5;
                        assert!(off <= allowed, "{rows} × {n} × {k} in {dtype}: {got} for {want} at {row}, {column}");
                    }
                }
            }
        }
    }
}

fn main() {
    Suite::new(devices())
        .on("cuda", "large_products_are_exact", large_products_are_exact)
        .on("cuda", "norms_of_large_products_are_rounded_once", norms_of_large_products_are_rounded_once)
        .run()
}
