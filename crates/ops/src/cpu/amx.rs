//! Products of bf16 in tiles: sixteen rows of A by sixteen columns of B in one instruction, 32 deep.
//!
//! Four tiles of sums, two of A and two of B: a block of 32 rows by a panel reads as many tiles as it multiplies, which is what
//! the load ports can feed. A is read where it is, B from its panel in pairs. While one block is multiplied, the sums of the one
//! before go to the sink: its activation costs as much as the products, and another part of the core does it.
#![allow(
    unsafe_code,
    reason = "tile instructions, which Rust has no stable intrinsics for, and the pointers they take"
)]

use super::Lanes;
use super::gemm::{PANEL, Panels, Room, Sink, TILE_DEPTH, whole};
use super::rows::Rows;
use half::bf16;
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::ops::Range;
use std::sync::OnceLock;

/// Rows of a block, and sums of it: as many as a panel has columns.
const ROWS: usize = 32;
const SUMS: usize = ROWS * PANEL;

/// Steps whose part of a panel is kept in the first-level cache (24 KiB of its 48), while blocks of rows pass by.
const STEPS: usize = 12;

/// Whether the processor has tiles and the kernel lets us use them. It is asked once: the permission is the process's.
pub(super) fn available() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| has_tiles() && is_permitted())
}

/// TILE, BF16 and INT8 by cpuid, and that the system saves tiles when it switches threads.
fn has_tiles() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const AMX: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    const SAVED: u64 = 0b11 << 17;
    __cpuid(0).eax >= 7
        && __cpuid(1).ecx & OSXSAVE != 0
        && __cpuid_count(7, 0).edx & AMX == AMX
        // SAFETY: OSXSAVE says that the instruction is there.
        && unsafe { saved_state() } & SAVED == SAVED
}

#[target_feature(enable = "xsave")]
fn saved_state() -> u64 {
    // SAFETY: register 0 is there with the instruction.
    unsafe { _xgetbv(0) }
}

/// Linux makes room for a thread's tiles only after it was asked; other systems are not known to.
fn is_permitted() -> bool {
    if !cfg!(target_os = "linux") {
        return false;
    }
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XFEATURE_XTILEDATA: i64 = 18;
    let answer: i64;
    // SAFETY: a system call that takes two numbers and touches no memory of ours; it may clobber rcx and r11.
    unsafe {
        asm!("syscall", inlateout("rax") ARCH_PRCTL => answer, in("rdi") ARCH_REQ_XCOMP_PERM,
             in("rsi") XFEATURE_XTILEDATA, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    answer == 0
}

/// What ldtilecfg reads: the rows of each tile and the bytes of a row.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

/// The tiles of this thread, for blocks of so many rows; given back when dropped.
struct Tiles(usize);

impl Tiles {
    /// Makes them fit blocks of `rows` rows: sums in tiles 0 to 3, A in 4 and 5, B in 6 and 7.
    fn fit(&mut self, rows: usize) {
        if self.0 == rows {
            return;
        }
        debug_assert!((1..=ROWS).contains(&rows) && available());
        let (upper, lower) = (rows.min(16) as u8, rows.saturating_sub(16).max(1) as u8);
        let mut config = Config { palette: 1, start: 0, reserved: [0; 14], bytes: [0; 16], rows: [0; 16] };
        config.bytes[..8].fill(64);
        config.rows[..8].copy_from_slice(&[upper, upper, lower, lower, upper, lower, 16, 16]);
        // SAFETY: the configuration is whole and valid; `available` found the instruction.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, preserves_flags, readonly)) };
        self.0 = rows;
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: `available` found the instruction. A thread without tiles is switched faster.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
    }
}

/// A block's sums that the sink has not taken yet.
struct Pending {
    slot: usize,
    row: usize,
    column: usize,
    rows: Range<usize>,
}

impl Pending {
    /// The next `count` of its rows go to the sink.
    #[inline(always)]
    fn hand_over<S: Lanes>(&mut self, count: usize, sums: &[f32], sink: &mut impl Sink) {
        let end = (self.rows.start + count).min(self.rows.end);
        for r in self.rows.start..end {
            let (rows, _) = sums[self.slot * SUMS..][..SUMS].as_chunks::<PANEL>();
            sink.take::<S>(self.row + r, self.column, &rows[r]);
        }
        self.rows.start = end;
    }
}

/// [`super::gemm::multiply`] in tiles.
#[inline(always)]
pub(super) fn multiply<S: Lanes>(
    a: Rows<'_, bf16>,
    b: Panels<'_, bf16>,
    rows: Range<usize>,
    panels: Range<usize>,
    room: &mut Room,
    sink: &mut impl Sink,
) {
    let Room { padded, sums, .. } = room;
    let a = whole(a, &rows, TILE_DEPTH, padded);
    assert!(a.data.len() >= (a.rows - 1) * a.stride + a.cols);
    let (steps, blocks) = (a.cols / TILE_DEPTH, a.rows.div_ceil(ROWS));
    // One block reads a panel once, wherever it is; several read the part of it that the cache keeps.
    let chunk = if blocks == 1 { steps } else { steps.div_ceil(steps.div_ceil(STEPS)) };
    let slots = if chunk == steps { 2 } else { blocks };
    sums.resize(sums.len().max(slots * SUMS), 0.0);
    let mut tiles = Tiles(0);
    let mut pending = Pending { slot: 0, row: 0, column: 0, rows: 0..0 };
    let mut turn = 0;
    for panel in panels {
        let b = b.panel(panel);
        for first in (0..steps).step_by(chunk) {
            let depth = first..(first + chunk).min(steps);
            for block in 0..blocks {
                let own = (a.rows - block * ROWS).min(ROWS);
                tiles.fit(own);
                turn += 1;
                let slot = if chunk == steps { turn % 2 } else { block };
                let step = Step {
                    a: a.data[block * ROWS * a.stride + first * TILE_DEPTH..].as_ptr(),
                    lower: if own > 16 { 16 * a.stride } else { 0 },
                    stride: a.stride * size_of::<bf16>(),
                    b: b[first * TILE_DEPTH * PANEL..].as_ptr(),
                };
                let at = sums[slot * SUMS..][..SUMS].as_mut_ptr();
                // SAFETY: `own` rows of A, the panel's part of `depth` and a block of sums are where the pointers say, as the
                // slices above have shown; rows of A reach to the end of the last step.
                unsafe {
                    if first == 0 {
                        zero();
                    } else {
                        load(at, own > 16);
                    }
                    let each = pending.rows.len().div_ceil(depth.len());
                    for i in 0..depth.len() {
                        if own > 16 {
                            step.both(i)
                        } else {
                            step.upper(i)
                        }
                        pending.hand_over::<S>(each, sums, sink);
                    }
                    store(at, own > 16);
                }
                if depth.end == steps {
                    pending = Pending { slot, row: rows.start + block * ROWS, column: panel * PANEL, rows: 0..own };
                }
            }
        }
    }
    pending.hand_over::<S>(ROWS, sums, sink);
}

/// Where a block's steps read. Tile registers are named in the instructions: the compiler knows of none and uses none.
struct Step {
    a: *const bf16,
    /// Elements from the upper sixteen rows to the lower.
    lower: usize,
    /// Bytes from row to row.
    stride: usize,
    b: *const bf16,
}

impl Step {
    /// Sums of both halves of the rows and both halves of the panel, one step on.
    ///
    /// # Safety
    /// Step `i` must lie in A and B, and the tiles be configured for these rows.
    #[inline(always)]
    unsafe fn both(&self, i: usize) {
        // SAFETY: the caller's.
        unsafe {
            let a = self.a.add(i * TILE_DEPTH);
            asm!(
                "tileloadd tmm4, [{a} + {stride}*1]",
                "tileloadd tmm6, [{b} + {pairs}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {pairs}*1 + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{lower} + {stride}*1]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                a = in(reg) a,
                lower = in(reg) a.add(self.lower),
                stride = in(reg) self.stride,
                b = in(reg) self.b.add(i * TILE_DEPTH * PANEL),
                pairs = in(reg) PANEL * 2 * size_of::<bf16>(),
                options(nostack, preserves_flags, readonly)
            );
        }
    }

    /// The same where there are no more than sixteen rows.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn upper(&self, i: usize) {
        // SAFETY: the caller's.
        unsafe {
            asm!(
                "tileloadd tmm4, [{a} + {stride}*1]",
                "tileloadd tmm6, [{b} + {pairs}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {pairs}*1 + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                a = in(reg) self.a.add(i * TILE_DEPTH),
                stride = in(reg) self.stride,
                b = in(reg) self.b.add(i * TILE_DEPTH * PANEL),
                pairs = in(reg) PANEL * 2 * size_of::<bf16>(),
                options(nostack, preserves_flags, readonly)
            );
        }
    }
}

/// No sums yet.
///
/// # Safety
/// The tiles are configured.
#[inline(always)]
unsafe fn zero() {
    // SAFETY: the caller's.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            options(nostack, preserves_flags, nomem)
        );
    }
}

/// Goes on with sums that were stored; `lower`: with those of the lower rows too.
///
/// # Safety
/// The tiles are configured for the rows that are there; `at` holds a block.
#[inline(always)]
unsafe fn load(at: *const f32, lower: bool) {
    // SAFETY: the caller's.
    unsafe {
        asm!("tileloadd tmm0, [{at} + {row}*1]", "tileloadd tmm1, [{at} + {row}*1 + 64]",
             at = in(reg) at, row = in(reg) PANEL * size_of::<f32>(), options(nostack, preserves_flags, readonly));
        if lower {
            asm!("tileloadd tmm2, [{at} + {row}*1]", "tileloadd tmm3, [{at} + {row}*1 + 64]",
                 at = in(reg) at.add(16 * PANEL), row = in(reg) PANEL * size_of::<f32>(),
                 options(nostack, preserves_flags, readonly));
        }
    }
}

/// Writes the sums to where they are read from.
///
/// # Safety
/// As for [`load`].
#[inline(always)]
unsafe fn store(at: *mut f32, lower: bool) {
    // SAFETY: the caller's.
    unsafe {
        asm!("tilestored [{at} + {row}*1], tmm0", "tilestored [{at} + {row}*1 + 64], tmm1",
             at = in(reg) at, row = in(reg) PANEL * size_of::<f32>(), options(nostack, preserves_flags));
        if lower {
            asm!("tilestored [{at} + {row}*1], tmm2", "tilestored [{at} + {row}*1 + 64], tmm3",
                 at = in(reg) at.add(16 * PANEL), row = in(reg) PANEL * size_of::<f32>(),
                 options(nostack, preserves_flags));
        }
    }
}
