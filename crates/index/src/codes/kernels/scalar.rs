//! The kernels in plain Rust.

use super::{BLOCK, BitQuery, Line, position};

/// The sums of the table entries of each row of a block.
pub(super) fn sums(codes: &[u8], tables: &[[u8; 16]], sums: &mut [u16; BLOCK]) {
    for (bytes, tables) in codes.as_chunks::<BLOCK>().0.iter().zip(tables.as_chunks::<2>().0) {
        for (row, sum) in sums.iter_mut().enumerate() {
            let byte = bytes[position(row)];
            *sum += u16::from(tables[0][usize::from(byte & 15)]) + u16::from(tables[1][usize::from(byte >> 4)]);
        }
    }
}

/// Scores from sums, and a bit for each that exceeds the threshold.
pub(super) fn scores(
    sums: &[u16; BLOCK],
    query: &BitQuery,
    (factors, line): (&[f32; BLOCK], Line),
    scores: &mut [f32; BLOCK],
) -> u64 {
    for ((score, sum), factor) in scores.iter_mut().zip(sums).zip(factors) {
        *score = query.product(*sum) * factor + line.base;
    }
    // Compilers turn the first of these loops into vectors, but not the second. Few blocks need it.
    if !scores.iter().fold(false, |any, score| any | (*score > line.threshold)) {
        return 0;
    }
    scores.iter().enumerate().fold(0, |mask, (row, score)| mask | u64::from(*score > line.threshold) << row)
}

/// The product of two rows.
pub(super) fn dot(row: &[i8], query: &[i8]) -> i32 {
    row.iter().zip(query).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum()
}
