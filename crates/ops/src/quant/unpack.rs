//! Unpacks codes to lines of bytes, by masks and shifts over whole lines, and headers to scales:
//! shared by the formats.
#![allow(unsafe_code, reason = "SIMD lanes; chunks are whole by `Packed`")]
#![allow(clippy::undocumented_unsafe_blocks, reason = "the contract of `Format` is the reason for every block")]

use super::format::{Floats, Scales};
use crate::cpu::Lanes;
use crate::cpu::ints::{Ints, LINE, ROWS};

/// Bytes of a strip of a line.
#[inline(always)]
pub(super) fn strip_bytes<S: Ints>() -> usize {
    4 * S::L::WIDTH
}

/// The eight lines of a step of 4-bit codes at `p`.
#[inline(always)]
pub(super) unsafe fn four_bits<S: Ints>(p: *const u8, strip: usize) -> [S::B; 8] {
    unsafe {
        let mask = S::splat_byte(15);
        let mut lines = [mask; 8];
        for i in 0..4 {
            let line = S::bytes(p.add(i * LINE + strip * strip_bytes::<S>()));
            lines[2 * i] = S::and(line, mask);
            lines[2 * i + 1] = S::and(S::down::<4>(line), mask);
        }
        lines
    }
}

/// The eight lines of a step of 2-bit codes at `p`.
#[inline(always)]
pub(super) unsafe fn two_bits<S: Ints>(p: *const u8, strip: usize) -> [S::B; 8] {
    unsafe {
        let mask = S::splat_byte(3);
        let mut lines = [mask; 8];
        for i in 0..2 {
            let line = S::bytes(p.add(i * LINE + strip * strip_bytes::<S>()));
            lines[4 * i] = S::and(line, mask);
            lines[4 * i + 1] = S::and(S::down::<2>(line), mask);
            lines[4 * i + 2] = S::and(S::down::<4>(line), mask);
            lines[4 * i + 3] = S::and(S::down::<6>(line), mask);
        }
        lines
    }
}

/// Adds the upper two bits of 6-bit codes, from `p`.
#[inline(always)]
pub(super) unsafe fn above_four<S: Ints>(lines: &mut [S::B; 8], p: *const u8, strip: usize) {
    unsafe {
        let mask = S::splat_byte(0x30);
        for i in 0..2 {
            let high = S::bytes(p.add(i * LINE + strip * strip_bytes::<S>()));
            lines[4 * i] = S::or(lines[4 * i], S::and(S::up::<4>(high), mask));
            lines[4 * i + 1] = S::or(lines[4 * i + 1], S::and(S::up::<2>(high), mask));
            lines[4 * i + 2] = S::or(lines[4 * i + 2], S::and(high, mask));
            lines[4 * i + 3] = S::or(lines[4 * i + 3], S::and(S::down::<2>(high), mask));
        }
    }
}

/// Adds the uppermost bit of 5-bit codes, from one line at `p`.
#[inline(always)]
pub(super) unsafe fn fifth_bit<S: Ints>(lines: &mut [S::B; 8], p: *const u8, strip: usize) {
    unsafe {
        let mask = S::splat_byte(0x10);
        let high = S::bytes(p.add(strip * strip_bytes::<S>()));
        lines[0] = S::or(lines[0], S::and(S::up::<4>(high), mask));
        lines[1] = S::or(lines[1], S::and(S::up::<3>(high), mask));
        lines[2] = S::or(lines[2], S::and(S::up::<2>(high), mask));
        lines[3] = S::or(lines[3], S::and(S::up::<1>(high), mask));
        lines[4] = S::or(lines[4], S::and(high, mask));
        lines[5] = S::or(lines[5], S::and(S::down::<1>(high), mask));
        lines[6] = S::or(lines[6], S::and(S::down::<2>(high), mask));
        lines[7] = S::or(lines[7], S::and(S::down::<3>(high), mask));
    }
}

/// Adds the uppermost bit of 3-bit codes, from one line at `p`.
#[inline(always)]
pub(super) unsafe fn third_bit<S: Ints>(lines: &mut [S::B; 8], p: *const u8, strip: usize) {
    unsafe {
        let mask = S::splat_byte(4);
        let high = S::bytes(p.add(strip * strip_bytes::<S>()));
        lines[0] = S::or(lines[0], S::and(S::up::<2>(high), mask));
        lines[1] = S::or(lines[1], S::and(S::up::<1>(high), mask));
        lines[2] = S::or(lines[2], S::and(high, mask));
        lines[3] = S::or(lines[3], S::and(S::down::<1>(high), mask));
        lines[4] = S::or(lines[4], S::and(S::down::<2>(high), mask));
        lines[5] = S::or(lines[5], S::and(S::down::<3>(high), mask));
        lines[6] = S::or(lines[6], S::and(S::down::<4>(high), mask));
        lines[7] = S::or(lines[7], S::and(S::down::<5>(high), mask));
    }
}

/// Looks up the values of the 4-bit codes in `lines`.
#[inline(always)]
pub(super) unsafe fn lookup<S: Ints>(mut lines: [S::B; 8], from: &[i8; 16], raise: u8) -> [S::B; 8] {
    let mut table = [0; 16];
    for (entry, value) in table.iter_mut().zip(from) {
        *entry = (*value as u8).wrapping_add(raise);
    }
    unsafe {
        let table = S::table(&table);
        for line in &mut lines {
            *line = S::lookup(table, *line);
        }
    }
    lines
}

/// The f16 fields of a strip; `p` points to those of the panel.
#[inline(always)]
pub(super) unsafe fn halves<S: Ints>(p: *const u8, strip: usize) -> Floats<S> {
    unsafe { S::L::load_f16(p.cast::<half::f16>().add(strip * S::L::WIDTH)) }
}

/// Scales without minimums.
#[inline(always)]
pub(super) fn plain<S: Ints>(scale: [Floats<S>; 2]) -> Scales<S> {
    Scales { scale, min: scale }
}

/// −v.
#[inline(always)]
pub(super) unsafe fn negative<S: Ints>(v: Floats<S>) -> Floats<S> {
    unsafe { S::L::sub(S::L::splat(0.0), v) }
}

/// d times the bytes of parts `part` and `part + 1`.
#[inline(always)]
pub(super) unsafe fn scaled<S: Ints>(
    d: Floats<S>,
    parts: &[[u8; ROWS]; 16],
    part: usize,
    strip: usize,
) -> [Floats<S>; 2] {
    unsafe {
        let at = strip * S::L::WIDTH;
        let first = S::L::mul(d, S::float_u8(parts[part].as_ptr().add(at)));
        [first, S::L::mul(d, S::float_u8(parts[part + 1].as_ptr().add(at)))]
    }
}

/// d times the signed bytes of the two parts at `parts`.
#[inline(always)]
pub(super) unsafe fn signed_scaled<S: Ints>(d: Floats<S>, parts: *const [i8; ROWS], strip: usize) -> [Floats<S>; 2] {
    unsafe {
        let at = parts.cast::<i8>().add(strip * S::L::WIDTH);
        [S::L::mul(d, S::float_i8(at)), S::L::mul(d, S::float_i8(at.add(ROWS)))]
    }
}
