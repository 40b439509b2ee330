//! Cases: sequences shorter than the window, and longer.

use super::{reference, unfold};
use crate::case::{Case, Input, Tolerance};
use crate::{DType, Segments};

pub(crate) fn cases() -> Vec<Case> {
    let shapes: [(&[usize], usize, usize); 3] = [(&[20, 1, 2, 9], 96, 3), (&[3, 1], 7, 5), (&[6], 1, 1)];
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, dtype, *s));
    DType::FLOATS.into_iter().flat_map(case).collect()
}

fn one(seed: u64, dtype: DType, (lengths, n, width): (&'static [usize], usize, usize)) -> Case {
    // With an odd seed, rows are part of wider rows.
    let (wide, start) = if seed.is_multiple_of(2) { (n, 0) } else { (n + 7, 3) };
    let x = Input::normal(seed + 900, &[lengths.iter().sum(), wide], dtype, (0.0, 1.0));
    let columns = x.columns(start, n);
    Case {
        op: "unfold",
        name: format!("{lengths:?} x {n}, windows of {width}"),
        dtype,
        // A copy.
        tolerance: Tolerance { fused: 0.0, composed: 0.0, sums: 0.0 },
        flops: 0,
        prepare: Box::new(move |place| {
            let (x, segments) = (x.on(place)?.narrow(1, start, n)?, Segments::new(lengths)?);
            Ok(Box::new(move || unfold(&x, &segments, width)))
        }),
        reference: Box::new(move || {
            Segments::new(lengths).map_or_else(|_| Vec::new(), |s| reference::unfold(&columns, n, &s, width))
        }),
    }
}
