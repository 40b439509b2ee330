//! AMX: dot products of bytes of 16 rows with 16 others in one instruction.
//!
//! Rust has no stable intrinsics for it, so the few instructions are written out. Tiles are configured by whoever uses them and
//! let go of afterwards: a thread that holds none is cheap to switch away from.
#![allow(unsafe_code, reason = "instructions that `granted` has found and been allowed to use")]

use std::arch::asm;
use std::sync::OnceLock;

/// Rows of a tile.
pub(crate) const TILE: usize = 16;

/// Sums of 16 rows with 16 others.
#[repr(C, align(64))]
pub(crate) struct Sums(pub(crate) [[i32; TILE]; TILE]);

/// Whether the processor has tiles of bytes and the kernel lets this process use them, which it wants to be asked for.
pub(crate) fn granted() -> bool {
    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(|| {
        const TILES_AND_BYTES: u32 = 1 << 24 | 1 << 25;
        let found = std::arch::x86_64::__cpuid_count(7, 0).edx & TILES_AND_BYTES == TILES_AND_BYTES;
        found && cfg!(target_os = "linux") && ask()
    })
}

/// arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA): an old kernel says that it does not know the question.
fn ask() -> bool {
    let (call, question, what) = (158, 0x1023, 18);
    let mut answer: isize = call;
    // SAFETY: a system call that takes two numbers, reads and writes no memory, and keeps all registers but these three.
    unsafe {
        asm!("syscall", inlateout("rax") answer, in("rdi") question, in("rsi") what, lateout("rcx") _, lateout("r11") _,
             options(nostack));
    }
    answer == 0
}

/// Products that are under way at once. One takes the processor some fifty cycles; more of them take hardly longer.
pub(crate) const AT_ONCE: usize = 4;

/// The shapes of the eight tiles, while it lives.
///
/// 0 to 3 are sums. 4 and 5 hold `4 · LINES` bytes of 16 rows, 6 and 7 as many of 16 others, four bytes of each to a line.
pub(crate) struct Tiles<const LINES: usize>(());

#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    /// Bytes of a row.
    bytes: [u16; 16],
    rows: [u8; 16],
}

impl<const LINES: usize> Tiles<LINES> {
    const SHAPES: &'static Shapes = {
        let (bytes, lines) = (4 * LINES as u16, LINES as u8);
        &Shapes {
            palette: 1,
            start: 0,
            reserved: [0; 14],
            bytes: [64, 64, 64, 64, bytes, bytes, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
            rows: [16, 16, 16, 16, 16, 16, lines, lines, 0, 0, 0, 0, 0, 0, 0, 0],
        }
    };

    /// # Safety
    /// Only where [`granted`].
    #[inline(always)]
    pub(crate) unsafe fn new() -> Self {
        const { assert!(LINES > 0 && LINES <= TILE) };
        // SAFETY: 64 bytes that are a valid configuration; nobody else's tiles are in use on this thread.
        unsafe { asm!("ldtilecfg [{}]", in(reg) Self::SHAPES, options(nostack, preserves_flags, readonly)) };
        Tiles(())
    }

    /// Each `sums` is the products of 16 rows of signed bytes, `stride` bytes apart at its `x`, with its lines of unsigned ones.
    ///
    /// # Safety
    /// All of them can be read.
    #[inline(always)]
    pub(crate) unsafe fn dot(
        &self,
        x: [*const i8; AT_ONCE],
        stride: usize,
        lines: [*const u8; AT_ONCE],
        sums: &mut [Sums; AT_ONCE],
    ) {
        // SAFETY: the caller's, and the configuration of `self`.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tileloadd tmm4, [{x0} + {stride}*1]",
                "tileloadd tmm6, [{l0} + {line}*1]",
                "tdpbsud tmm0, tmm4, tmm6",
                "tilezero tmm1",
                "tileloadd tmm5, [{x1} + {stride}*1]",
                "tileloadd tmm7, [{l1} + {line}*1]",
                "tdpbsud tmm1, tmm5, tmm7",
                "tilezero tmm2",
                "tileloadd tmm4, [{x2} + {stride}*1]",
                "tileloadd tmm6, [{l2} + {line}*1]",
                "tdpbsud tmm2, tmm4, tmm6",
                "tilezero tmm3",
                "tileloadd tmm5, [{x3} + {stride}*1]",
                "tileloadd tmm7, [{l3} + {line}*1]",
                "tdpbsud tmm3, tmm5, tmm7",
                "tilestored [{sums} + {line}*1], tmm0",
                "tilestored [{sums} + {line}*1 + 1024], tmm1",
                "tilestored [{sums} + {line}*1 + 2048], tmm2",
                "tilestored [{sums} + {line}*1 + 3072], tmm3",
                x0 = in(reg) x[0], x1 = in(reg) x[1], x2 = in(reg) x[2], x3 = in(reg) x[3],
                l0 = in(reg) lines[0], l1 = in(reg) lines[1], l2 = in(reg) lines[2], l3 = in(reg) lines[3],
                stride = in(reg) stride, line = in(reg) 64usize, sums = in(reg) sums,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, preserves_flags),
            );
        }
    }
}

impl<const LINES: usize> Drop for Tiles<LINES> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: what `new` configured.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}
