//! A quantized matrix, packed for integer dot products.
//!
//! A panel is 16 rows. A panel goes through k block by block; the same block of the 16 rows is a
//! chunk, which has as many bytes as the blocks themselves:
//! ```text
//! halves   each 16-bit field of the header, 16 rows side by side
//! bytes    each byte of the header, 16 rows side by side
//! planes   lines of 64 bytes: 4 consecutive elements of each of 16 rows. A plane of b bits has 8/b
//!          such groups in a line, consecutive ones from the low bits up
//! ```
//! Once masked and shifted, a line is what dot product instructions take (the B operand of VNNI,
//! and of AMX tiles). Packing only moves fields: [`Packed::block_bytes`] restores the file's bytes.
#![allow(unsafe_code, reason = "the panels are written in parallel into memory that nobody has touched before")]

use super::blocks::{Plane, Shape};
use super::{Quant, dequantize};
use crate::cpu::ints::{LINE, ROWS};
use crate::{Error, Result, threads};
use std::borrow::Cow;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};

/// Bytes of a matrix that are packed before their source is released.
pub(crate) const PASS_BYTES: usize = 4 << 20;

/// The most elements of a block.
const MAX_BLOCK: usize = 256;
/// The most bytes of a block that packs.
const MAX_BYTES: usize = 256;

/// A cache line, aligned like the widest vector.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Aligned([u8; LINE]);

/// W, `n` rows of `k` elements.
#[derive(Clone)]
pub(crate) struct Packed {
    quant: Quant,
    n: usize,
    k: usize,
    data: Vec<Aligned>,
}

impl Packed {
    /// Packs `n` rows of `k` elements. `row` returns the bytes of a row as in the file, and is
    /// called once for each. Calls `release` now and then, when the rows so far have been read and
    /// their source is no longer needed.
    pub(crate) fn pack<'a>(
        quant: Quant,
        n: usize,
        k: usize,
        row: &(dyn Fn(usize) -> Cow<'a, [u8]> + Sync),
        release: &dyn Fn(),
    ) -> Result<Packed> {
        fn fail<T>(what: String) -> Result<T> {
            Err(Error::call("pack", what))
        }
        let Some(shape) = Shape::of(quant) else {
            return fail(format!("products with {quant} weights are not supported; dequantize them"));
        };
        let Some(row_bytes) = quant.bytes(k) else {
            return fail(format!(
                "rows of {k} elements are not whole blocks of {quant}, which have {}",
                quant.block().0
            ));
        };
        let Some(total) = n.div_ceil(ROWS).checked_mul(ROWS).and_then(|rows| rows.checked_mul(row_bytes)) else {
            return fail(format!("{n} rows of {row_bytes} bytes are more than memory can hold"));
        };
        let mut data: Vec<Aligned> = Vec::new();
        let lines = total.div_ceil(LINE);
        if data.try_reserve_exact(lines).is_err() {
            return fail(format!("no memory for {total} bytes"));
        }
        // SAFETY: the bytes of the lines that have just been reserved; nothing reads them.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast::<MaybeUninit<u8>>(), lines * LINE) };
        let (bytes, rest) = bytes.split_at_mut(total);
        rest.fill(MaybeUninit::new(0));
        let panel_bytes = (ROWS * row_bytes).max(1);
        let per_pass = (PASS_BYTES / panel_bytes).max(1);
        for (i, bytes) in bytes.chunks_mut(per_pass * panel_bytes).enumerate() {
            let wrong = Mutex::new(None);
            threads::for_each_chunk_mut(bytes, panel_bytes, |panel, bytes| {
                let first = (i * per_pass + panel) * ROWS;
                let rows = (first..n.min(first + ROWS)).map(row).collect::<Vec<_>>();
                match rows.iter().find(|row| row.len() != row_bytes) {
                    Some(row) => *wrong.lock().unwrap_or_else(PoisonError::into_inner) = Some(row.len()),
                    None => pack_panel(quant, shape, &rows, bytes),
                }
            });
            if let Some(len) = wrong.into_inner().unwrap_or_else(PoisonError::into_inner) {
                return fail(format!("a row of {k} in {quant} is {row_bytes} bytes, not {len}"));
            }
            release();
        }
        // SAFETY: `pack_panel` writes every byte of its panel, and `rest` is filled.
        unsafe { data.set_len(lines) };
        Ok(Packed { quant, n, k, data })
    }

    /// Bytes of `n` packed rows of `k` elements.
    pub(crate) fn size_of(quant: Quant, n: usize, k: usize) -> usize {
        let bytes = quant.bytes(k).and_then(|row| row.checked_mul(n.next_multiple_of(ROWS)));
        bytes.map_or(usize::MAX, |bytes| bytes.next_multiple_of(LINE))
    }

    /// The block format.
    pub(crate) fn quant(&self) -> Quant {
        self.quant
    }

    /// Rows: the outputs of a product.
    pub(crate) fn n(&self) -> usize {
        self.n
    }

    /// Columns: the depth of a product.
    pub(crate) fn k(&self) -> usize {
        self.k
    }

    /// Bytes of the packed matrix.
    pub(crate) fn size(&self) -> usize {
        self.data.len() * LINE
    }

    /// Bytes of a panel.
    pub(super) fn panel_bytes(&self) -> usize {
        self.k / self.quant.block().0 * self.quant.block().1 * ROWS
    }

    /// All panels.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: lines are arrays of bytes without padding.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr().cast(), self.size()) }
    }

    /// Row `i` as f32, exactly as [`dequantize`] converts the file's bytes.
    ///
    /// # Panics
    /// If there is no such row or `out` is not as long as a row.
    pub(crate) fn row(&self, i: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.k);
        let (elements, size) = self.quant.block();
        let mut block = [0; MAX_BYTES];
        for (b, out) in out.chunks_exact_mut(elements).enumerate() {
            self.block_bytes(i, b, &mut block[..size]);
            dequantize(self.quant, &block[..size], out).expect("one whole block");
        }
    }

    /// Block `b` of row `i`, as in the file.
    pub(crate) fn block_bytes(&self, i: usize, b: usize, out: &mut [u8]) {
        assert!(i < self.n);
        let (elements, size) = self.quant.block();
        let shape = Shape::of(self.quant).expect("checked by `pack`");
        let r = i % ROWS;
        let mut chunk = &self.bytes()[i / ROWS * self.panel_bytes() + b * ROWS * size..][..ROWS * size];
        out.fill(0);
        for at in shape.halves {
            out[*at..][..2].copy_from_slice(&chunk[2 * r..][..2]);
            chunk = &chunk[2 * ROWS..];
        }
        for at in shape.bytes.clone() {
            out[at] = chunk[r];
            chunk = &chunk[ROWS..];
        }
        let mut codes = [0; MAX_BLOCK];
        let codes = &mut codes[..elements];
        for plane in shape.planes {
            let (lines, rest) = chunk.split_at(plane_bytes(plane, elements));
            chunk = rest;
            for (line, groups) in lines.chunks_exact(LINE).zip(codes.chunks_exact_mut(32 / plane.bits)) {
                for (j, group) in groups.chunks_exact_mut(4).enumerate() {
                    let bytes = &line[4 * r..][..4];
                    group
                        .iter_mut()
                        .zip(bytes)
                        .for_each(|(code, byte)| *code = byte >> (j * plane.bits) & plane.mask());
                }
            }
            plane.write(codes, out);
        }
    }
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packed({} {} × {})", self.quant, self.n, self.k)
    }
}

/// Bytes of a plane in a chunk.
fn plane_bytes(plane: &Plane, elements: usize) -> usize {
    elements * ROWS * plane.bits / 8
}

/// Packs up to 16 rows into a panel; missing rows become zero bytes, which mean zero in every
/// format.
fn pack_panel(quant: Quant, shape: &Shape, rows: &[Cow<'_, [u8]>], panel: &mut [MaybeUninit<u8>]) {
    let (elements, size) = quant.block();
    let zero = [0; MAX_BYTES];
    for (b, chunk) in panel.chunks_exact_mut(ROWS * size).enumerate() {
        for r in 0..ROWS {
            let block = rows.get(r).map_or(&zero[..size], |row| &row[b * size..][..size]);
            let mut rest = &mut *chunk;
            for at in shape.halves {
                let (field, after) = rest.split_at_mut(2 * ROWS);
                field[2 * r..][..2].write_copy_of_slice(&block[*at..][..2]);
                rest = after;
            }
            for at in shape.bytes.clone() {
                let (field, after) = rest.split_at_mut(ROWS);
                field[r].write(block[at]);
                rest = after;
            }
            let mut codes = [0; MAX_BLOCK];
            let codes = &mut codes[..elements];
            for plane in shape.planes {
                let (lines, after) = rest.split_at_mut(plane_bytes(plane, elements));
                rest = after;
                plane.read(block, codes);
                for (line, groups) in lines.chunks_exact_mut(LINE).zip(codes.chunks_exact(32 / plane.bits)) {
                    let mut word = 0;
                    for (j, group) in groups.as_chunks().0.iter().enumerate() {
                        word |= u32::from_le_bytes(*group) << (j * plane.bits);
                    }
                    line[4 * r..][..4].write_copy_of_slice(&word.to_le_bytes());
                }
            }
        }
    }
}
