//! Tests every format against GGML's results, and every product against f64.

use super::test_matmul::matmul;
use super::{Packed, Quant, dequantize, make_scales_finite, quantize};
use crate::Isa;
use sconce_testkit::Rng;
use std::borrow::Cow;

/// Approximately normal, variance 1.
fn normals(random: &mut Rng, n: usize) -> Vec<f32> {
    let mut normal = || {
        let word = random.next_u64();
        let sum: u64 = (0..4).map(|i| word >> (16 * i) & 0xffff).sum();
        ((sum as f64 / 65536.0 - 2.0) * 3f64.sqrt()) as f32
    };
    (0..n).map(|_| normal()).collect()
}

/// FNV-1a.
fn hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

fn blocks(quant: Quant, count: usize, random: &mut Rng) -> Vec<u8> {
    let mut bytes = random.bytes(count * quant.block().1);
    make_scales_finite(quant, &mut bytes);
    bytes
}

fn floats(quant: Quant, bytes: &[u8]) -> Vec<f32> {
    let (elements, size) = quant.block();
    let mut out = vec![0.0; bytes.len() / size * elements];
    dequantize(quant, bytes, &mut out).unwrap();
    out
}

fn packed(quant: Quant, n: usize, k: usize, bytes: &[u8]) -> Packed {
    let row = quant.bytes(k).unwrap();
    Packed::pack(quant, n, k, &|i| Cow::Borrowed(&bytes[i * row..][..row]), &|| ()).unwrap()
}

/// Hashes of 256 random blocks, dequantized by the gguf package (0.19.0).
const DEQUANTIZED: [(&str, u64); 22] = [
    ("q4_0", 0x89cc_785a_2161_d69a),
    ("q4_1", 0x9ce2_2a0b_74ac_f36f),
    ("q5_0", 0x635b_7101_0446_7ef2),
    ("q5_1", 0x47c3_dd3b_8bc4_54ef),
    ("q8_0", 0x295a_a819_c666_149a),
    ("q2_k", 0x43b4_2ee3_089e_9b68),
    ("q3_k", 0x2457_7338_fa07_8c1c),
    ("q4_k", 0x5503_6112_8ca9_b7f3),
    ("q5_k", 0x0b11_fac1_f8e2_5cb0),
    ("q6_k", 0x152b_b593_58fa_7803),
    ("iq4_nl", 0xe160_75c9_d1a7_8176),
    ("iq4_xs", 0x6ba5_0c0d_1ed3_2ec1),
    ("mxfp4", 0x0eee_d8a0_40f0_8575),
    ("tq2_0", 0x1df0_10f8_296c_f45f),
    ("tq1_0", 0x5dba_c092_ca5f_2dc5),
    ("iq1_s", 0x7cd1_76d4_4648_5bb7),
    ("iq1_m", 0x96ca_0ee9_2be5_7bfc),
    ("iq2_xxs", 0x7021_47ba_21a2_7ce7),
    ("iq2_xs", 0xbf28_a126_bf9a_0efb),
    ("iq2_s", 0x2d76_18de_8cb2_e447),
    ("iq3_xxs", 0x4203_df6b_0306_9161),
    ("iq3_s", 0x7bf8_4eaf_d705_6df4),
];

/// Hashes of 128 random floats, quantized by the gguf package.
const QUANTIZED: [(&str, u64); 5] = [
    ("q4_0", 0x7b18_c391_e715_7179),
    ("q4_1", 0x8ede_ddda_70a2_35e2),
    ("q5_0", 0x9561_162d_8bb9_3794),
    ("q5_1", 0xdd6a_3089_6255_959f),
    ("q8_0", 0x7609_f221_e2de_f045),
];

/// Root mean square error of llama.cpp's reference quantizers on 4096 random floats.
const REFERENCE_ERROR: [(&str, f64); 6] = [
    ("q2_k", 0.29654),
    ("q3_k", 0.14831),
    ("q4_k", 0.06994),
    ("q5_k", 0.03585),
    ("q6_k", 0.01732),
    ("iq4_nl", 0.07721),
];

#[test]
fn dequantized_floats_equal_the_gguf_package() {
    assert_eq!(DEQUANTIZED.map(|row| row.0.parse::<Quant>().unwrap()).to_vec(), Quant::all().collect::<Vec<_>>());
    for (name, golden) in DEQUANTIZED {
        let quant = name.parse().unwrap();
        let floats = floats(quant, &blocks(quant, 256, &mut Rng::new(1)));
        assert_eq!(hash(floats.iter().flat_map(|v| v.to_le_bytes())), golden, "{name}");
    }
}

#[test]
fn quantized_blocks_equal_the_gguf_package() {
    let x = normals(&mut Rng::new(2), 128);
    for (name, golden) in QUANTIZED {
        let mut out = Vec::new();
        quantize(name.parse().unwrap(), &x, &mut out).unwrap();
        assert_eq!(hash(out), golden, "{name}");
    }
}

#[test]
fn searched_quantization_is_as_accurate_as_llama_cpp() {
    let x = normals(&mut Rng::new(3), 16 * 256);
    for (name, reference) in REFERENCE_ERROR {
        let quant = name.parse().unwrap();
        let mut out = Vec::new();
        quantize(quant, &x, &mut out).unwrap();
        let squares: f64 = floats(quant, &out).iter().zip(&x).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        let error = (squares / x.len() as f64).sqrt();
        assert!(error < 1.02 * reference, "{name}: {error} against {reference}");
    }
}

#[test]
fn constant_blocks_keep_their_value() {
    for quant in Quant::all().filter(|q| q.quantizes()) {
        for value in [0.0, 0.75, -0.75, 1e-30, -3e4] {
            let mut out = Vec::new();
            quantize(quant, &[value; 256], &mut out).unwrap();
            for back in floats(quant, &out) {
                assert!((back - value).abs() <= 0.02 * value.abs() + 1e-7, "{quant}: {value} became {back}");
            }
        }
    }
}

#[test]
fn products_equal_f64() {
    for quant in Quant::all().filter(|q| q.packs()) {
        let (n, k) = (37, 256 + quant.block().0);
        let mut random = Rng::new(quant as u64);
        let bytes = blocks(quant, n * k / quant.block().0, &mut random);
        let (weights, w) = (floats(quant, &bytes), packed(quant, n, k, &bytes));
        for m in [1, 2, 3, 7, 17, 64, 70] {
            let x = normals(&mut random, m * k);
            let rounded = in_eight_bits(&x);
            let mut want = Vec::new();
            for row in 0..m {
                for column in 0..n {
                    let (mut tight, mut size, mut plain) = (0.0, 0.0, 0.0);
                    for j in 0..k {
                        let (w, x) = (f64::from(weights[column * k + j]), f64::from(x[row * k + j]));
                        tight += w * rounded[row * k + j];
                        size += (w * rounded[row * k + j]).abs();
                        plain += w * x;
                    }
                    want.push((tight, size, plain));
                }
            }
            for isa in Isa::all() {
                let mut y = vec![f32::NAN; m * n];
                matmul(isa, &w, &x, m, &mut y);
                for (i, (y, (tight, size, plain))) in y.into_iter().zip(&want).enumerate() {
                    let at = format!("{quant} {isa} m {m}: row {} column {}", i / n, i % n);
                    // Minimums and products cancel: the bound is the sum of absolute values, not
                    // the result.
                    assert!((f64::from(y) - tight).abs() <= 2e-6 * size, "{at}: {y} is not {tight}, of {size}");
                    // Quantizing a step of x rounds by up to 1/254 of its largest element, here at
                    // most about 3 times the mean size.
                    assert!(
                        (f64::from(y) - plain).abs() <= 0.01 * size,
                        "{at}: {y} is too far from {plain}, of {size}"
                    );
                }
            }
        }
    }
}

/// A row's result does not depend on the other rows of its batch: reproducible sampling from a seed
/// needs that.
#[test]
fn batch_does_not_change_a_row() {
    for quant in Quant::all().filter(|q| q.packs()) {
        // More steps than a product unpacks at once, and rows that are not whole tiles.
        let (m, n, k) = (83, 50, 5 * 256);
        let mut random = Rng::new(quant as u64);
        let w = packed(quant, n, k, &blocks(quant, n * k / quant.block().0, &mut random));
        let x = normals(&mut random, m * k);
        for isa in Isa::all() {
            let mut together = vec![0.0; m * n];
            matmul(isa, &w, &x, m, &mut together);
            for (i, row) in together.chunks_exact(n).enumerate() {
                let mut alone = vec![0.0; n];
                matmul(isa, &w, &x[i * k..][..k], 1, &mut alone);
                assert!(alone.iter().zip(row).all(|(a, b)| a.to_bits() == b.to_bits()), "{quant} {isa} row {i}");
            }
        }
    }
}

/// The values of x after quantization to 8 bits.
fn in_eight_bits(x: &[f32]) -> Vec<f64> {
    x.chunks_exact(32)
        .flat_map(|step| {
            let largest = step.iter().fold(0f32, |a, b| a.max(b.abs()));
            step.iter().map(move |x| f64::from((x * (127.0 / largest)).round_ties_even()) * f64::from(largest / 127.0))
        })
        .collect()
}

#[test]
fn packed_rows_equal_the_file() {
    for quant in Quant::all().filter(|q| q.packs()) {
        let (n, k) = (19, 3 * quant.block().0);
        // Arbitrary bytes, so that every bit matters.
        let bytes = Rng::new(7).bytes(n * quant.bytes(k).unwrap());
        let w = packed(quant, n, k, &bytes);
        let mut block = vec![0; quant.block().1];
        for (i, file) in bytes.chunks_exact(block.len()).enumerate() {
            w.block_bytes(i / 3, i % 3, &mut block);
            assert_eq!(block, file, "{quant} block {i}");
        }
        let mut got = vec![0.0; k];
        for (i, want) in floats(quant, &bytes).chunks_exact(k).enumerate() {
            w.row(i, &mut got);
            let bits = |x: &[f32]| x.iter().map(|x| if x.is_nan() { 0 } else { x.to_bits() }).collect::<Vec<_>>();
            assert_eq!(bits(want), bits(&got), "{quant} row {i}");
        }
    }
}

#[test]
fn nan_and_infinity_neither_panic_nor_become_finite() {
    for quant in Quant::all() {
        let bytes = Rng::new(9).bytes(20 * quant.bytes(512).unwrap());
        floats(quant, &bytes);
        if quant.packs() {
            let w = packed(quant, 20, 512, &bytes);
            let mut x = normals(&mut Rng::new(10), 2 * 512);
            (x[0], x[100], x[600]) = (f32::INFINITY, f32::NAN, -1e-42);
            let mut y = vec![0.0; 40];
            matmul(Isa::best(), &w, &x, 2, &mut y);
            assert!(y[..20].iter().all(|y| !y.is_finite()), "{quant}: NaN and infinity must not become finite");
        }
        if quant.quantizes() {
            let mut x = normals(&mut Rng::new(11), 512);
            (x[3], x[40], x[300]) = (f32::NAN, f32::INFINITY, f32::MIN_POSITIVE / 8.0);
            let mut out = Vec::new();
            quantize(quant, &x, &mut out).unwrap();
            quantize(quant, &[f32::NAN; 256], &mut out).unwrap();
            quantize(quant, &[f32::MAX; 256], &mut out).unwrap();
        }
    }
}

#[test]
fn empty_products_are_zeros() {
    let w = packed(Quant::Q8_0, 5, 0, &[]);
    let mut y = [1.0; 10];
    matmul(Isa::best(), &w, &[], 2, &mut y);
    assert_eq!(y, [0.0; 10]);
    matmul(Isa::best(), &packed(Quant::Q4_0, 0, 32, &[]), &[0.0; 64], 2, &mut []);
    matmul(Isa::best(), &packed(Quant::Q4_0, 3, 32, &[0; 54]), &[], 0, &mut []);
}

#[test]
fn quant_names_and_ggml_ids_round_trip() {
    for quant in Quant::all() {
        assert_eq!(quant.to_string().parse::<Quant>().unwrap(), quant);
        assert_eq!(Quant::from_ggml(quant.ggml()), Some(quant));
    }
    assert_eq!(Quant::from_ggml(0), None);
    assert!("q9_9".parse::<Quant>().unwrap_err().to_string().contains("q4_k"));
}

#[test]
fn invalid_sizes_and_formats_are_refused() {
    let row = |_| Cow::Borrowed(&[0u8; 18][..]);
    assert!(Packed::pack(Quant::Q4_0, 4, 32, &row, &|| ()).is_ok());
    let refused = |quant, n, k| Packed::pack(quant, n, k, &row, &|| ()).unwrap_err().to_string();
    assert!(refused(Quant::Q4_0, 4, 40).contains("32"));
    assert!(refused(Quant::Q4_0, 4, 64).contains("36 bytes, not 18"));
    assert!(refused(Quant::Iq2S, 4, 256).contains("dequantize"));
    assert!(refused(Quant::Q4_0, usize::MAX, 32).contains("memory"));
    assert!(refused(Quant::Q4_0, usize::MAX / 64, 64).contains("memory"));
    assert!(dequantize(Quant::Q4_0, &[0; 18], &mut [0.0; 64]).is_err());
    assert!(dequantize(Quant::Q4_0, &[0; 17], &mut [0.0; 32]).is_err());
    assert!(quantize(Quant::Q4K, &[0.0; 32], &mut Vec::new()).is_err());
    assert!(quantize(Quant::Iq2S, &[0.0; 256], &mut Vec::new()).is_err());
}
