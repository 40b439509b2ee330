//! A vocabulary in the order of its logits, sorted lazily as far as it is read.

use super::logit_scans;

/// Logits per part, of which we store the largest.
const PART: usize = 64;

/// Tokens sorted at least at once.
const MIN_SORTED: usize = 2048;

/// Tokens by falling logit, equals by rising id, without those of logit -∞.
///
/// At least k logits reach the k-th largest of the parts' maxima: so the logits that reach it
/// include the k largest of all, and few others. Only parts whose maximum reaches it are read
/// again.
pub struct Ranked<'a> {
    logits: &'a [f32],
    largest: Vec<f32>, // of each part
    /// All tokens with logits of at least `floor`, the first `sorted` of them in order and before
    /// the others.
    pool: Vec<u64>,
    floor: f32,
    sorted: usize,
    /// Number of parts that the next floor should reach.
    reach: usize,
}

impl<'a> Ranked<'a> {
    /// For logits without NaN; `some` is how many tokens will probably be read.
    pub fn new(logits: &'a [f32], some: usize) -> Ranked<'a> {
        let largest = logits.chunks(PART).map(logit_scans::largest).collect();
        Ranked { logits, largest, pool: Vec::new(), floor: f32::INFINITY, sorted: 0, reach: some.max(1) }
    }

    /// Logit and id of the token of rank `i`, from 0.
    pub fn get(&mut self, i: usize) -> Option<(f32, u32)> {
        while i >= self.pool.len() {
            if self.floor == f32::NEG_INFINITY {
                return None;
            }
            self.widen();
        }
        if i >= self.sorted {
            // Four times as many each time, so that the total cost is that of the last sort.
            let upto = self.pool.len().min((i + 1).max(MIN_SORTED).max(4 * self.sorted));
            let rest = &mut self.pool[self.sorted..];
            let more = upto - self.sorted;
            if more < rest.len() {
                rest.select_nth_unstable(more);
            }
            rest[..more].sort_unstable();
            self.sorted = upto;
        }
        let id = self.pool[i] as u32;
        Some((self.logits[id as usize], id))
    }

    /// Lowers the floor and adds the tokens above it to the pool.
    fn widen(&mut self) {
        let floor = match self.largest.len() > self.reach {
            true => *self.largest.clone().select_nth_unstable_by(self.reach, |a, b| b.total_cmp(a)).1,
            false => f32::NEG_INFINITY,
        };
        let wanted = |logit: f32| logit >= floor && logit < self.floor && logit > f32::NEG_INFINITY;
        for (i, part) in self.logits.chunks(PART).enumerate().filter(|(i, _)| self.largest[*i] >= floor) {
            let ids = (i * PART) as u32..;
            self.pool.extend(part.iter().zip(ids).filter(|(l, _)| wanted(**l)).map(|(l, id)| key(*l, id)));
        }
        self.floor = floor;
        self.reach = self.reach.saturating_mul(8);
    }
}

/// Ascending keys are falling logits, then rising ids.
fn key(logit: f32, id: u32) -> u64 {
    // + 0.0 turns -0 into 0. Then the bits of positive floats rise with them, those of others fall.
    let bits = (logit + 0.0).to_bits();
    let rising = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    u64::from(!rising) << 32 | u64::from(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{SizeRange, vec};
    use proptest::prelude::{Just, Strategy, prop_oneof};
    use sconce_testkit::check;

    /// Compares all ranks with a sort.
    fn assert_sorted_order(logits: &[f32]) {
        let mut sorted: Vec<u32> =
            (0..logits.len() as u32).filter(|i| logits[*i as usize] > f32::NEG_INFINITY).collect();
        sorted.sort_by(|a, b| logits[*b as usize].partial_cmp(&logits[*a as usize]).unwrap().then(a.cmp(b)));
        for some in [0, 1, 10, 100_000] {
            let mut ranked = Ranked::new(logits, some);
            for (i, id) in sorted.iter().enumerate() {
                assert_eq!(ranked.get(i), Some((logits[*id as usize], *id)), "{i} of {}", logits.len());
            }
            assert_eq!(ranked.get(sorted.len()), None);
            // Reading a far rank first gives the same.
            let far = sorted.len() / 2;
            assert_eq!(Ranked::new(logits, some).get(far).map(|r| r.1), sorted.get(far).copied());
        }
    }

    /// Few values make many equal logits.
    fn logits(values: u32, len: impl Into<SizeRange>) -> impl Strategy<Value = Vec<f32>> {
        let value = (0..values).prop_map(move |v| v as f32 - values as f32 / 2.0);
        vec(prop_oneof![6 => value, 1 => Just(f32::NEG_INFINITY)], len)
    }

    #[test]
    fn ranked_order_equals_a_sort() {
        for (values, most) in [(1, 200), (3, 200), (1000, 200), (2, 2000), (40, 5000)] {
            check(8, &logits(values, 0..=most), |logits| assert_sorted_order(&logits));
        }
        check(1, &logits(1_000_000, 20_000), |logits| assert_sorted_order(&logits));
        for len in [63, 64, 65] {
            check(4, &logits(5, len), |logits| assert_sorted_order(&logits));
        }
        assert_eq!(Ranked::new(&[], 3).get(0), None);
        assert_eq!(Ranked::new(&[-0.0, 0.0], 3).get(0).map(|r| r.1), Some(0));
    }
}
