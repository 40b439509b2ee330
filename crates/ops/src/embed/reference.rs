//! The sum in f64.

pub(super) fn embed(pairs: &[(&[f32], &[u32])], n: usize) -> Vec<f64> {
    let value = |t: usize, c: usize| -> f64 {
        pairs.iter().map(|(table, ids)| f64::from(table[ids[t] as usize * n + c])).sum()
    };
    (0..pairs[0].1.len()).flat_map(|t| (0..n).map(move |c| (t, c))).map(|(t, c)| value(t, c)).collect()
}
