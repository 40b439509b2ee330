//! The formula in f64, from angles rounded to f32.

pub(super) struct Problem<'a> {
    pub(super) x: &'a [f32],
    pub(super) positions: &'a [u32],
    pub(super) frequencies: &'a [f32],
    pub(super) heads: usize,
    pub(super) size: usize,
}

pub(super) fn rotary(p: &Problem<'_>) -> Vec<f64> {
    let half = p.frequencies.len();
    let mut y = Vec::new();
    for (i, head) in p.x.chunks(p.size).enumerate() {
        let position = p.positions[i / p.heads] as f32;
        let angle = |j: usize| f64::from(position * p.frequencies[j % half]);
        let x = |j: usize| f64::from(head[j]);
        y.extend((0..p.size).map(|j| match j {
            _ if j < half => x(j) * angle(j).cos() - x(j + half) * angle(j).sin(),
            _ if j < 2 * half => x(j) * angle(j).cos() + x(j - half) * angle(j).sin(),
            _ => x(j),
        }));
    }
    y
}
