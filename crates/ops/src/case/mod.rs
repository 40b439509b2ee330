//! One set of cases with four uses: the test against an f64 reference, the micro-benchmark, the
//! rows of SUPPORT.md, and the checks of `sconce doctor` on the user's device.

mod check;
mod selection;
mod support;

pub use check::{Outcome, Variant, check, time, variants};
pub use selection::{devices, half_formats, is_rung_wanted, places, wanted};
pub use support::support_md;

use crate::cpu::elem::{Elem, with_elem};
use crate::quant::{dequantize, make_scales_finite, quantize};
use crate::weights::{Raw, Store, Stored, WeightFormat};
use crate::{DType, Place, Quant, Result, Rung, Tensor, Weights};
use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

/// A call that can be repeated.
pub type Call = Box<dyn Fn() -> Result<Tensor>>;

/// Uploads a case's inputs to a place and returns the call.
pub type Prepare = Box<dyn Fn(&Place) -> Result<Call>>;

/// One call of an op on fixed inputs, with the expected result.
pub struct Case {
    /// The op's folder.
    pub op: &'static str,
    /// Shapes and options.
    pub name: String,
    /// Activation dtype.
    pub dtype: DType,
    /// The error that is allowed.
    pub tolerance: Tolerance,
    /// Floating-point operations of one call, for the benchmark.
    pub flops: u64,
    /// Prepares the call; only the call itself is timed.
    pub prepare: Prepare,
    /// The expected result in f64, from inputs rounded to the dtype.
    pub reference: Box<dyn Fn() -> Vec<f64>>,
}

/// Allowed error, in roundings.
///
/// The error of an element is |y − r| / (|r| + rms(r)): relative for large elements, relative to
/// the whole where cancellation made an element small. A result that is computed in f32 and rounded
/// once to T is off by at most one unit roundoff of T plus the error of the f32 sums; a composed
/// form also rounds in between. The mean may be half of the worst, because roundings are as often
/// small as large.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Roundings to T that our kernel makes.
    pub fused: f64,
    /// Roundings to T that the composed form makes.
    pub composed: f64,
    /// Roundings in f32 that sums and elementary functions may add.
    pub sums: f64,
}

impl Tolerance {
    /// The largest error allowed for one element.
    pub fn worst(&self, rung: Rung, dtype: DType) -> f64 {
        let roundings = if rung == Rung::Composed { self.composed } else { self.fused };
        roundings * dtype.unit_roundoff() + self.sums * DType::F32.unit_roundoff()
    }

    /// The largest mean error allowed.
    pub fn mean(&self, rung: Rung, dtype: DType) -> f64 {
        self.worst(rung, dtype) / 2.0
    }
}

/// A value computed at its first use, because many callers list all cases and run a few.
#[derive(Clone)]
pub(crate) struct Lazy<T>(Rc<LazyCell<T, Box<dyn FnOnce() -> T>>>);

impl<T> Lazy<T> {
    pub(crate) fn new(make: impl FnOnce() -> T + 'static) -> Lazy<T> {
        Lazy(Rc::new(LazyCell::new(Box::new(make))))
    }
}

impl<T> Deref for Lazy<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Seeded random numbers of a shape, rounded to their dtype, so that reference and kernel see the
/// same.
#[derive(Clone)]
pub(crate) struct Input {
    pub(crate) values: Lazy<Vec<f32>>,
    pub(crate) dims: Vec<usize>,
    pub(crate) dtype: DType,
}

impl Input {
    /// Normally distributed, with this mean and standard deviation.
    pub(crate) fn normal(seed: u64, dims: &[usize], dtype: DType, (centre, spread): (f32, f32)) -> Input {
        let n = dims.iter().product::<usize>();
        Input::new(dims, dtype, move || {
            let mut random = Random(seed);
            (0..n).map(|_| round(dtype, centre + spread * random.normal())).collect()
        })
    }

    /// From values that are rounded already.
    pub(crate) fn new(dims: &[usize], dtype: DType, make: impl FnOnce() -> Vec<f32> + 'static) -> Input {
        Input { values: Lazy::new(make), dims: dims.to_vec(), dtype }
    }

    /// With each value changed, given its index.
    pub(crate) fn map(self, change: impl Fn(usize, f32) -> f32 + 'static) -> Input {
        let Input { values, dims, dtype } = self;
        Input::new(&dims, dtype, move || values.iter().enumerate().map(|(i, v)| change(i, *v)).collect())
    }

    /// Columns `start..start + n` of each row.
    pub(crate) fn columns(&self, start: usize, n: usize) -> Lazy<Vec<f32>> {
        let (values, width) = (self.values.clone(), self.dims[1..].iter().product());
        Lazy::new(move || values.chunks(width).flat_map(|row| row[start..][..n].to_vec()).collect())
    }

    pub(crate) fn on(&self, place: &Place) -> Result<Tensor> {
        Tensor::from_f32(&self.values, &self.dims, self.dtype, place)
    }
}

/// Integers below `end`.
pub(crate) fn ids(seed: u64, n: usize, end: u32) -> Vec<u32> {
    let mut random = Random(seed);
    (0..n).map(|_| (random.next() % u64::from(end)) as u32).collect()
}

/// Weights in memory, so that cases use the same loading as a model.
pub(crate) fn weights(entries: &[(&str, &Input)], place: &Place) -> Weights {
    let dtype = entries.first().map_or(DType::F32, |(_, input)| input.dtype);
    let tensors = entries.iter().map(|(name, input)| {
        let bytes = input.values.iter().flat_map(|v| v.to_le_bytes()).collect();
        ((*name).to_string(), (Stored::Float(DType::F32), input.dims.clone(), bytes))
    });
    Weights::new(Arc::new(Memory(tensors.collect())), dtype, place.clone())
}

/// The weight of a product in quantized blocks, as in a GGUF file, and kept in blocks if the device
/// can.
#[derive(Clone)]
pub(crate) struct InBlocks {
    pub(crate) quant: Quant,
    pub(crate) dims: [usize; 2],
    data: Lazy<(Vec<u8>, Vec<f32>)>,
}

impl InBlocks {
    /// Blocks of about these values, `[n, k]`; random blocks if this format can be read but not
    /// written.
    pub(crate) fn of(
        seed: u64,
        quant: Quant,
        dims: [usize; 2],
        values: impl FnOnce() -> Vec<f32> + 'static,
    ) -> InBlocks {
        let make = move || {
            let (mut values, mut bytes) = (values(), Vec::new());
            if quantize(quant, &values, &mut bytes).is_err() {
                let any = quant.bytes(values.len()).unwrap_or_default();
                bytes = ids(seed, any, 256).into_iter().map(|byte| byte as u8).collect();
                make_scales_finite(quant, &mut bytes);
                // A code of this format times its inner scale may be 4,000. So the outer scale is a
                // small f16, and sums stay within f16.
                for block in bytes.chunks_exact_mut(quant.block().1).filter(|_| quant == Quant::Iq4Xs) {
                    block[1] = block[1] & 0x8f | 0x10;
                }
            }
            // These are whole blocks.
            let read = dequantize(quant, &bytes, &mut values).is_ok();
            debug_assert!(read);
            (bytes, values)
        };
        InBlocks { quant, dims, data: Lazy::new(make) }
    }

    /// The dequantized values.
    pub(crate) fn values(&self) -> &[f32] {
        &self.data.1
    }

    /// As `weight`, for activations of this dtype.
    pub(crate) fn weights(&self, dtype: DType, place: &Place) -> Weights {
        let (bytes, _) = &*self.data;
        let tensor = (Stored::Blocks(self.quant), self.dims.to_vec(), bytes.clone());
        let tensors = [("weight".to_string(), tensor)];
        Weights::new(Arc::new(Memory(tensors.into())), dtype, place.clone()).with_format(WeightFormat::File)
    }
}

struct Memory(BTreeMap<String, (Stored, Vec<usize>, Vec<u8>)>);

impl Store for Memory {
    fn get(&self, name: &str) -> Result<Option<Raw<'_>>> {
        Ok(self.0.get(name).map(|(stored, dims, bytes)| Raw {
            stored: *stored,
            dims: dims.clone(),
            bytes: bytes.into(),
        }))
    }
    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}

pub(crate) fn round(dtype: DType, x: f32) -> f32 {
    let rounded: Result<f32> = with_elem!("round", dtype, T => Ok(T::narrow(x).wide()));
    rounded.unwrap_or(x)
}

/// SplitMix64: short, and the same numbers on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In (0, 1).
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Box and Muller.
    fn normal(&mut self) -> f32 {
        let (u, v) = (self.unit(), self.unit());
        ((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
    }
}
