//! Loops of single instructions of x86-64.

use super::Numbers;
use sconce_ops::Isa;
use std::arch::asm;
use std::time::Instant;

fn rate(flops: f64, start: Instant) -> f64 {
    flops / start.elapsed().as_secs_f64() / 1e9
}

/// GFLOP/s, or GOP/s, of one thread; 0 where the set has no instructions of its own for these numbers.
pub(super) fn products(isa: Isa, numbers: Numbers) -> f64 {
    const TURNS: usize = 100_000;
    // Twelve chains, more than two units of five cycles need; `\n` is the number of each.
    macro_rules! turns {
        ($flops:expr, $($instruction:expr),+) => {{
            let start = Instant::now();
            // SAFETY: the instruction set was found; the registers are told.
            unsafe {
                asm!(
                    "2:",
                    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11",
                    $($instruction,)+
                    ".endr",
                    "dec {turns}",
                    "jnz 2b",
                    turns = inout(reg) TURNS => _,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                    out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                    out("xmm14") _,
                    options(nostack, nomem)
                );
            }
            rate((TURNS * 12 * $flops) as f64, start)
        }};
    }
    match (isa, numbers) {
        (Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Avx512, Numbers::F32) => {
            turns!(32, "vfmadd231ps zmm\\n, zmm12, zmm13")
        }
        // Six products of bf16 for one of f32.
        (Isa::Amx, Numbers::F32) => in_tiles(false) / 6.0,
        (Isa::Avx2 | Isa::Avx2Vnni, Numbers::F32) => turns!(16, "vfmadd231ps ymm\\n, ymm12, ymm13"),
        (Isa::Avx512Bf16, Numbers::Bf16) => turns!(64, "vdpbf16ps zmm\\n, zmm12, zmm13"),
        (Isa::Avx512Bf16 | Isa::Avx512Vnni, Numbers::Int8) => turns!(128, "vpdpbusd zmm\\n, zmm12, zmm13"),
        (Isa::Avx2Vnni, Numbers::Int8) => turns!(64, "{{vex}} vpdpbusd ymm\\n, ymm12, ymm13"),
        // Without a dot product of bytes it takes three instructions.
        (Isa::Avx512, Numbers::Int8) => turns!(
            128,
            "vpmaddubsw zmm14, zmm12, zmm13",
            "vpmaddwd zmm14, zmm14, zmm13",
            "vpaddd zmm\\n, zmm\\n, zmm14"
        ),
        (Isa::Avx2, Numbers::Int8) => {
            turns!(64, "vpmaddubsw ymm14, ymm12, ymm13", "vpmaddwd ymm14, ymm14, ymm13", "vpaddd ymm\\n, ymm\\n, ymm14")
        }
        (Isa::Amx, Numbers::Bf16) => in_tiles(false),
        (Isa::Amx, Numbers::Int8) => in_tiles(true),
        _ => 0.0,
    }
}

fn in_tiles(bytes: bool) -> f64 {
    const TURNS: usize = 20_000;
    #[repr(C, align(64))]
    struct Config([u8; 64]);
    let mut config = Config([0; 64]);
    config.0[0] = 1;
    (0..8).for_each(|tile| (config.0[16 + 2 * tile], config.0[48 + tile]) = (64, 16));
    macro_rules! turns {
        ($dot:literal) => {
            asm!(
                "2:",
                concat!($dot, " tmm0, tmm4, tmm6"),
                concat!($dot, " tmm1, tmm4, tmm7"),
                concat!($dot, " tmm2, tmm5, tmm6"),
                concat!($dot, " tmm3, tmm5, tmm7"),
                "dec {turns}",
                "jnz 2b",
                "tilerelease",
                turns = inout(reg) TURNS => _,
                options(nostack, nomem)
            )
        };
    }
    let start;
    // SAFETY: `Isa::Amx` is there, so the system has given its permission; the tiles are given back.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly));
        start = Instant::now();
        if bytes { turns!("tdpbssd") } else { turns!("tdpbf16ps") }
    }
    rate((TURNS * 4 * 16 * 16 * (if bytes { 64 } else { 32 }) * 2) as f64, start)
}
