//! Cases: widths that are and are not multiples of every vector size, rows that are part of wider
//! rows, tiny vectors, a zero vector.

use super::{l2_norm, reference};
use crate::DType;
use crate::case::{Case, Input, Tolerance};

pub(crate) fn cases() -> Vec<Case> {
    // rows, width, spread
    let shapes =
        [(64, 384, 1.0), (5, 33, 3.0), (3, 1, 1.0), (4, 768, 1e-3), (2, 20, 0.0), (3, 203, 1.0), (2, 4501, 1.0)];
    // Whole runs of 16 bytes, in rows of a warp, of a wide block, and of narrow blocks that share a
    // multiprocessor.
    let aligned = [(4, 768, 1.0), (3, 2048, 1.0), (300, 1032, 1.0)];
    let all: Vec<_> = (0..).zip(shapes).chain((10..).step_by(2).zip(aligned)).collect();
    let case = |dtype| all.iter().map(move |(seed, s)| one(*seed, dtype, *s)).collect::<Vec<_>>();
    DType::FLOATS.into_iter().flat_map(case).collect()
}

fn one(seed: u64, dtype: DType, (rows, n, spread): (usize, usize, f32)) -> Case {
    // With an odd seed, rows are part of wider rows.
    let (width, start) = if seed.is_multiple_of(2) { (n, 0) } else { (n + 7, 3) };
    let x = Input::normal(seed + 500, &[rows, width], dtype, (0.0, spread));
    let columns = x.columns(start, n);
    Case {
        op: "l2_norm",
        name: format!("{rows}x{n} ± {spread}"),
        dtype,
        // A sum of positive numbers, a root and a division in f32, rounded once.
        tolerance: Tolerance { fused: 1.0, composed: 1.0, sums: 8.0 },
        flops: 3 * (rows * n) as u64,
        prepare: Box::new(move |place| {
            let x = x.on(place)?.narrow(1, start, n)?;
            Ok(Box::new(move || l2_norm(&x)))
        }),
        reference: Box::new(move || reference::l2_norm(&columns, n)),
    }
}
