//! Sets of rows.

/// A set of rows of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bitmap {
    /// 64 rows each; bits after the last row are 0.
    words: Vec<u64>,
    rows: usize,
}

impl Bitmap {
    /// No row of `rows`.
    pub fn none(rows: usize) -> Bitmap {
        Bitmap { words: vec![0; rows.div_ceil(64)], rows }
    }

    /// All of `rows`.
    pub fn all(rows: usize) -> Bitmap {
        let mut bitmap = Bitmap { words: vec![u64::MAX; rows.div_ceil(64)], rows };
        bitmap.clear_end();
        bitmap
    }

    /// The rows whose value `accepts` accepts, of as many rows as there are values.
    pub(super) fn of_values(values: &[u32], accepts: impl Fn(u32) -> bool) -> Bitmap {
        let word = |values: &[u32]| values.iter().rev().fold(0, |word, value| word << 1 | u64::from(accepts(*value)));
        Bitmap { words: values.chunks(64).map(word).collect(), rows: values.len() }
    }

    /// How many rows the segment has.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How many rows are in the set.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether a row is in the set. Rows that the segment lacks are not.
    pub fn contains(&self, row: usize) -> bool {
        row < self.rows && self.words[row / 64] >> (row % 64) & 1 == 1
    }

    /// Adds or removes a row. Rows that the segment lacks are ignored.
    pub fn set(&mut self, row: usize, included: bool) {
        if row < self.rows {
            let bit = 1 << (row % 64);
            match included {
                true => self.words[row / 64] |= bit,
                false => self.words[row / 64] &= !bit,
            }
        }
    }

    /// Keeps the rows that are also in `other`.
    pub fn intersect(&mut self, other: &Bitmap) {
        for (i, word) in self.words.iter_mut().enumerate() {
            *word &= other.words.get(i).copied().unwrap_or(0);
        }
    }

    /// Adds the rows of `other`.
    pub fn unite(&mut self, other: &Bitmap) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
        self.clear_end();
    }

    /// The rows of the set, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(i, word)| Ones(*word).map(move |bit| 64 * i + bit))
    }

    /// The rows from `64 × i` on, one bit each.
    pub(super) fn word(&self, i: usize) -> u64 {
        self.words.get(i).copied().unwrap_or(0)
    }

    fn clear_end(&mut self) {
        if let Some(last) = self.words.last_mut()
            && !self.rows.is_multiple_of(64)
        {
            *last &= (1 << (self.rows % 64)) - 1;
        }
    }
}

/// The positions of the ones of a word, ascending.
pub(super) struct Ones(pub(super) u64);

impl Iterator for Ones {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let bit = self.0.trailing_zeros() as usize;
        // Clears the lowest one.
        self.0 &= self.0.checked_sub(1)?;
        Some(bit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_rows() {
        for rows in [0, 1, 63, 64, 65, 200] {
            let all = Bitmap::all(rows);
            assert_eq!((all.count(), all.iter().count(), all.rows()), (rows, rows, rows));
            let numbers: Vec<u32> = (0..rows as u32).collect();
            let mut thirds = Bitmap::of_values(&numbers, |row| row % 3 == 0);
            assert_eq!(thirds.iter().collect::<Vec<_>>(), (0..rows).step_by(3).collect::<Vec<_>>());
            let even = Bitmap::of_values(&numbers, |row| row % 2 == 0);
            let mut both = thirds.clone();
            both.intersect(&even);
            assert!((0..rows + 70).all(|row| both.contains(row) == (row < rows && row % 6 == 0)));
            thirds.unite(&even);
            assert!((0..rows).all(|row| thirds.contains(row) == (row % 3 == 0 || row % 2 == 0)));
            let mut none = Bitmap::none(rows);
            (0..rows + 70).for_each(|row| none.set(row, true));
            assert_eq!(none, all);
            (0..rows + 70).for_each(|row| none.set(row, false));
            assert_eq!(none, Bitmap::none(rows));
        }
    }

    #[test]
    fn sets_of_other_sizes_do_not_reach_beyond_the_rows() {
        let mut small = Bitmap::none(3);
        small.unite(&Bitmap::all(100));
        assert_eq!(small, Bitmap::all(3));
        let mut large = Bitmap::all(100);
        large.intersect(&Bitmap::all(3));
        assert_eq!(large.count(), 3);
    }
}
