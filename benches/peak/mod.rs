//! Peak arithmetic and memory throughput of this machine, on all threads at once.

#[cfg(target_arch = "x86_64")]
#[path = "x86.rs"]
mod loops;
#[cfg(not(target_arch = "x86_64"))]
#[path = "other.rs"]
mod loops;

use sconce_ops::Isa;
use std::fmt;
use std::time::{Duration, Instant};

/// The number formats; each has its own instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberFormat {
    F32,
    Bf16,
    Int8,
}

/// GFLOP/s of multiply-adds by instruction set and number format, and GB/s of memory.
pub(crate) struct Peaks {
    products: Vec<(Isa, NumberFormat, f64)>,
    memory: f64,
}

/// Runs each loop a few times on every thread and keeps the best rate.
pub(crate) fn measure() -> Peaks {
    let each = |numbers| Isa::all().map(move |isa| (isa, numbers, sum_of_threads(|| loops::products(isa, numbers))));
    let found = each(NumberFormat::F32).chain(each(NumberFormat::Bf16)).chain(each(NumberFormat::Int8));
    Peaks { products: found.filter(|(.., peak)| *peak > 0.0).collect(), memory: memory() }
}

impl Peaks {
    /// Prints one line of the table. The limit is arithmetic or memory, whichever takes longer.
    pub(crate) fn print_row(
        &self,
        name: &str,
        time: Duration,
        (flops, bytes): (usize, usize),
        path: (Isa, NumberFormat),
    ) {
        let seconds = time.as_secs_f64();
        let of = |path| self.products.iter().find(|(isa, numbers, _)| (*isa, *numbers) == path).map(|(.., peak)| *peak);
        // Without bf16 instructions, bf16 is widened to f32.
        let peak = of(path).or_else(|| of((path.0, NumberFormat::F32))).unwrap_or(0.0);
        let (flops, bytes) = (flops as f64 / 1e9, bytes as f64 / 1e9);
        let shortest = (flops / peak).max(bytes / self.memory);
        let limit = if flops / peak > bytes / self.memory { "" } else { " of memory" };
        println!(
            "{name:44} {:>7.1} µs {:>9.0} {:>8.1} {:>5.0}%{limit}",
            seconds * 1e6,
            flops / seconds,
            bytes / seconds,
            100.0 * shortest / seconds
        );
    }
}

impl fmt::Display for Peaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (isa, numbers, peak) in &self.products {
            write!(f, "{isa} {numbers:?} {peak:.0} GFLOP/s, ")?;
        }
        write!(f, "memory {:.1} GB/s", self.memory)
    }
}

/// The best of ten sums of `one`'s rate over all threads.
fn sum_of_threads(one: impl Fn() -> f64 + Sync) -> f64 {
    (0..10).map(|_| rayon::broadcast(|_| one()).into_iter().sum()).fold(0.0, f64::max)
}

/// Every thread reads 64 MiB, which exceeds any L2 cache. A shared L3 cache may hold them, as it
/// may hold a model's weights.
fn memory() -> f64 {
    let words: Vec<u64> = vec![1; 8 << 20];
    let read = || {
        let start = Instant::now();
        let sums = words.chunks_exact(8).fold([0u64; 8], |mut sums, eight| {
            sums.iter_mut().zip(eight).for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
            sums
        });
        std::hint::black_box(sums);
        size_of_val(&*words) as f64 / start.elapsed().as_secs_f64() / 1e9
    };
    sum_of_threads(read)
}
