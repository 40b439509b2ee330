//! From f32 to codes.
//!
//! With a row x, the mean m of the segment and r = x − m, the product of a query q with x is
//! estimated as ⟨q, m⟩ + f ⟨q, sign(r)⟩ with f = ‖r‖² / ‖r‖₁: the estimate of RaBitQ (Gao and Long
//! 2024) without its rotation. It is exact for q = r. The signs alone would rank by angle around
//! the origin, where embeddings of most models fill only a narrow cone.

use super::kernels::{BLOCK, STRIDE, bit_bytes, position};

/// How many int8 codes a row has, zeros at the end included.
pub(super) fn stride(dimensions: usize) -> usize {
    dimensions.next_multiple_of(STRIDE)
}

/// Whether all values are numbers so small that no product or sum of the scan overflows.
pub(super) fn is_in_range(vector: &[f32]) -> bool {
    vector.iter().all(|x| x.abs() <= 1e12)
}

/// Appends the int8 codes of a vector, and returns their scale.
pub(super) fn quantize(vector: &[f32], codes: &mut Vec<i8>) -> f32 {
    let largest = vector.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
    let scale = largest / 127.0;
    // A scale may be so small that its inverse is infinite.
    let code = |x: &f32| if scale > 0.0 { (x / scale).round().clamp(-127.0, 127.0) as i8 } else { 0 };
    let end = codes.len() + stride(vector.len());
    codes.extend(vector.iter().map(code));
    codes.resize(end, 0);
    scale
}

/// The binary codes of a block of rows.
pub(super) struct BitBlock {
    /// In the order of [`position`].
    pub(super) codes: Vec<u8>,
    /// ‖r‖² / ‖r‖₁ of each row; 0 for rows that a last block lacks.
    pub(super) factors: [f32; BLOCK],
}

impl BitBlock {
    pub(super) fn new(dimensions: usize) -> BitBlock {
        BitBlock { codes: vec![0; bit_bytes(dimensions) * BLOCK], factors: [0.0; BLOCK] }
    }

    /// Encodes rows of int8 codes, at most [`BLOCK`].
    pub(super) fn encode(&mut self, rows: &[i8], scales: &[f32], mean: &[f32]) {
        self.codes.fill(0);
        self.factors.fill(0.0);
        let rows = rows.chunks_exact(stride(mean.len())).zip(scales);
        for (row, ((codes, scale), factor)) in rows.zip(&mut self.factors).enumerate() {
            let (mut sum, mut squares) = (0.0f32, 0.0f32);
            let eights = codes.chunks(8).zip(mean.chunks(8));
            for ((codes, mean), group) in eights.zip(self.codes.as_chunks_mut::<BLOCK>().0) {
                let mut byte = 0;
                for (bit, (code, mean)) in codes.iter().zip(mean).enumerate() {
                    let value = f32::from(*code) * scale - mean;
                    byte |= u8::from(value > 0.0) << bit;
                    sum += value.abs();
                    squares += value * value;
                }
                group[position(row)] = byte;
            }
            *factor = if sum > 0.0 { squares / sum } else { 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::kernels::{BitQuery, Isa, Line, score_block};
    use super::*;

    #[test]
    fn int8_codes_are_within_half_a_step() {
        let vector: Vec<f32> = (0..100).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
        let mut codes = Vec::new();
        let scale = quantize(&vector, &mut codes);
        assert_eq!(codes.len(), 128);
        assert!(vector.iter().zip(&codes).all(|(x, code)| (x - f32::from(*code) * scale).abs() <= scale * 0.501));
        assert!(codes[100..].iter().all(|code| *code == 0));
        codes.clear();
        assert_eq!(quantize(&[0.0; 64], &mut codes), 0.0);
        assert_eq!(codes, [0; 64]);
        codes.clear();
        quantize(&[f32::MIN_POSITIVE, -1e-45, 0.0], &mut codes);
        assert_eq!(codes[0], 127);
    }

    #[test]
    fn the_estimate_is_exact_for_the_row_itself() {
        let dimensions = 96;
        let mean: Vec<f32> = (0..dimensions).map(|d| (d as f32).cos() * 0.2).collect();
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for row in 0..50 {
            let vector: Vec<f32> = (0..dimensions).map(|d| ((row * 31 + d * 17) as f32).sin()).collect();
            scales.push(quantize(&vector, &mut codes));
        }
        let mut block = BitBlock::new(dimensions);
        block.encode(&codes, &scales, &mean);
        assert!(block.factors[50..].iter().all(|factor| *factor == 0.0));
        for row in [0, 7, 8, 49] {
            let value = |d: usize| f32::from(codes[row * stride(dimensions) + d]) * scales[row] - mean[d];
            let rest: Vec<f32> = (0..dimensions).map(value).collect();
            let mut scores = [0.0; BLOCK];
            let line = Line { base: 0.0, threshold: 0.0 };
            score_block(Isa::best(), &block.codes, &BitQuery::new(&rest), (&block.factors, line), &mut scores);
            let expected: f32 = rest.iter().map(|x| x * x).sum();
            assert!((scores[row] - expected).abs() < expected * 0.02, "{} {expected}", scores[row]);
        }
    }
}
