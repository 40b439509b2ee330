//! Cases: each activation that models use on a gate, both halves, widths that are and are not
//! multiples of every vector size, rows that are part of wider rows.

use super::{Gate, glu, reference};
use crate::case::{Case, Input, Tolerance};
use crate::{Activation, DType};

pub(crate) fn cases() -> Vec<Case> {
    let shapes = [
        (64, 1152, Activation::Gelu, Gate::First),
        (7, 33, Activation::Silu, Gate::First),
        (5, 130, Activation::GeluTanh, Gate::Second),
        (3, 17, Activation::Gelu, Gate::Second),
        (4, 40, Activation::Sigmoid, Gate::First),
        (2, 9, Activation::Relu, Gate::First),
    ];
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, dtype, *s));
    DType::FLOATS.into_iter().flat_map(case).collect()
}

fn one(seed: u64, dtype: DType, (rows, n, activation, gate): (usize, usize, Activation, Gate)) -> Case {
    // With an odd seed, rows are part of wider rows.
    let (width, start) = if seed.is_multiple_of(2) { (2 * n, 0) } else { (2 * n + 7, 3) };
    let x = Input::normal(seed + 600, &[rows, width], dtype, (0.0, 2.0));
    let columns = x.columns(start, 2 * n);
    Case {
        op: "glu",
        name: format!("{rows}x2x{n} {activation:?} {gate:?}"),
        dtype,
        // A product in f32, rounded once in both forms. erf is within 4 ulp of 1; x / 2 and the
        // other half, each a few spreads long, turn that into 16 ulp and more of the result.
        tolerance: Tolerance { fused: 1.0, composed: 1.0, sums: 32.0 },
        flops: 10 * (rows * n) as u64,
        prepare: Box::new(move |place| {
            let x = x.on(place)?.narrow(1, start, 2 * n)?;
            Ok(Box::new(move || glu(&x, activation, gate)))
        }),
        reference: Box::new(move || reference::glu(&columns, n, activation, gate)),
    }
}
