//! The best of many scores.

/// A score and the position of its row, in one number: a higher score is greater, and of equal
/// scores the lower position. So there are no ties, and the result does not depend on the number of
/// threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(u64);

impl Key {
    /// The score must not be NaN.
    #[inline]
    pub(super) fn new(score: f32, position: u32) -> Key {
        // Adding 0 turns −0 into 0.
        let bits = (score + 0.0).to_bits();
        let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
        Key(u64::from(ordered) << 32 | u64::from(!position))
    }

    pub(super) fn score(self) -> f32 {
        let ordered = (self.0 >> 32) as u32;
        f32::from_bits(if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered })
    }

    pub(super) fn position(self) -> u32 {
        !(self.0 as u32)
    }
}

/// Keeps the greatest keys, in no order.
pub(super) fn keep_best(keys: &mut Vec<Key>, count: usize) {
    if count == 0 {
        keys.clear();
    } else if keys.len() > count {
        keys.select_nth_unstable_by(count - 1, |a, b| b.cmp(a));
        keys.truncate(count);
    }
}

/// Collects the best of a stream of scores with ascending positions. A buffer of twice as many keys
/// is halved whenever it is full: a few operations per score above the threshold, where a heap
/// takes a logarithm of them.
pub(super) struct Top {
    keys: Vec<Key>,
    count: usize,
    /// Scores that are not greater cannot be among the best.
    threshold: f32,
}

impl Top {
    pub(super) fn new(count: usize) -> Top {
        Top { keys: Vec::with_capacity(2 * count), count, threshold: f32::NEG_INFINITY }
    }

    #[inline]
    pub(super) fn threshold(&self) -> f32 {
        self.threshold
    }

    /// Adds a score above the threshold.
    #[inline]
    pub(super) fn push(&mut self, score: f32, position: u32) {
        self.keys.push(Key::new(score, position));
        if self.keys.len() >= 2 * self.count {
            self.halve();
        }
    }

    #[cold]
    fn halve(&mut self) {
        keep_best(&mut self.keys, self.count);
        // `keep_best` has put the least of them last.
        self.threshold = self.keys.last().map_or(f32::INFINITY, |key| key.score());
    }

    /// The best, in no order.
    pub(super) fn into_keys(mut self) -> Vec<Key> {
        keep_best(&mut self.keys, self.count);
        self.keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_scores_and_their_order() {
        let scores = [f32::NEG_INFINITY, -2.5, -1e-40, 0.0, 1e-40, 0.5, 2.5, f32::INFINITY];
        for pair in scores.windows(2) {
            assert!(Key::new(pair[0], 3) < Key::new(pair[1], 4));
            assert!(Key::new(pair[0], 4) < Key::new(pair[0], 3));
        }
        for score in scores {
            let key = Key::new(score, 77);
            assert_eq!((key.score(), key.position()), (score, 77));
        }
        assert_eq!(Key::new(-0.0, 1), Key::new(0.0, 1));
    }

    #[test]
    fn the_best_are_those_of_a_sort() {
        for count in [1, 2, 7, 100, 5000] {
            // Few distinct scores: many ties.
            let scores: Vec<f32> = (0..3000u64).map(|i| (i * i * 2_654_435_761 % 97) as f32).collect();
            let mut top = Top::new(count);
            for (position, score) in scores.iter().enumerate() {
                if *score > top.threshold() {
                    top.push(*score, position as u32);
                }
            }
            let mut found = top.into_keys();
            found.sort_unstable_by(|a, b| b.cmp(a));
            let mut expected: Vec<Key> = scores.iter().enumerate().map(|(i, s)| Key::new(*s, i as u32)).collect();
            expected.sort_unstable_by(|a, b| b.cmp(a));
            expected.truncate(count);
            assert_eq!(found, expected, "{count}");
        }
        let mut none = vec![Key::new(1.0, 1)];
        keep_best(&mut none, 0);
        assert!(none.is_empty());
    }
}
