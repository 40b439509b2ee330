//! Matrix products and attention against the peak of this machine (a roofline): `cargo bench -p
//! sconce-ops --bench kernels [filter]`.
//!
//! The peaks are measured first: multiply-adds of floats and of bytes in registers, AMX tile
//! products, and reads of more memory than any cache holds. Each line is then one op on one
//! instruction set: the shortest of many runs, because whatever makes a run longer is not the
//! kernel, and its share of the peak that limits the shape.
#![allow(unsafe_code, reason = "the ceilings are loops of single instructions")]

mod peak;

use peak::NumberFormat;
use sconce_ops::{
    Activation, Attention, DType, Isa, Ladder, Linear, Place, Policy, Raw, Result, Segments, Store, Stored, Tensor,
    WeightFormat, Weights, attention, softmax,
};
use sconce_testkit::Rng;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// MiniLM's four products, and two of a larger encoder: k, n, the activation.
const SHAPES: [(usize, usize, Activation); 6] = [
    (384, 1152, Activation::None),
    (384, 384, Activation::None),
    (384, 1536, Activation::Gelu),
    (1536, 384, Activation::None),
    (768, 3072, Activation::Gelu),
    (3072, 768, Activation::None),
];

fn main() -> Result<()> {
    let filter = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_default();
    let threads = rayon::current_num_threads();
    let peaks = peak::measure();
    println!("{threads} threads: {peaks}");
    println!("{:44} {:>10} {:>9} {:>8} {:>6}", "op", "time", "GFLOP/s", "GB/s", "share");
    for m in [1, 16, 128, 1024, 4096] {
        for (k, n, activation) in SHAPES {
            for (isa, numbers) in
                float_paths().chain(Isa::all().filter(multiplies_bytes).map(|isa| (isa, NumberFormat::Int8)))
            {
                let format = format!("{numbers:?}").to_lowercase();
                let name = format!("linear {m}x{k}x{n} {activation} {format} {isa}");
                if !name.contains(&filter) {
                    continue;
                }
                let (dtype, weight_format, size) = match numbers {
                    NumberFormat::F32 => (DType::F32, WeightFormat::Activations, 4),
                    NumberFormat::Bf16 => (DType::BF16, WeightFormat::Activations, 2),
                    NumberFormat::Int8 => (DType::F32, WeightFormat::Bytes, 1),
                };
                let time = with_isa(isa, || {
                    let layer =
                        Linear::load(&random(dtype, k, n).with_format(weight_format), k, n, true)?.with(activation);
                    // The result of an op, as in models: its buffer is aligned to a cache line.
                    let x = softmax(&values(m * k, 1.0, dtype, &[m, k])?)?;
                    shortest(|| layer.forward(&x))
                })?;
                let (flops, bytes) = (2 * m * k * n, (m * k + m * n) * dtype.size() + k * n * size);
                peaks.print_row(&name, time, (flops, bytes), (isa, numbers));
            }
        }
    }
    for (count, length) in [(1, 16), (1, 128), (32, 128), (8, 512)] {
        for (isa, numbers) in float_paths() {
            let dtype = if numbers == NumberFormat::F32 { DType::F32 } else { DType::BF16 };
            let (heads, size) = (12, 32);
            let name = format!("attention {count}x{length} {heads}x{size} {dtype} {isa}");
            if !name.contains(&filter) {
                continue;
            }
            let time = with_isa(isa, || {
                let segments = Segments::new(&vec![length; count])?;
                let params = Attention::full(&segments, 1.0 / (size as f32).sqrt());
                let tokens = count * length;
                let qkv = values(tokens * 3 * heads * size, 1.0, dtype, &[tokens, 3, heads, size])?;
                let (q, k, v) = (qkv.select(1, 0)?, qkv.select(1, 1)?, qkv.select(1, 2)?);
                shortest(|| attention(&q, &k, &v, &params))
            })?;
            let flops = 4 * count * length * length * heads * size;
            peaks.print_row(&name, time, (flops, 4 * count * length * heads * size * dtype.size()), (isa, numbers));
        }
    }
    Ok(())
}

/// Every instruction set that has its own float kernels, with the dtypes of those.
fn float_paths() -> impl Iterator<Item = (Isa, NumberFormat)> {
    let bytes_only = |isa: &Isa| matches!(isa, Isa::Avx2Vnni | Isa::Avx512Vnni | Isa::NeonDot | Isa::NeonI8mm);
    let has_kernels = move |isa: &Isa| *isa != Isa::Scalar && !bytes_only(isa);
    let has_f32_kernels = move |isa: &Isa| has_kernels(isa) && *isa != Isa::Avx512Bf16;
    let f32s = Isa::all().filter(has_f32_kernels).map(|isa| (isa, NumberFormat::F32));
    f32s.chain(Isa::all().filter(has_kernels).map(|isa| (isa, NumberFormat::Bf16)))
}

/// Whether the instruction set has its own int8 kernels.
fn multiplies_bytes(isa: &Isa) -> bool {
    !matches!(isa, Isa::Scalar | Isa::Avx512Bf16)
}

fn with_isa<T>(isa: Isa, f: impl FnOnce() -> Result<T>) -> Result<T> {
    let _here = Ladder::new(Policy::default().with_isa(Some(isa))).enter();
    f()
}

/// The shortest run within 300 ms.
fn shortest(run: impl Fn() -> Result<Tensor>) -> Result<Duration> {
    let (start, mut best, mut runs) = (Instant::now(), Duration::MAX, 0);
    while runs < 3 || start.elapsed() < Duration::from_millis(300) {
        let one = Instant::now();
        std::hint::black_box(run()?);
        best = best.min(one.elapsed());
        runs += 1;
    }
    Ok(best)
}

fn values(n: usize, scale: f32, dtype: DType, dims: &[usize]) -> Result<Tensor> {
    Tensor::from_f32(&noise(n, scale), dims, dtype, &Place::cpu())
}

fn noise(n: usize, scale: f32) -> Vec<f32> {
    let mut rng = Rng::new(1);
    (0..n).map(|_| rng.unit_f32() * scale).collect()
}

struct Random(usize, usize);

impl Store for Random {
    fn get(&self, name: &str) -> Result<Option<Raw<'_>>> {
        let dims = if name == "bias" { vec![self.1] } else { vec![self.1, self.0] };
        let scale = 1.0 / (self.0 as f32).sqrt();
        let bytes: Vec<u8> = noise(dims.iter().product(), scale).iter().flat_map(|v| v.to_le_bytes()).collect();
        Ok(Some(Raw { stored: Stored::Float(DType::F32), dims, bytes: bytes.into() }))
    }
    fn names(&self) -> Vec<String> {
        vec!["weight".into(), "bias".into()]
    }
}

fn random(dtype: DType, k: usize, n: usize) -> Weights {
    Weights::new(Arc::new(Random(k, n)), dtype, Place::cpu())
}
