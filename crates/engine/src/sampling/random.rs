//! Random numbers without a state: a function of a key and a counter (Salmon et al., SC 2011,
//! Philox 4×32-10).
//!
//! The number for a position does not depend on how many were drawn before or for which sequence,
//! so an answer gets the same numbers alone, in any batch, and after a preemption.

/// A number in [0, 1) for a position of answer `index` under `seed`.
pub(crate) fn uniform(seed: u64, index: u32, position: u64) -> f64 {
    let counter = [position as u32, (position >> 32) as u32, index, 0];
    let [a, b, ..] = philox(counter, [seed as u32, (seed >> 32) as u32]);
    let bits = u64::from(a) | u64::from(b) << 32;
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let [a, b, c, d] = counter;
        let x = u64::from(a) * 0xD251_1F53;
        let y = u64::from(c) * 0xCD9E_8D57;
        counter = [(y >> 32) as u32 ^ b ^ key[0], y as u32, (x >> 32) as u32 ^ d ^ key[1], x as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_matches_the_published_test_vectors() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        let pi = [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344];
        assert_eq!(philox(pi, [0xa4093822, 0x299f31d0]), [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]);
    }

    #[test]
    fn uniform_is_independent_across_seeds_answers_and_positions() {
        let mean = |f: &dyn Fn(u64) -> f64| (0..10_000).map(f).sum::<f64>() / 10_000.0;
        let by: [&dyn Fn(u64) -> f64; 3] = [&|i| uniform(i, 0, 0), &|i| uniform(0, i as u32, 0), &|i| uniform(0, 0, i)];
        for f in by {
            assert!((mean(f) - 0.5).abs() < 0.01);
            let pairs = mean(&|i| (f(i) - 0.5) * (f(i + 1) - 0.5) * 12.0);
            assert!(pairs.abs() < 0.03, "{pairs}");
        }
        assert!((0..100_000).all(|i| (0.0..1.0).contains(&uniform(9, 0, i))));
    }
}
