//! Every format against GGML's own figures, and every product against f64.

use super::activations::{Activations, Step};
use super::product::matmul;
use super::{Packed, Quant, dequantize};
use crate::Isa;
use std::borrow::Cow;

/// splitmix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Near enough to normal, variance 1.
    pub(super) fn normal(&mut self) -> f32 {
        let word = self.next();
        let sum: u64 = (0..4).map(|i| word >> (16 * i) & 0xffff).sum();
        ((sum as f64 / 65536.0 - 2.0) * 3f64.sqrt()) as f32
    }

    fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}

/// Where a block keeps halves.
fn halves(quant: Quant) -> &'static [usize] {
    match quant {
        Quant::Mxfp4 | Quant::Iq1M => &[],
        Quant::Tq1_0 => &[52],
        Quant::Tq2_0 => &[64],
        Quant::Q2K => &[80, 82],
        Quant::Q3K => &[108],
        Quant::Q6K => &[208],
        Quant::Q4_1 | Quant::Q5_1 | Quant::Q4K | Quant::Q5K => &[0, 2],
        _ => &[0],
    }
}

/// Random blocks, whose scales are finite: the exponents of halves are kept in 2^−8 to 2^−1.
pub(super) fn blocks(quant: Quant, count: usize, random: &mut Random) -> Vec<u8> {
    let (_, size) = quant.block();
    let mut bytes: Vec<u8> = (0..count * size).map(|_| random.next() as u8).collect();
    for block in bytes.chunks_exact_mut(size) {
        for at in halves(quant) {
            block[at + 1] = block[at + 1] & 0x9f | 0x20;
        }
        match quant {
            Quant::Mxfp4 => block[0] = 120 + block[0] % 8,
            Quant::Iq1M => block[55] = block[55] & 0x9f | 0x20,
            _ => {}
        }
    }
    bytes
}

fn packed(quant: Quant, n: usize, k: usize, bytes: &[u8]) -> Packed {
    let row = quant.bytes(k).unwrap();
    Packed::pack(quant, n, k, &|i| Cow::Borrowed(&bytes[i * row..][..row])).unwrap()
}

/// x as the product sees it, and as a f64.
fn seen(step: &Step) -> impl Iterator<Item = f64> {
    step.values.iter().map(|v| f64::from(*v) * f64::from(step.scale))
}

#[test]
fn products() {
    for quant in Quant::all().filter(|q| q.packs()) {
        let k = 2 * quant.block().0.max(96);
        let k = k - k % quant.block().0;
        for n in [37, 64] {
            let mut random = Random(quant as u64);
            let bytes = blocks(quant, n * k / quant.block().0, &mut random);
            let mut weights = vec![0.0; n * k];
            dequantize(quant, &bytes, &mut weights).unwrap();
            let w = packed(quant, n, k, &bytes);
            for m in [1, 2, 3, 7, 17, 64, 130] {
                let x = random.normals(m * k);
                for isa in Isa::all() {
                    let mut y = vec![f32::NAN; m * n];
                    matmul(isa, &w, &x, m, &mut y);
                    let a = Activations::new(isa, quant, m, k, &|i| Cow::Borrowed(&x[i * k..][..k]));
                    let mut exact = Vec::new();
                    for tile in 0..a.tiles() {
                        let (rows, steps) = a.tile(tile);
                        let rows = rows.len();
                        for row in 0..rows {
                            exact.extend((0..k / 32).flat_map(|s| seen(&steps[s * rows + row])));
                        }
                    }
                    for (i, y) in y.iter().enumerate() {
                        let (row, column) = (i / n * k, i % n * k);
                        let (mut tight, mut size, mut plain) = (0.0, 0.0, 0.0);
                        for j in 0..k {
                            let w = f64::from(weights[column + j]);
                            tight += w * exact[row + j];
                            size += (w * exact[row + j]).abs();
                            plain += w * f64::from(x[row + j]);
                        }
                        let at = format!("{quant} {isa} m {m} n {n}: row {} column {}", i / n, i % n);
                        // Least values and products cancel: bounded by the sum of sizes, not by the result.
                        let (error, noise) = ((f64::from(*y) - tight).abs(), (f64::from(*y) - plain).abs());
                        assert!(error <= 4e-6 * size, "{at}: {y} is not {tight}, of terms of {size}");
                        // A step of x is rounded by up to 1/254 of its largest element.
                        assert!(noise <= 0.02 * size, "{at}: {y} is too far from {plain}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_is_what_the_file_says() {
    for quant in Quant::all().filter(|q| q.packs()) {
        let (elements, _) = quant.block();
        let (n, k) = (19, 3 * elements);
        let bytes = blocks(quant, n * 3, &mut Random(7));
        let w = packed(quant, n, k, &bytes);
        let (mut want, mut got) = (vec![0.0; k], vec![0.0; k]);
        for (i, row) in bytes.chunks_exact(bytes.len() / n).enumerate() {
            dequantize(quant, row, &mut want).unwrap();
            w.row(i, &mut got);
            assert_eq!(want, got, "{quant} row {i}");
        }
    }
}
