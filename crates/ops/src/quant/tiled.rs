//! The product on AMX tiles: a step of 16 rows of x with a panel's 16 rows at once.
//!
//! The integers are those of the other instruction sets and what follows is done in their order, so that a row's result is the
//! same, bit for bit, whether it was multiplied alone or with fifteen others.
#![allow(unsafe_code, reason = "SIMD lanes and tiles; pointers as in `product`")]

use super::activations::{STEP, Step};
use super::format::{Format, Scales, chunk_bytes};
use super::product::Job;
use crate::cpu::gemm::PANEL;
use crate::cpu::ints::x86::Amx;
use crate::cpu::ints::{LINE, ROWS};
use crate::cpu::tiles::{AT_ONCE, Sums, TILE, Tiles};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Bytes of a step's lines.
const LINES: usize = STEP / 4 * LINE;

/// Steps that are unpacked before they meet the rows: with their scales they fill half of a first-level cache.
const AHEAD: usize = 32;

/// A panel's steps as bytes, with what they are worth.
#[repr(C, align(64))]
struct Unpacked {
    lines: [[u8; LINES]; AHEAD],
    scales: [[[f32; ROWS]; 4]; AHEAD],
}

/// Multiplies whole tiles of rows; the job's must be that.
///
/// # Safety
/// As for [`Job::panel`], and only where tiles are granted.
#[inline(always)]
pub(super) unsafe fn panel<F: Format>(job: &Job<'_>) {
    // SAFETY: the caller's.
    unsafe { if F::PARTS == 1 { of_parts::<F, 8>(job) } else { of_parts::<F, 4>(job) } }
}

/// `L` lines to a part.
#[inline(always)]
unsafe fn of_parts<F: Format, const L: usize>(job: &Job<'_>) {
    debug_assert!(job.rows.is_multiple_of(TILE));
    let mut unpacked = MaybeUninit::<Unpacked>::uninit();
    let unpacked = unpacked.as_mut_ptr();
    let per_block = F::BLOCK / STEP;
    // SAFETY: the caller's; what is read of `unpacked` was written in the same round.
    unsafe {
        let tiles = Tiles::<L>::new();
        let mut steps = job.steps;
        for chunks in job.bytes.chunks(AHEAD / per_block * chunk_bytes::<F>()) {
            let mut count = 0;
            for chunk in chunks.chunks_exact(chunk_bytes::<F>()) {
                let chunk = chunk.as_ptr();
                let head = F::head(chunk);
                for step in 0..per_block {
                    let lines = F::lines::<Amx>(chunk, step, 0);
                    let to = (&raw mut (*unpacked).lines[count]).cast::<u8>();
                    for (i, line) in lines.into_iter().enumerate() {
                        _mm512_store_si512(to.add(i * LINE).cast(), line);
                    }
                    let Scales { scale, least } = F::scales::<Amx>(chunk, &head, step, 0);
                    let to = (&raw mut (*unpacked).scales[count]).cast::<f32>();
                    for (i, v) in [scale[0], scale[1], least[0], least[1]].into_iter().enumerate() {
                        _mm512_store_ps(to.add(i * ROWS), v);
                    }
                    count += 1;
                }
            }
            let mut row = 0;
            while row < job.rows {
                let block = Block { tiles: &tiles, w: &*unpacked, count, x: steps.add(row), stride: job.stride };
                block.run::<F>(job.sums.add(row * PANEL));
                row += TILE;
            }
            steps = steps.add(count * job.stride);
        }
    }
}

/// 16 rows and `count` steps.
struct Block<'a, const L: usize> {
    tiles: &'a Tiles<L>,
    w: &'a Unpacked,
    count: usize,
    /// The first row's first step; its next is `stride` further on.
    x: *const Step,
    stride: usize,
}

impl<const L: usize> Block<'_, L> {
    /// Steps whose products are under way at once.
    const GROUP: usize = AT_ONCE * L * 4 / STEP;

    #[inline(always)]
    unsafe fn run<F: Format>(&self, sums: *mut f32) {
        let mut dots = MaybeUninit::<[[Sums; AT_ONCE]; 2]>::uninit();
        // SAFETY: the caller's; products are read after `start` has written them.
        unsafe {
            let dots = dots.as_mut_ptr().cast::<[Sums; AT_ONCE]>();
            let mut total = [_mm512_setzero_ps(); TILE];
            for (row, total) in total.iter_mut().enumerate() {
                *total = _mm512_loadu_ps(sums.add(row * PANEL));
            }
            self.start(0, &mut *dots);
            let (mut step, mut turn) = (0, 0);
            while step < self.count {
                // The next group's products are on their way while this one's are added up.
                let next = step + Self::GROUP;
                if next < self.count {
                    self.start(next, &mut *dots.add(1 - turn));
                }
                for i in 0..Self::GROUP {
                    if step + i < self.count {
                        self.add::<F>(step + i, (*dots.add(turn)).as_ptr().add(i * F::PARTS), &mut total);
                    }
                }
                (step, turn) = (next, 1 - turn);
            }
            for (row, total) in total.iter().enumerate() {
                _mm512_storeu_ps(sums.add(row * PANEL), *total);
            }
        }
    }

    /// Sets off a group's products. Behind the last step it is the last again, which nobody adds up.
    #[inline(always)]
    unsafe fn start(&self, first: usize, dots: &mut [Sums; AT_ONCE]) {
        let (mut x, mut lines) = ([std::ptr::null(); AT_ONCE], [std::ptr::null(); AT_ONCE]);
        // SAFETY: the caller's: a step's values come first in it.
        unsafe {
            for i in 0..AT_ONCE {
                let (step, part) = (i * L * 4 / STEP, i * L * 4 % STEP);
                let step = (first + step).min(self.count - 1);
                x[i] = self.x.add(step * self.stride).cast::<i8>().add(part);
                lines[i] = self.w.lines[step].as_ptr().add(part / 4 * LINE);
            }
            self.tiles.dot(x, size_of::<Step>(), lines, dots);
        }
    }

    /// Adds up a step's products, for what they are worth.
    #[inline(always)]
    unsafe fn add<F: Format>(&self, step: usize, dots: *const Sums, total: &mut [__m512; TILE]) {
        // SAFETY: the caller's.
        unsafe {
            let scales = self.w.scales[step].as_ptr().cast::<f32>();
            let (scale, upper) = (_mm512_load_ps(scales), _mm512_load_ps(scales.add(ROWS)));
            let least = [_mm512_load_ps(scales.add(2 * ROWS)), _mm512_load_ps(scales.add(3 * ROWS))];
            let x = self.x.add(step * self.stride);
            for (row, total) in total.iter_mut().enumerate() {
                let x = &*x.add(row);
                let mut sum = *total;
                let a = _mm512_set1_ps(x.scale);
                let first = dot::<F>(&*dots, row, x.fix[0]);
                if F::PARTS == 1 {
                    sum = _mm512_fmadd_ps(_mm512_mul_ps(scale, a), first, sum);
                } else {
                    let second = dot::<F>(&*dots.add(1), row, x.fix[1]);
                    let both = _mm512_fmadd_ps(upper, second, _mm512_mul_ps(scale, first));
                    sum = _mm512_fmadd_ps(both, a, sum);
                }
                if F::OFFSET.is_none() {
                    for (least, fix) in least.into_iter().zip(x.fix).take(F::PARTS) {
                        sum = _mm512_fmadd_ps(least, _mm512_set1_ps(f32::from_bits(fix as u32)), sum);
                    }
                }
                *total = sum;
            }
        }
    }
}

/// A row's products with a panel's 16.
#[inline(always)]
unsafe fn dot<F: Format>(sums: &Sums, row: usize, fix: i32) -> __m512 {
    // SAFETY: the caller's.
    unsafe {
        let mut sum = _mm512_load_si512(sums.0[row].as_ptr().cast());
        if F::OFFSET.is_some() {
            sum = _mm512_add_epi32(sum, _mm512_set1_epi32(fix));
        }
        _mm512_cvtepi32_ps(sum)
    }
}
