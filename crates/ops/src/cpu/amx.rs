//! Products in tiles: sixteen rows of A by sixteen columns of B in one instruction, 64 bytes deep, which are 32 of bf16 or 64
//! signed bytes. All but the instruction is the same for both.
//!
//! Four tiles of sums, two of A and two of B: a block of 32 rows by a panel reads as many tiles as it multiplies, which is what
//! the load ports can feed. A is read where it is, B from its panel in groups of four bytes. While one block is multiplied, the
//! sums of the one before go to the sink: its activation costs as much as the products, and another part of the core does it.
#![allow(
    unsafe_code,
    reason = "tile instructions, which Rust has no stable intrinsics for, and the pointers they take"
)]

use super::Lanes;
use super::gemm::{PANEL, Panels, Room, Sink, TILE_DEPTH, aligned, whole};
use super::rows::Rows;
use half::bf16;
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::ops::Range;
use std::sync::OnceLock;

/// Rows of a block, and sums of it: as many as a panel has columns.
const ROWS: usize = 32;
const SUMS: usize = ROWS * PANEL;
const ACROSS: usize = PANEL * size_of::<f32>();

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
    row: usize,
    column: usize,
    rows: Range<usize>,
}

impl Pending {
    /// The next `count` of its rows go to the sink.
    #[inline(always)]
    fn hand_over<S: Lanes>(&mut self, count: usize, sums: &[f32], sink: &mut impl Sink) {
        let next = self.rows.start..(self.rows.start + count).min(self.rows.end);
        if next.is_empty() {
            return;
        }
        let (rows, _) = sums.as_chunks::<PANEL>();
        sink.take_rows::<S>(self.row + next.start, self.column, &rows[next.clone()]);
        self.rows.start = next.end;
    }
}

/// Bytes of a row of a tile, of A and of B; four bytes of one column of B are side by side.
pub(super) const ROW: usize = 64;

/// Bytes of a panel that a step reads.
const STEP: usize = ROW * PANEL;

/// Bytes, and how many lie between the beginnings of what is in them.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    pub(crate) data: &'a [u8],
    pub(crate) stride: usize,
}

/// Rows of A and panels of B, and what they are called.
pub(crate) struct Task<'a> {
    /// The rows, beginning with the first of them.
    pub(crate) a: Operand<'a>,
    /// All panels.
    pub(crate) b: Operand<'a>,
    /// Depth, in rows of tiles.
    pub(crate) steps: usize,
    pub(crate) rows: Range<usize>,
    pub(crate) panels: Range<usize>,
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
    let steps = a.cols / TILE_DEPTH;
    let a = Operand { data: bytes_of(a.data), stride: a.stride * size_of::<bf16>() };
    let b = Operand { data: bytes_of(b.data), stride: b.height * PANEL * size_of::<bf16>() };
    products::<S, Pairs>(Task { a, b, steps, rows, panels }, sums, sink);
}

pub(crate) fn bytes_of(values: &[bf16]) -> &[u8] {
    // SAFETY: bf16 are two bytes without padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The products of a task. Sums of bytes go to the sink as the bits of i32.
///
/// Blocks of rows outside, panels inside: a block's rows stay in the first-level cache, and the panels come from the second, one
/// after another as they lie there, by loads that do not drive the rows out.
#[inline(always)]
pub(super) fn products<S: Lanes, D: Dots>(task: Task<'_>, sums: &mut Vec<f32>, sink: &mut impl Sink) {
    let Task { a, b, steps, rows, panels } = task;
    assert!(!rows.is_empty() && a.data.len() >= (rows.len() - 1) * a.stride + steps * ROW, "rows that are not there");
    let sums = aligned(sums, SUMS);
    let at = sums.as_mut_ptr();
    let mut tiles = Tiles(0);
    for block in (0..rows.len()).step_by(ROWS) {
        let own = (rows.len() - block).min(ROWS);
        let both = own > 16;
        tiles.fit(own);
        let mut pending = Pending { row: 0, column: 0, rows: 0..0 };
        for panel in panels.clone() {
            let step = Step {
                a: a.data[block * a.stride..].as_ptr(),
                lower: if both { 16 * a.stride } else { 0 },
                stride: a.stride,
                b: b.data[panel * b.stride..][..steps * STEP].as_ptr(),
                at,
                across: ACROSS,
            };
            // SAFETY: `own` rows of A, a panel and a block of sums are where the pointers say, as the slices above have shown;
            // rows of A reach to the end of the last step.
            unsafe {
                if both {
                    D::first_both(&step)
                } else {
                    D::first_upper(&step)
                }
                let each = pending.rows.len().div_ceil((steps - 1).max(1)).next_multiple_of(4);
                for i in 1..steps {
                    if both {
                        D::both(&step, i)
                    } else {
                        D::upper(&step, i)
                    }
                    pending.hand_over::<S>(each, sums, sink);
                }
            }
            pending.hand_over::<S>(ROWS, sums, sink);
            pending = Pending { row: rows.start + block, column: panel * PANEL, rows: 0..own };
        }
        // SAFETY: as above.
        unsafe { store(at, ACROSS, both) };
        pending.hand_over::<S>(ROWS, sums, sink);
    }
}

/// The products of a task of no more rows than a block, as they are: columns of B from `column` on, `across` sums from row to row.
#[inline(always)]
pub(crate) fn into(task: Task<'_>, (sums, across): (&mut [f32], usize), column: usize) {
    let Task { a, b, steps, rows, panels } = task;
    assert!((1..=ROWS).contains(&rows.len()) && a.data.len() >= (rows.len() - 1) * a.stride + steps * ROW);
    assert!(sums.len() >= (rows.len() - 1) * across + panels.end * PANEL - column);
    let both = rows.len() > 16;
    let mut tiles = Tiles(0);
    tiles.fit(rows.len());
    let mut at = sums.as_mut_ptr();
    for panel in panels.clone() {
        let step = Step {
            a: a.data.as_ptr(),
            lower: if both { 16 * a.stride } else { 0 },
            stride: a.stride,
            b: b.data[panel * b.stride..][..steps * STEP].as_ptr(),
            at,
            across: across * size_of::<f32>(),
        };
        // SAFETY: rows, panels and sums are where the pointers say, as the slices and what was asserted have shown. The first
        // panel writes zeros to where its own sums will be.
        unsafe {
            if both {
                Pairs::first_both(&step)
            } else {
                Pairs::first_upper(&step)
            }
            for i in 1..steps {
                if both { Pairs::both(&step, i) } else { Pairs::upper(&step, i) }
            }
            at = sums.as_mut_ptr().add(panel * PANEL - column);
        }
    }
    if !panels.is_empty() {
        // SAFETY: as above.
        unsafe { store(at, across * size_of::<f32>(), both) };
    }
}

/// Where a block's steps read. Tile registers are named in the instructions: the compiler knows of none and uses none.
pub(super) struct Step {
    a: *const u8,
    /// Bytes from the upper sixteen rows to the lower.
    lower: usize,
    /// Bytes from row to row.
    stride: usize,
    b: *const u8,
    /// Where sums go, and bytes from row to row of them.
    at: *mut f32,
    across: usize,
}

/// What the four bytes of a group are, and so which instruction multiplies them.
pub(super) trait Dots {
    /// Writes the sums of the block before, whatever they are, and begins with the first step of the next: one tile after
    /// another, so that the others are multiplied while one is written.
    ///
    /// # Safety
    /// As for [`Dots::both`], and `at` takes a block.
    unsafe fn first_both(step: &Step);

    /// The same where there are no more than sixteen rows.
    ///
    /// # Safety
    /// As there.
    unsafe fn first_upper(step: &Step);

    /// Sums of both halves of the rows and both halves of the panel, one step on.
    ///
    /// # Safety
    /// Step `i` must lie in A and B, and the tiles be configured for these rows.
    unsafe fn both(step: &Step, i: usize);

    /// The same where there are no more than sixteen rows.
    ///
    /// # Safety
    /// As there.
    unsafe fn upper(step: &Step, i: usize);
}

/// Two of bf16, with sums in f32.
pub(super) struct Pairs;

/// Four signed bytes, with sums in i32.
pub(super) struct Fours;

macro_rules! dots {
    ($name:ident, $dot:literal) => {
        impl Dots for $name {
            #[inline(always)]
            unsafe fn first_both(step: &Step) {
                // SAFETY: the caller's.
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
                // SAFETY: the caller's.
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
                // SAFETY: the caller's.
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
                // SAFETY: the caller's.
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

/// Writes the sums, `across` bytes from row to row; `lower`: those of the lower rows too.
///
/// # Safety
/// The tiles are configured for the rows that are there; `at` takes a block.
#[inline(always)]
unsafe fn store(at: *mut f32, across: usize, lower: bool) {
    // SAFETY: the caller's.
    unsafe {
        asm!("tilestored [{at} + {across}*1], tmm0", "tilestored [{at} + {across}*1 + 64], tmm1",
             at = in(reg) at, across = in(reg) across, options(nostack, preserves_flags));
        if lower {
            asm!("tilestored [{at} + {across}*1], tmm2", "tilestored [{at} + {across}*1 + 64], tmm3",
                 at = in(reg) at.byte_add(16 * across), across = in(reg) across, options(nostack, preserves_flags));
        }
    }
}
