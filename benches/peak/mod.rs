//! What this machine can do at most, on all threads of the pool at once.

use sconce_ops::{DType, Isa};
use std::fmt;
use std::time::{Duration, Instant};

/// GFLOP/s of multiply-adds by instruction set and of tile products, GB/s of memory.
pub(crate) struct Peaks {
    fma: Vec<(Isa, f64)>,
    tiles: f64,
    memory: f64,
}

/// Runs each loop a few times on every thread and keeps the best.
pub(crate) fn measure() -> Peaks {
    let fma = Isa::all().map(|isa| (isa, all(|| fma(isa)))).collect();
    let tiles = if Isa::all().any(|isa| isa == Isa::Amx) { all(tiles) } else { 0.0 };
    Peaks { fma, tiles, memory: memory() }
}

impl Peaks {
    /// One line of the table. The ceiling is the sooner reached of arithmetic and memory.
    pub(crate) fn tell(&self, name: &str, time: Duration, (flops, bytes): (usize, usize), (isa, dtype): (Isa, DType)) {
        let seconds = time.as_secs_f64();
        let most = match (isa, dtype) {
            (Isa::Amx, DType::BF16) => self.tiles,
            _ => self.fma.iter().find(|(i, _)| *i == isa).map_or(0.0, |(_, peak)| *peak),
        };
        let (flops, bytes) = (flops as f64 / 1e9, bytes as f64 / 1e9);
        let least = (flops / most).max(bytes / self.memory);
        let binds = if flops / most > bytes / self.memory { "" } else { " of memory" };
        println!(
            "{name:44} {:>7.1} µs {:>9.0} {:>8.1} {:>5.0}%{binds}",
            seconds * 1e6,
            flops / seconds,
            bytes / seconds,
            100.0 * least / seconds
        );
    }
}

impl fmt::Display for Peaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (isa, peak) in self.fma.iter().filter(|(_, peak)| *peak > 0.0) {
            write!(f, "{isa} {peak:.0} GFLOP/s, ")?;
        }
        if self.tiles > 0.0 {
            write!(f, "tiles {:.0} GFLOP/s, ", self.tiles)?;
        }
        write!(f, "memory {:.1} GB/s", self.memory)
    }
}

/// The sum over all threads of the rates that `one` gives, the best of ten.
fn all(one: impl Fn() -> f64 + Sync) -> f64 {
    (0..10).map(|_| rayon::broadcast(|_| one()).into_iter().sum()).fold(0.0, f64::max)
}

/// Reads of 64 MiB a thread, which no second-level cache holds. A shared cache may hold them, as it may hold a model's weights.
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
    all(read)
}

fn rate(flops: f64, start: Instant) -> f64 {
    flops / start.elapsed().as_secs_f64() / 1e9
}

#[cfg(target_arch = "x86_64")]
fn fma(isa: Isa) -> f64 {
    use std::arch::asm;
    const TURNS: usize = 100_000;
    // Twelve chains, more than two units of four cycles need.
    macro_rules! turns {
        ($register:literal, $lanes:expr) => {{
            let start = Instant::now();
            // SAFETY: the instruction set was found; the registers are told.
            unsafe {
                asm!(
                    "2:",
                    concat!("vfmadd231ps ", $register, "0, ", $register, "12, ", $register, "13"),
                    concat!("vfmadd231ps ", $register, "1, ", $register, "12, ", $register, "13"),
                    concat!("vfmadd231ps ", $register, "2, ", $register, "12, ", $register, "13"),
                    concat!("vfmadd231ps ", $register, "3, ", $register, "12, ", $register, "13"),
                    concat!("vfmadd231ps ", $register, "4, ", $register, "12, ", $register, "13"),
                    concat!("vfmadd231ps ", $register, "5, ", $register, "12, ", $register, "13"),
                    concat!("vfmadd231ps ", $register, "6, ", $register, "12, ", $register, "13"),
                    concat!("vfmadd231ps ", $register, "7, ", $register, "12, ", $register, "13"),
                    concat!("vfmadd231ps ", $register, "8, ", $register, "12, ", $register, "13"),
                    concat!("vfmadd231ps ", $register, "9, ", $register, "12, ", $register, "13"),
                    concat!("vfmadd231ps ", $register, "10, ", $register, "12, ", $register, "13"),
                    concat!("vfmadd231ps ", $register, "11, ", $register, "12, ", $register, "13"),
                    "dec {turns}",
                    "jnz 2b",
                    turns = inout(reg) TURNS => _,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                    out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                    options(nostack, nomem)
                );
            }
            rate((TURNS * 12 * $lanes * 2) as f64, start)
        }};
    }
    match isa {
        Isa::Avx512 | Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx => turns!("zmm", 16),
        Isa::Avx2 | Isa::Avx2Vnni => turns!("ymm", 8),
        _ => 0.0,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn fma(_: Isa) -> f64 {
    // Nobody has written the loop; shares are told as none.
    0.0
}

#[cfg(target_arch = "x86_64")]
fn tiles() -> f64 {
    use std::arch::asm;
    const TURNS: usize = 20_000;
    #[repr(C, align(64))]
    struct Config([u8; 64]);
    let mut config = Config([0; 64]);
    config.0[0] = 1;
    (0..8).for_each(|tile| (config.0[16 + 2 * tile], config.0[48 + tile]) = (64, 16));
    let start;
    // SAFETY: `Isa::Amx` is there, so the system has given its permission; the tiles are given back.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly));
        start = Instant::now();
        asm!(
            "2:",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "dec {turns}",
            "jnz 2b",
            "tilerelease",
            turns = inout(reg) TURNS => _,
            options(nostack, nomem)
        );
    }
    rate((TURNS * 4 * 16 * 16 * 32 * 2) as f64, start)
}

#[cfg(not(target_arch = "x86_64"))]
fn tiles() -> f64 {
    0.0
}
