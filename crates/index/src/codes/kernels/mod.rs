//! Kernels of the scan, for each instruction set, chosen at run time.
//!
//! Binary codes are scored as in Quick ADC (André et al. 2017), FAISS calls it fast scan: the query
//! stays in (nearly) full precision and becomes a table of 16 sums for each group of four
//! dimensions; a byte shuffle looks up one group of many rows at once. This is as fast as a Hamming
//! distance by population count and loses much less, because only one side is binary.

#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::OnceLock;

/// Rows in a block of binary codes; a block has as many bytes for every eight dimensions.
pub(crate) const BLOCK: usize = 64;
/// Rows of int8 codes are filled up with zeros to a multiple of this, so that kernels have no tail
/// and rows begin at cache lines.
pub(crate) const STRIDE: usize = 64;

/// The largest entry of a table: four of them fit into a byte.
const MAX_ENTRY: usize = 63;

/// An instruction set that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    /// Plain Rust.
    Scalar,
    /// 128-bit, every 64-bit ARM.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// 256-bit.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512-bit: F and BW.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512 with int8 dot products.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
}

impl Isa {
    /// Every instruction set of this processor, the fastest last.
    pub(crate) fn all() -> Vec<Isa> {
        let mut all = vec![Isa::Scalar];
        #[cfg(target_arch = "aarch64")]
        all.push(Isa::Neon);
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2");
            let avx512 = avx2 && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
            let vnni = avx512 && is_x86_feature_detected!("avx512vnni");
            let found = [(avx2, Isa::Avx2), (avx512, Isa::Avx512), (vnni, Isa::Avx512Vnni)];
            all.extend(found.into_iter().filter(|(has, _)| *has).map(|(_, isa)| isa));
        }
        all
    }

    /// The fastest instruction set of this processor.
    pub(crate) fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Isa::all().pop().unwrap_or(Isa::Scalar))
    }
}

/// The position in a group of [`BLOCK`] bytes of the byte that belongs to a row of the block.
///
/// Sums are 16 bits wide, so a kernel separates the bytes at even positions from those at odd ones.
/// With this order, eight rows next to each other come out next to each other.
pub(crate) fn position(row: usize) -> usize {
    let (lane, i) = (row / 16 * 16, row % 16);
    lane + if i < 8 { 2 * i } else { 2 * (i - 8) + 1 }
}

/// Bytes of binary codes per row: an even number, because kernels take two at a time.
pub(crate) fn bit_bytes(dimensions: usize) -> usize {
    dimensions.div_ceil(16) * 2
}

/// A query for binary codes.
pub(crate) struct BitQuery {
    /// For each four dimensions and each pattern of their bits, the sum of the query's values with
    /// the signs of the bits, as `(sum + offset) / step`, rounded.
    tables: Vec<[u8; 16]>,
    step: f32,
    /// The offsets of all tables together.
    total: f32,
}

impl BitQuery {
    pub(crate) fn new(query: &[f32]) -> BitQuery {
        let groups = bit_bytes(query.len()) * 2;
        // 16 bits must hold the sum of all tables.
        let max = MAX_ENTRY.min(usize::from(u16::MAX) / groups.max(1)) as f32;
        let group = |g: usize| std::array::from_fn::<f32, 4, _>(|i| query.get(4 * g + i).copied().unwrap_or(0.0));
        let offset = |values: [f32; 4]| values.iter().map(|value| value.abs()).sum::<f32>();
        let largest = (0..groups).map(|g| offset(group(g))).fold(0.0, f32::max);
        let step = 2.0 * largest / max;
        let inverse = if step > 0.0 { 1.0 / step } else { 0.0 };
        let entry = |values: [f32; 4], bits: usize| {
            let signed = (0..4).map(|i| if bits >> i & 1 == 1 { values[i] } else { -values[i] });
            ((signed.sum::<f32>() + offset(values)) * inverse).round().clamp(0.0, max) as u8
        };
        let tables = (0..groups).map(|g| std::array::from_fn(|bits| entry(group(g), bits))).collect();
        BitQuery { tables, step, total: (0..groups).map(|g| offset(group(g))).sum() }
    }

    /// Turns the sum of a row's entries into the estimate of the query's product with the signs.
    pub(crate) fn product(&self, sum: u16) -> f32 {
        f32::from(sum) * self.step - self.total
    }
}

/// How the product with a row's signs becomes its score, and what the score must exceed.
#[derive(Clone, Copy)]
pub(crate) struct Line {
    /// The product of the query with the mean of the segment.
    pub(crate) base: f32,
    /// Rows whose score is not greater are not wanted.
    pub(crate) threshold: f32,
}

/// Scores a block of binary codes. The result has a bit for each row whose score exceeds the
/// threshold; `scores` has the scores of all. A row's score is `base + factor × product`.
pub(crate) fn score_block(
    isa: Isa,
    codes: &[u8],
    query: &BitQuery,
    (factors, line): (&[f32; BLOCK], Line),
    scores: &mut [f32; BLOCK],
) -> u64 {
    let mut sums = [0; BLOCK];
    match isa {
        Isa::Scalar => {
            scalar::sums(codes, &query.tables, &mut sums);
            scalar::scores(&sums, query, (factors, line), scores)
        }
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => {
            neon::sums(codes, &query.tables, &mut sums);
            scalar::scores(&sums, query, (factors, line), scores)
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86::score_block_avx2(codes, query, (factors, line), (&mut sums, scores)),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Vnni => x86::score_block_avx512(codes, query, (factors, line), (&mut sums, scores)),
    }
}

/// A query for int8 codes.
pub(crate) struct Int8Query {
    /// As many as a row has, zeros at the end included.
    pub(crate) codes: Vec<i8>,
    /// What one step of the codes is worth.
    pub(crate) scale: f32,
    /// 128 times the sum of the codes: kernels that need unsigned rows add 128 to these.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only VNNI needs unsigned rows"))]
    bias: i32,
}

impl Int8Query {
    pub(crate) fn new(codes: Vec<i8>, scale: f32) -> Int8Query {
        let bias = codes.iter().map(|code| i32::from(*code) * 128).sum();
        Int8Query { codes, scale, bias }
    }
}

/// The product of a row of int8 codes with the query's codes, exact on every instruction set.
pub(crate) fn dot(isa: Isa, row: &[i8], query: &Int8Query) -> i32 {
    match isa {
        Isa::Scalar => scalar::dot(row, &query.codes),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => neon::dot(row, &query.codes),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 => x86::dot_avx2(row, &query.codes),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => x86::dot_vnni(row, &query.codes) - query.bias,
    }
}

/// Asks the memory for codes that a later call reads, where the processor cannot guess them.
#[inline]
pub(crate) fn prefetch(codes: &[i8]) {
    #[cfg(target_arch = "x86_64")]
    x86::prefetch(codes);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = codes;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sequence of numbers in [−1, 1); the kernels have no other dependency.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> f32 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
        }

        fn bytes(&mut self, n: usize) -> Vec<u8> {
            (0..n).map(|_| ((self.next() + 1.0) * 128.0) as u8).collect()
        }
    }

    /// The sign of a row in a dimension.
    fn sign(codes: &[u8], row: usize, dimension: usize) -> f32 {
        let byte = codes[dimension / 8 * BLOCK + position(row)];
        if byte >> (dimension % 8) & 1 == 1 { 1.0 } else { -1.0 }
    }

    #[test]
    fn every_row_has_a_position_of_its_own() {
        let mut seen = [false; BLOCK];
        (0..BLOCK).for_each(|row| seen[position(row)] = true);
        assert_eq!(seen, [true; BLOCK]);
    }

    #[test]
    fn scores_of_blocks_follow_the_formula_on_every_instruction_set() {
        let mut random = Random(1);
        for dimensions in [1, 4, 7, 8, 16, 17, 100, 384, 768, 1024, 4096, 16_384] {
            let query: Vec<f32> = (0..dimensions).map(|_| random.next()).collect();
            let tables = BitQuery::new(&query);
            let codes = random.bytes(bit_bytes(dimensions) * BLOCK);
            let factors: [f32; BLOCK] = std::array::from_fn(|_| random.next() + 1.0);
            let line = Line { base: 0.25, threshold: 0.5 };
            let mut expected = [0.0; BLOCK];
            let mask = score_block(Isa::Scalar, &codes, &tables, (&factors, line), &mut expected);
            for row in 0..BLOCK {
                let product: f32 = (0..dimensions).map(|d| query[d] * sign(&codes, row, d)).sum();
                // Each table rounds to half a step.
                let groups = tables.tables.len() as f32;
                let bound = (0.5 * groups * tables.step + 1e-4 * groups) * factors[row];
                let difference = (expected[row] - 0.25 - factors[row] * product).abs();
                assert!(difference <= bound, "{dimensions} {row}: {difference} > {bound}");
                assert_eq!(mask >> row & 1 == 1, expected[row] > 0.5, "{dimensions} {row}");
            }
            for isa in Isa::all() {
                let mut scores = [0.0; BLOCK];
                let found = score_block(isa, &codes, &tables, (&factors, line), &mut scores);
                assert_eq!((found, scores), (mask, expected), "{isa:?} {dimensions}");
            }
        }
    }

    #[test]
    fn the_largest_sums_fit() {
        for dimensions in [8, 1024, 4160, 16_384] {
            let tables = BitQuery::new(&vec![1.0; dimensions]);
            let codes = vec![u8::MAX; bit_bytes(dimensions) * BLOCK];
            for isa in Isa::all() {
                let mut scores = [0.0; BLOCK];
                let line = Line { base: 0.0, threshold: f32::NEG_INFINITY };
                assert_eq!(score_block(isa, &codes, &tables, (&[1.0; BLOCK], line), &mut scores), u64::MAX);
                let worst = scores.iter().map(|s| (s - dimensions as f32).abs()).fold(0.0, f32::max);
                assert!(worst <= dimensions as f32 * 1e-3, "{isa:?} {dimensions}: {worst}");
            }
        }
    }

    #[test]
    fn a_query_of_zeros_scores_the_base_and_nan_never_passes() {
        let tables = BitQuery::new(&[0.0; 384]);
        let codes = vec![0x5a; bit_bytes(384) * BLOCK];
        for isa in Isa::all() {
            let mut scores = [0.0; BLOCK];
            let line = Line { base: 0.5, threshold: 0.25 };
            assert_eq!(score_block(isa, &codes, &tables, (&[1.0; BLOCK], line), &mut scores), u64::MAX);
            assert_eq!(scores, [0.5; BLOCK]);
            assert_eq!(score_block(isa, &codes, &tables, (&[f32::NAN; BLOCK], line), &mut scores), 0, "{isa:?}");
        }
    }

    #[test]
    fn products_are_exact_on_every_instruction_set() {
        let mut random = Random(2);
        for length in [64, 128, 384, 1024, 16_384] {
            for extreme in [false, true] {
                let codes = |random: &mut Random| match extreme {
                    true => vec![-127; length],
                    false => (0..length).map(|_| (random.next() * 127.0).round() as i8).collect(),
                };
                let query = Int8Query::new(codes(&mut random), 1.0);
                // A damaged file may hold −128 too.
                let row = if extreme { vec![-128; length] } else { codes(&mut random) };
                let expected: i64 = row.iter().zip(&query.codes).map(|(a, b)| i64::from(*a) * i64::from(*b)).sum();
                for isa in Isa::all() {
                    assert_eq!(i64::from(dot(isa, &row, &query)), expected, "{isa:?} {length}");
                }
            }
        }
    }
}
