//! Length buckets: the one exception to packed batches. Sequences of similar lengths share a call
//! of the graph, padded to the longest of them, and a mask hides the padding.

use sconce_engine::GraphText;

/// The most numbers in the output of a call, 64 MB: logits over a vocabulary are wide.
const MOST_OUTPUTS: usize = 1 << 24;

/// What decides how texts share calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucketing {
    /// Numbers of the output per token or, without a row for each token, per sequence.
    pub(crate) width: usize,
    pub(crate) is_per_token: bool,
    /// Each call has one text.
    pub(crate) one_per_call: bool,
    /// The graph has no mask, so that only texts of one length can share a call.
    pub(crate) is_unmasked: bool,
    /// The most tokens in a call of several texts, padding included.
    pub(crate) batch_tokens: usize,
    /// The length that every text is padded to, if the graph has a fixed one.
    pub(crate) fixed_length: Option<usize>,
}

impl Bucketing {
    /// Splits texts of these lengths into calls: indices, longest first.
    pub(crate) fn calls(&self, lengths: &[usize]) -> Vec<Vec<usize>> {
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        // A stable sort: equal lengths keep the order of the batch.
        order.sort_by_key(|i| std::cmp::Reverse(lengths[*i]));
        let mut calls: Vec<Vec<usize>> = Vec::new();
        for i in order {
            let fits = calls.last().is_some_and(|call| self.takes(lengths[call[0]], lengths[i], call.len() + 1));
            match calls.last_mut().filter(|_| fits) {
                Some(call) => call.push(i),
                None => calls.push(vec![i]),
            }
        }
        calls
    }

    /// Whether a call whose longest text has `longest` tokens takes one of `length` as its last of
    /// `texts`.
    fn takes(&self, longest: usize, length: usize, texts: usize) -> bool {
        let tokens = self.fixed_length.unwrap_or(longest).saturating_mul(texts);
        let rows = if self.is_per_token { tokens } else { texts };
        let is_similar = match self.is_unmasked {
            true => length == longest,
            // At most a quarter of a long text is padding. Short texts cost little more padded, and
            // a call of their own costs more.
            false => longest - length <= (longest / 4).max(8),
        };
        let fits = tokens <= self.batch_tokens && rows.saturating_mul(self.width) <= MOST_OUTPUTS;
        !self.one_per_call && is_similar && fits
    }
}

/// The inputs of a call, `[texts, length]` each.
#[derive(Debug, Default)]
pub(crate) struct Padded {
    pub(crate) texts: usize,
    pub(crate) length: usize,
    pub(crate) ids: Vec<i64>,
    pub(crate) mask: Vec<i64>,
    pub(crate) types: Vec<i64>,
    pub(crate) positions: Vec<i64>,
}

/// Pads texts to `length`, or to the longest of them.
pub(crate) fn pad(texts: &[GraphText<'_>], length: Option<usize>, padding: u32) -> Padded {
    let longest = texts.iter().map(|text| text.ids.len()).max().unwrap_or(0);
    let length = length.unwrap_or(longest).max(longest);
    let mut padded = Padded { texts: texts.len(), length, ..Padded::default() };
    for text in texts {
        let missing = length - text.ids.len();
        padded.ids.extend(text.ids.iter().map(|id| i64::from(*id)));
        padded.ids.extend(std::iter::repeat_n(i64::from(padding), missing));
        padded.mask.extend((0..length).map(|i| i64::from(i < text.keys)));
        padded.types.extend(text.types.iter().map(|kind| i64::from(*kind)));
        padded.types.extend(std::iter::repeat_n(0, missing));
        padded.positions.extend(text.positions.iter().map(|place| i64::from(*place)));
        // The first position is a row of every table, and nothing sees the padding.
        padded.positions.extend(std::iter::repeat_n(0, missing));
    }
    padded
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;

    const PLAIN: Bucketing = Bucketing {
        width: 384,
        is_per_token: true,
        one_per_call: false,
        is_unmasked: false,
        batch_tokens: 4096,
        fixed_length: None,
    };

    #[test]
    fn calls_hold_every_text_once_and_texts_of_similar_length() {
        sconce_testkit::check(200, &(vec(1usize..600, 0..60), 1usize..100_000), |(lengths, width)| {
            let calls = Bucketing { width, ..PLAIN }.calls(&lengths);
            let mut all: Vec<usize> = calls.concat();
            all.sort_unstable();
            assert_eq!(all, (0..lengths.len()).collect::<Vec<_>>());
            for call in calls {
                let longest = lengths[call[0]];
                assert!(call.iter().all(|i| lengths[*i] <= longest && longest - lengths[*i] <= (longest / 4).max(8)));
                let tokens = call.len() * longest;
                assert!(call.len() == 1 || tokens <= 4096 && tokens * width <= MOST_OUTPUTS);
            }
        });
    }

    #[test]
    fn texts_stay_apart_where_they_would_change_each_other() {
        let lengths = [5, 5, 4, 5];
        assert_eq!(PLAIN.calls(&lengths), [vec![0, 1, 3, 2]]);
        assert_eq!(Bucketing { is_unmasked: true, ..PLAIN }.calls(&lengths), [vec![0, 1, 3], vec![2]]);
        assert_eq!(Bucketing { one_per_call: true, ..PLAIN }.calls(&lengths), [[0], [1], [3], [2]]);
    }

    #[test]
    fn padding_counts_towards_the_tokens_of_a_call() {
        let few = Bucketing { batch_tokens: 20, ..PLAIN };
        assert_eq!(few.calls(&[9, 1, 1, 1]), [vec![0, 1], vec![2, 3]]);
        assert_eq!(few.calls(&[30, 5]), [[0], [1]]);
        assert_eq!(Bucketing { fixed_length: Some(10), ..few }.calls(&[3, 3, 3]), [vec![0, 1], vec![2]]);
    }

    #[test]
    fn padding_is_masked_and_keys_are_kept() {
        let text = |ids: &'static [u32], types: &'static [u32], positions: &'static [u32], keys| GraphText {
            ids,
            types,
            positions,
            keys,
        };
        let padded = pad(&[text(&[7, 8, 9], &[0, 0, 1], &[2, 3, 4], 2), text(&[5], &[1], &[2], 1)], None, 4);
        assert_eq!((padded.texts, padded.length), (2, 3));
        assert_eq!(padded.ids, [7, 8, 9, 5, 4, 4]);
        assert_eq!(padded.mask, [1, 1, 0, 1, 0, 0]);
        assert_eq!(padded.types, [0, 0, 1, 1, 0, 0]);
        assert_eq!(padded.positions, [2, 3, 4, 2, 0, 0]);
        assert_eq!(pad(&[text(&[5], &[1], &[0], 1)], Some(4), 0).mask, [1, 0, 0, 0]);
    }
}
