//! The tile instructions of one step of an AMX product, for bf16 and for int8.
#![allow(unsafe_code, reason = "tile instructions, which Rust has no stable intrinsics for")]

use super::{ACROSS, ROW, STEP};
use crate::cpu::gemm::PANEL;
use std::arch::asm;

/// Operands of a block's steps. The instructions name their tile registers: the compiler does not
/// know or use any.
pub(super) struct Step {
    pub(super) a: *const u8,
    /// Bytes from the upper sixteen rows to the lower sixteen.
    pub(super) lower: usize,
    /// Bytes from row to row.
    pub(super) stride: usize,
    pub(super) b: *const u8,
    /// Destination of the sums, and its bytes from row to row.
    pub(super) at: *mut f32,
    pub(super) across: usize,
}

/// Element type of a group of four bytes, which determines the instruction that multiplies them.
pub(super) trait Dots {
    /// Stores the sums of the block before, whatever they are, and computes the first step of the
    /// next block, one tile after another, so that the other tiles are multiplied while one is
    /// stored.
    ///
    /// # Safety
    /// As for [`Dots::both`], and `at` holds a block.
    unsafe fn first_both(step: &Step);

    /// [`Dots::first_both`] for no more than sixteen rows.
    ///
    /// # Safety
    /// As for [`Dots::first_both`].
    unsafe fn first_upper(step: &Step);

    /// Adds one step to the sums of both halves of the rows and both halves of the panel.
    ///
    /// # Safety
    /// Step `i` must lie in A and B, and the tiles must be configured for these rows.
    unsafe fn both(step: &Step, i: usize);

    /// [`Dots::both`] for no more than sixteen rows.
    ///
    /// # Safety
    /// As for [`Dots::both`].
    unsafe fn upper(step: &Step, i: usize);
}

/// Two bf16, with sums in f32.
pub(super) struct Pairs;

/// Four signed bytes, with sums in i32.
pub(super) struct Fours;

macro_rules! dots {
    ($name:ident, $dot:literal) => {
        impl Dots for $name {
            #[inline(always)]
            unsafe fn first_both(step: &Step) {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    asm!(
                        "tileloadd tmm4, [{a} + {stride}*1]",
                        "tileloaddt1 tmm6, [{b} + {row}*1]",
                        "tilestored [{at} + {across}*1], tmm0",
                        "tilezero tmm0",
                        concat!($dot, " tmm0, tmm4, tmm6"),
                        "tileloaddt1 tmm7, [{b} + {row}*1 + 64]",
                        "tilestored [{at} + {across}*1 + 64], tmm1",
                        "tilezero tmm1",
                        concat!($dot, " tmm1, tmm4, tmm7"),
                        "tileloadd tmm5, [{lower} + {stride}*1]",
                        "tilestored [{below} + {across}*1], tmm2",
                        "tilezero tmm2",
                        concat!($dot, " tmm2, tmm5, tmm6"),
                        "tilestored [{below} + {across}*1 + 64], tmm3",
                        "tilezero tmm3",
                        concat!($dot, " tmm3, tmm5, tmm7"),
                        a = in(reg) step.a,
                        lower = in(reg) step.a.add(step.lower),
                        stride = in(reg) step.stride,
                        b = in(reg) step.b,
                        at = in(reg) step.at,
                        below = in(reg) step.at.byte_add(16 * step.across),
                        across = in(reg) step.across,
                        row = in(reg) PANEL * 4,
                        options(nostack, preserves_flags)
                    );
                }
            }

            #[inline(always)]
            unsafe fn first_upper(step: &Step) {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    asm!(
                        "tileloadd tmm4, [{a} + {stride}*1]",
                        "tileloaddt1 tmm6, [{b} + {row}*1]",
                        "tilestored [{at} + {across}*1], tmm0",
                        "tilezero tmm0",
                        concat!($dot, " tmm0, tmm4, tmm6"),
                        "tileloaddt1 tmm7, [{b} + {row}*1 + 64]",
                        "tilestored [{at} + {across}*1 + 64], tmm1",
                        "tilezero tmm1",
                        concat!($dot, " tmm1, tmm4, tmm7"),
                        a = in(reg) step.a,
                        stride = in(reg) step.stride,
                        b = in(reg) step.b,
                        at = in(reg) step.at,
                        across = in(reg) step.across,
                        row = in(reg) PANEL * 4,
                        options(nostack, preserves_flags)
                    );
                }
            }

            #[inline(always)]
            unsafe fn both(step: &Step, i: usize) {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    let a = step.a.add(i * ROW);
                    asm!(
                        "tileloadd tmm4, [{a} + {stride}*1]",
                        "tileloaddt1 tmm6, [{b} + {group}*1]",
                        concat!($dot, " tmm0, tmm4, tmm6"),
                        "tileloaddt1 tmm7, [{b} + {group}*1 + 64]",
                        concat!($dot, " tmm1, tmm4, tmm7"),
                        "tileloadd tmm5, [{lower} + {stride}*1]",
                        concat!($dot, " tmm2, tmm5, tmm6"),
                        concat!($dot, " tmm3, tmm5, tmm7"),
                        a = in(reg) a,
                        lower = in(reg) a.add(step.lower),
                        stride = in(reg) step.stride,
                        b = in(reg) step.b.add(i * STEP),
                        group = in(reg) PANEL * 4,
                        options(nostack, preserves_flags, readonly)
                    );
                }
            }

            #[inline(always)]
            unsafe fn upper(step: &Step, i: usize) {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    asm!(
                        "tileloadd tmm4, [{a} + {stride}*1]",
                        "tileloaddt1 tmm6, [{b} + {group}*1]",
                        concat!($dot, " tmm0, tmm4, tmm6"),
                        "tileloaddt1 tmm7, [{b} + {group}*1 + 64]",
                        concat!($dot, " tmm1, tmm4, tmm7"),
                        a = in(reg) step.a.add(i * ROW),
                        stride = in(reg) step.stride,
                        b = in(reg) step.b.add(i * STEP),
                        group = in(reg) PANEL * 4,
                        options(nostack, preserves_flags, readonly)
                    );
                }
            }
        }
    };
}

dots!(Pairs, "tdpbf16ps");
dots!(Fours, "tdpbssd");

/// Stores the sums, `across` bytes from row to row; `lower`: those of the lower sixteen rows too.
///
/// # Safety
/// The tiles are configured for the block's rows; `at` holds a block.
#[inline(always)]
pub(super) unsafe fn store(at: *mut f32, across: usize, lower: bool) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        asm!("tilestored [{at} + {across}*1], tmm0", "tilestored [{at} + {across}*1 + 64], tmm1",
             at = in(reg) at, across = in(reg) across, options(nostack, preserves_flags));
        if lower {
            asm!("tilestored [{at} + {across}*1], tmm2", "tilestored [{at} + {across}*1 + 64], tmm3",
                 at = in(reg) at.byte_add(16 * across), across = in(reg) across, options(nostack, preserves_flags));
        }
    }
}

/// Loads sums that [`store`] wrote; `lower`: those of the lower sixteen rows too.
///
/// # Safety
/// As for [`store`].
#[inline(always)]
pub(super) unsafe fn load(at: *const f32, lower: bool) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        asm!("tileloadd tmm0, [{at} + {across}*1]", "tileloadd tmm1, [{at} + {across}*1 + 64]",
             at = in(reg) at, across = in(reg) ACROSS, options(nostack, preserves_flags, readonly));
        if lower {
            asm!("tileloadd tmm2, [{at} + {across}*1]", "tileloadd tmm3, [{at} + {across}*1 + 64]",
                 at = in(reg) at.add(16 * PANEL), across = in(reg) ACROSS, options(nostack, preserves_flags, readonly));
        }
    }
}
