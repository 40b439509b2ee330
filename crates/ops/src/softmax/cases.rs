//! Cases: widths that are and are not multiples of every vector size, rows that are part of wider
//! rows, one score, scores so large that exp alone would overflow.

use super::{reference, softmax};
use crate::DType;
use crate::case::{Case, Input, Tolerance};

pub(crate) fn cases() -> Vec<Case> {
    // rows, width, centre, spread
    let shapes = [
        (64, 128, 0.0, 2.0),
        (5, 33, 0.0, 1.0),
        (3, 1, 0.0, 1.0),
        (7, 500, 0.0, 4.0),
        (4, 40, 1000.0, 30.0),
        (3, 203, 0.0, 2.0),
        (2, 4501, 0.0, 1.0),
        // So spread out that only the maximum over the whole row avoids an overflow.
        (3, 1500, 0.0, 200.0),
    ];
    // Whole runs of 16 bytes, in rows of a warp, of a wide block, and of narrow blocks that share a
    // multiprocessor.
    let aligned = [(4, 768, 0.0, 2.0), (3, 2048, 0.0, 2.0), (300, 1032, 0.0, 2.0)];
    let all: Vec<_> = (0..).zip(shapes).chain((10..).step_by(2).zip(aligned)).collect();
    let case = |dtype| all.iter().map(move |(seed, s)| one(*seed, dtype, *s)).collect::<Vec<_>>();
    DType::FLOATS.into_iter().flat_map(case).collect()
}

fn one(seed: u64, dtype: DType, (rows, n, centre, spread): (usize, usize, f32, f32)) -> Case {
    // With an odd seed, rows are part of wider rows.
    let (width, start) = if seed.is_multiple_of(2) { (n, 0) } else { (n + 7, 3) };
    let x = Input::normal(seed + 400, &[rows, width], dtype, (centre, spread));
    let columns = x.columns(start, n);
    Case {
        op: "softmax",
        name: format!("{rows}x{n} around {centre} ± {spread}"),
        dtype,
        // x − max is exact or rounded once, and exp turns its absolute error into a relative one:
        // up to spread · 8 roundings.
        tolerance: Tolerance { fused: 1.0, composed: 1.0, sums: 8.0 + 8.0 * f64::from(spread) },
        flops: 5 * (rows * n) as u64,
        prepare: Box::new(move |place| {
            let x = x.on(place)?.narrow(1, start, n)?;
            Ok(Box::new(move || softmax(&x)))
        }),
        reference: Box::new(move || reference::softmax(&columns, n)),
    }
}
