//! For tests only: reads the goldens, which `tools/goldens` computes with the reference
//! implementations; random numbers, property tests, and waiting for events.

mod gguf;
mod half;
mod onnx;
mod property;
mod rng;
mod suite;
mod synthetic;
mod texts;
mod wait;

pub use gguf::{GgufTensor, GgufWriter};
pub use half::{Half, relative_distance};
pub use onnx::{materialize_onnx, materialize_towers, onnxruntime};
pub use property::{DamagedFile, Mutation, cases, check, mutations, mutations_in_place};
pub use rng::{Rng, mix};
pub use suite::Suite;
pub use synthetic::{materialize, materialize_llama, materialize_slow_llama, plain_words, values};
pub use texts::mixed_texts;
pub use wait::{wait_for, wait_for_within, wait_until, wait_until_async};

use serde_json::Value;
use std::path::PathBuf;

/// The folder of a golden, by name.
pub fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("goldens").join(name)
}

/// Reads a JSON file.
pub fn json(path: &std::path::Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A tensor of a golden, with its shape.
#[derive(Clone, Debug)]
pub struct Array<T> {
    /// Row-major values.
    pub values: Vec<T>,
    /// Length of each dimension.
    pub dims: Vec<usize>,
}

/// Golden tensors of one safetensors file.
pub struct Arrays(Vec<u8>);

impl Arrays {
    /// Reads the whole file.
    pub fn open(path: &std::path::Path) -> Arrays {
        Arrays(std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    /// A tensor of f32.
    pub fn f32(&self, name: &str) -> Array<f32> {
        self.read(name, safetensors::Dtype::F32, f32::from_le_bytes)
    }

    /// A tensor of u32.
    pub fn u32(&self, name: &str) -> Array<u32> {
        self.read(name, safetensors::Dtype::U32, u32::from_le_bytes)
    }

    /// The raw bytes of a tensor.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        self.file().tensor(name).unwrap_or_else(|e| panic!("{name}: {e}")).data().to_vec()
    }

    /// Whether the file has a tensor of that name.
    pub fn has(&self, name: &str) -> bool {
        self.file().tensor(name).is_ok()
    }

    fn read<T>(&self, name: &str, dtype: safetensors::Dtype, from: impl Fn([u8; 4]) -> T) -> Array<T> {
        let file = self.file();
        let tensor = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(tensor.dtype(), dtype, "{name}");
        let (words, _) = tensor.data().as_chunks::<4>();
        Array { values: words.iter().map(|w| from(*w)).collect(), dims: tensor.shape().to_vec() }
    }

    fn file(&self) -> safetensors::SafeTensors<'_> {
        safetensors::SafeTensors::deserialize(&self.0).unwrap_or_else(|e| panic!("{e}"))
    }
}

/// The largest absolute difference of two lists; NaN if either has one.
pub fn worst(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len(), "lengths differ");
    let larger = |m: f32, d: f32| if m.is_nan() || m > d { m } else { d };
    got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, larger)
}

#[test]
fn worst_returns_nan_for_a_nan_anywhere() {
    for at in 0..3 {
        let mut got = [1.0, 2.0, 3.0];
        got[at] = f32::NAN;
        assert!(worst(&got, &[1.0, 2.5, 3.0]).is_nan());
    }
    assert_eq!(worst(&[1.0, 2.0, 3.0], &[1.0, 2.5, 3.0]), 0.5);
}

/// The cosine similarity of two vectors, in f64.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
