//! The one source of pseudo-random numbers of tests and benchmarks.

/// splitmix64 (Steele, Lea, Flood 2014): short, and the same numbers on every machine.
///
/// Some expected values depend on its sequence: the weights of [`materialize`](crate::materialize),
/// which `tools/goldens` computes in Python, and hashes in the tests of `ops` and `hub`.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Any u64.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// An integer below `n`, which must not be 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next_u64() % n as u64) as usize
    }

    /// A number in [−1, 1).
    pub fn unit_f32(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Any `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next_u64() as u8).collect()
    }
}

/// A hash of two numbers, where a random number must belong to an index: the first number of a
/// sequence whose seed is `x` mixed with `y`. The beam searches that the tests of `engine` compare
/// with transformers depend on it.
pub fn mix(x: u64, y: u64) -> u64 {
    Rng::new(x ^ y.wrapping_mul(0x9e37_79b9_7f4a_7c15)).next_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published test vector of splitmix64.
    #[test]
    fn rng_matches_the_splitmix64_test_vector() {
        let mut rng = Rng::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn numbers_stay_in_their_ranges() {
        let mut rng = Rng::new(1);
        let mut seen = [false; 7];
        (0..200).for_each(|_| seen[rng.below(7)] = true);
        assert_eq!(seen, [true; 7]);
        let units: Vec<f32> = (0..10_000).map(|_| rng.unit_f32()).collect();
        assert!(units.iter().all(|u| (-1.0..1.0).contains(u)));
        assert!(units.iter().sum::<f32>().abs() < 200.0, "the mean is near 0");
        assert_eq!(rng.bytes(5).len(), 5);
    }
}
