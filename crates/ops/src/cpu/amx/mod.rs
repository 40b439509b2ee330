//! Matrix products with Intel AMX tiles: one instruction multiplies sixteen rows of A by sixteen
//! columns of B, 64 bytes deep, which is 32 bf16 or 64 int8. bf16 and int8 differ only in the
//! instruction. f32 is multiplied as three bf16: see [`bf16x3`].
//!
//! Four tiles hold sums, two hold A and two hold B. A block of 32 rows by a panel needs one load
//! per product, which is what the load ports can deliver.
#![allow(
    unsafe_code,
    reason = "tile instructions, which Rust has no stable intrinsics for, and the pointers they take"
)]

pub(crate) mod bf16x3;
mod dots;
mod products;

pub(crate) use products::{Operand, Task, bytes_of, into};
pub(super) use products::{multiply, multiply_bytes};

use super::gemm::PANEL;
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::OnceLock;

/// Rows of a block, and sums of a block: as many columns as a panel has.
const ROWS: usize = 32;
const SUMS: usize = ROWS * PANEL;

/// Bytes from row to row of a block's sums.
const ACROSS: usize = PANEL * size_of::<f32>();

/// Bytes of a tile's row, of A and of B; four bytes of one column of B are adjacent.
const ROW: usize = 64;

/// Bytes of a panel that a step reads.
const STEP: usize = ROW * PANEL;

/// Whether the processor has AMX and the operating system permits it. Asked once: the permission is
/// per process.
pub(super) fn available() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| has_tiles() && is_permitted())
}

/// Whether cpuid reports AMX-TILE, AMX-BF16 and AMX-INT8, and the system saves tiles at context
/// switches.
fn has_tiles() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const AMX: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    const SAVED: u64 = 0b11 << 17;
    __cpuid(0).eax >= 7
        && __cpuid(1).ecx & OSXSAVE != 0
        && __cpuid_count(7, 0).edx & AMX == AMX
        // SAFETY: OSXSAVE says that the instruction exists.
        && unsafe { saved_state() } & SAVED == SAVED
}

#[target_feature(enable = "xsave")]
fn saved_state() -> u64 {
    // SAFETY: register 0 exists wherever the instruction does.
    unsafe { _xgetbv(0) }
}

/// Linux saves a thread's tiles only after a permission request; other systems are not known to
/// need one.
fn is_permitted() -> bool {
    if !cfg!(target_os = "linux") {
        return false;
    }
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XFEATURE_XTILEDATA: i64 = 18;
    let answer: i64;
    // SAFETY: a system call that takes two numbers and touches no memory of ours; it may clobber
    // rcx and r11.
    unsafe {
        asm!("syscall", inlateout("rax") ARCH_PRCTL => answer, in("rdi") ARCH_REQ_XCOMP_PERM,
             in("rsi") XFEATURE_XTILEDATA, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    answer == 0
}

/// Operand of ldtilecfg: the rows of each tile and the bytes of a row.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

/// The tile configuration of this thread, released when dropped. One at a time: a second one
/// overwrites the first.
#[derive(Default)]
pub(crate) struct Tiles(usize);

impl Tiles {
    /// Configures the tiles for blocks of `rows` rows: sums in tiles 0 to 3, A in 4 and 5, B in 6
    /// and 7.
    fn fit(&mut self, rows: usize) {
        if self.0 == rows {
            return;
        }
        debug_assert!((1..=ROWS).contains(&rows) && available());
        let (upper, lower) = (rows.min(16) as u8, rows.saturating_sub(16).max(1) as u8);
        let mut config = Config { palette: 1, start: 0, reserved: [0; 14], bytes: [0; 16], rows: [0; 16] };
        config.bytes[..8].fill(64);
        config.rows[..8].copy_from_slice(&[upper, upper, lower, lower, upper, lower, 16, 16]);
        // SAFETY: the configuration is complete and valid; `available` found the instruction.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, preserves_flags, readonly)) };
        self.0 = rows;
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: `available` found the instruction. Context switches are faster without tiles.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
    }
}
