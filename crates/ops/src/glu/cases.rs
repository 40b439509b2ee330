//! Cases: each activation that models use on a gate, both halves, widths that are and are not
//! multiples of every vector size, rows that are part of wider rows, rows with scales, no gate.

use super::{Gate, activate, glu, glu_scaled, reference};
use crate::case::{Case, Input, Tolerance};
use crate::{Activation, DType};

pub(crate) fn cases() -> Vec<Case> {
    let shapes = [
        (64, 1152, Activation::Gelu, Gate::First, false),
        (7, 33, Activation::Silu, Gate::First, false),
        (5, 130, Activation::GeluTanh, Gate::Second, false),
        (3, 17, Activation::Gelu, Gate::Second, false),
        (4, 40, Activation::Sigmoid, Gate::First, false),
        (2, 9, Activation::Relu, Gate::First, false),
        (6, 704, Activation::Silu, Gate::First, true),
        (9, 21, Activation::Silu, Gate::Second, true),
    ];
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, dtype, *s));
    let alone = [(64, 1152, Activation::Gelu), (5, 33, Activation::GeluTanh), (7, 130, Activation::Relu)];
    let ungated = |dtype| alone.iter().enumerate().map(move |(i, s)| ungated(i as u64, dtype, *s));
    DType::FLOATS.into_iter().flat_map(|dtype| case(dtype).chain(ungated(dtype))).collect()
}

/// Without a gate.
fn ungated(seed: u64, dtype: DType, (rows, n, activation): (usize, usize, Activation)) -> Case {
    // With an odd seed, rows are part of wider rows.
    let (width, start) = if seed.is_multiple_of(2) { (n, 0) } else { (n + 7, 3) };
    let x = Input::normal(seed + 680, &[rows, width], dtype, (0.0, 2.0));
    let columns = x.columns(start, n);
    Case {
        op: "glu",
        name: format!("{rows}x{n} {activation:?} without a gate"),
        dtype,
        // Rounded once in both forms; erf as in a case with a gate.
        tolerance: Tolerance { fused: 1.0, composed: 1.0, sums: 32.0 },
        flops: 10 * (rows * n) as u64,
        prepare: Box::new(move |place| {
            let x = x.on(place)?.narrow(1, start, n)?;
            Ok(Box::new(move || activate(&x, activation)))
        }),
        reference: Box::new(move || reference::activate(&columns, activation)),
    }
}

type Shape = (usize, usize, Activation, Gate, bool);

fn one(seed: u64, dtype: DType, (rows, n, activation, gate, scaled): Shape) -> Case {
    // With an odd seed, rows are part of wider rows.
    let (width, start) = if seed.is_multiple_of(2) { (2 * n, 0) } else { (2 * n + 7, 3) };
    let x = Input::normal(seed + 600, &[rows, width], dtype, (0.0, 2.0));
    let columns = x.columns(start, 2 * n);
    let scales = scaled.then(|| Input::normal(seed + 650, &[rows, 1], dtype, (0.5, 0.2)));
    let reference_scales = scales.clone();
    Case {
        op: "glu",
        name: format!("{rows}x2x{n} {activation:?} {gate:?}{}", if scaled { " scaled" } else { "" }),
        dtype,
        // A product in f32, rounded once in both forms. erf is within 4 ulp of 1; x / 2 and the
        // other half, each a few spreads long, turn that into 16 ulp and more of the result.
        tolerance: Tolerance { fused: 1.0, composed: 1.0, sums: 32.0 },
        flops: 10 * (rows * n) as u64,
        prepare: Box::new(move |place| {
            let x = x.on(place)?.narrow(1, start, 2 * n)?;
            let scales = scales.as_ref().map(|s| s.on(place)).transpose()?;
            Ok(Box::new(move || match &scales {
                Some(scales) => glu_scaled(&x, scales, activation, gate),
                None => glu(&x, activation, gate),
            }))
        }),
        reference: Box::new(move || {
            let scales = reference_scales.as_ref().map_or_else(|| vec![1.0; rows], |s| s.values.to_vec());
            reference::glu(&columns, &scales, activation, gate)
        }),
    }
}
