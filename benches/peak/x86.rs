//! Loops of single x86-64 instructions.

use super::NumberFormat;
use sconce_ops::Isa;
use std::arch::asm;
use std::time::Instant;

fn rate(flops: f64, start: Instant) -> f64 {
    flops / start.elapsed().as_secs_f64() / 1e9
}

/// GFLOP/s (or GOP/s) of one thread; 0 if the instruction set has no instructions of its own for
/// the number format.
pub(super) fn products(isa: Isa, numbers: NumberFormat) -> f64 {
    const TURNS: usize = 100_000;
    // Twelve dependency chains: two units of five cycles latency need ten. `
    // ` is the register number.
    macro_rules! turns {
        ($flops:expr, $($instruction:expr),+) => {{
            let start = Instant::now();
            // SAFETY: the processor has the instruction set, and the clobbered registers are
            // declared.
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
        (Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Avx512, NumberFormat::F32) => {
            turns!(32, "vfmadd231ps zmm\\n, zmm12, zmm13")
        }
        // An f32 product takes six bf16 products.
        (Isa::Amx, NumberFormat::F32) => amx_tiles(false) / 6.0,
        (Isa::Avx2 | Isa::Avx2Vnni, NumberFormat::F32) => turns!(16, "vfmadd231ps ymm\\n, ymm12, ymm13"),
        (Isa::Avx512Bf16, NumberFormat::Bf16) => turns!(64, "vdpbf16ps zmm\\n, zmm12, zmm13"),
        (Isa::Avx512Bf16 | Isa::Avx512Vnni, NumberFormat::Int8) => turns!(128, "vpdpbusd zmm\\n, zmm12, zmm13"),
        (Isa::Avx2Vnni, NumberFormat::Int8) => turns!(64, "{{vex}} vpdpbusd ymm\\n, ymm12, ymm13"),
        // Without a byte dot product, it takes three instructions.
        (Isa::Avx512, NumberFormat::Int8) => turns!(
            128,
            "vpmaddubsw zmm14, zmm12, zmm13",
            "vpmaddwd zmm14, zmm14, zmm13",
            "vpaddd zmm\\n, zmm\\n, zmm14"
        ),
        (Isa::Avx2, NumberFormat::Int8) => {
            turns!(64, "vpmaddubsw ymm14, ymm12, ymm13", "vpmaddwd ymm14, ymm14, ymm13", "vpaddd ymm\\n, ymm\\n, ymm14")
        }
        (Isa::Amx, NumberFormat::Bf16) => amx_tiles(false),
        (Isa::Amx, NumberFormat::Int8) => amx_tiles(true),
        _ => 0.0,
    }
}

fn amx_tiles(bytes: bool) -> f64 {
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
    // SAFETY: `Isa::Amx` was detected, so the system permits AMX; `tilerelease` releases the tiles.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly));
        start = Instant::now();
        if bytes { turns!("tdpbssd") } else { turns!("tdpbf16ps") }
    }
    rate((TURNS * 4 * 16 * 16 * (if bytes { 64 } else { 32 }) * 2) as f64, start)
}
