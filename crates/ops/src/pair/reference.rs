//! The formula in f64.

use super::Combine;

/// Matrices with rows of `n` and their indices, and the offsets of the last.
pub(super) struct Problem<'a> {
    pub(super) combine: Combine,
    pub(super) operands: Vec<(&'a [f32], &'a [u32])>,
    pub(super) offsets: Option<&'a [f32]>,
    pub(super) n: usize,
}

pub(super) fn pair(problem: &Problem<'_>) -> Vec<f64> {
    let Problem { combine, operands, offsets, n } = problem;
    let mut y = Vec::new();
    for r in 0..operands[0].1.len() {
        let at = |i: usize, k: usize| f64::from(operands[i].0[operands[i].1[r] as usize * n + k]);
        let ks = 0..*n;
        match combine {
            Combine::ReluSum => y.extend(ks.map(|k| (0..operands.len()).map(|i| at(i, k)).sum::<f64>().max(0.0))),
            Combine::Product => y.extend(ks.map(|k| at(0, k) * at(1, k))),
            Combine::Dot => y.push(ks.map(|k| at(0, k) * at(1, k)).sum()),
            Combine::Score => {
                let offset = offsets.map_or(0.0, |offsets| f64::from(offsets[operands[2].1[r] as usize]));
                y.push(ks.map(|k| (at(0, k) + at(1, k)).max(0.0) * at(2, k)).sum::<f64>() + offset);
            }
        }
    }
    y
}
