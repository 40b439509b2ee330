//! Cases: hidden sizes on and off every vector width and those of published models, one sequence and
//! many, single tokens, long sequences, gates far into saturation, the widest that a GPU takes.

use super::reference::{self, Problem};
use super::{Lstm, MAX_HIDDEN};
use crate::case::{Case, Input, Tolerance, weights};
use crate::{DType, Segments};

pub(crate) fn cases() -> Vec<Case> {
    type Shape = (&'static [usize], usize, f32);
    // lengths, hidden size, spread of the gates' inputs
    let shapes: [Shape; 7] = [
        (&[5, 1, 9, 3, 12, 2], 256, 1.0),
        (&[40], 384, 1.0),
        (&[3, 7], 20, 8.0),
        (&[1], 16, 1.0),
        (&[2, 2, 2, 2, 2, 2, 2, 2, 2], 33, 1.0),
        (&[150, 4], 5, 2.0),
        (&[3, 1], MAX_HIDDEN, 1.0),
    ];
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, dtype, *s)).collect::<Vec<_>>();
    DType::FLOATS.into_iter().flat_map(case).collect()
}

fn one(seed: u64, dtype: DType, (lengths, n, spread): (&'static [usize], usize, f32)) -> Case {
    let tokens: usize = lengths.iter().sum();
    // With an odd seed, rows are part of wider rows.
    let (width, start) = if seed.is_multiple_of(2) { (8 * n, 0) } else { (8 * n + 7, 3) };
    let x = Input::normal(10 * seed + 1500, &[tokens, width], dtype, (0.0, spread));
    let columns = x.columns(start, 8 * n);
    let recurrent = [1, 2].map(|i| {
        let seed = 10 * seed + 1500 + i;
        Input::normal(seed, &[4 * n, n], dtype, (0.0, 1.0 / (n as f32).sqrt()))
    });
    let recurrent_values = recurrent.clone().map(|input| input.values);
    // The cases begin with the gates' inputs, so the input product is not used.
    let [input, bias] = [&[4 * n, 1][..], &[4 * n]].map(|dims| {
        let size = dims.iter().product::<usize>();
        Input::new(dims, dtype, move || vec![0.0; size])
    });
    Case {
        op: "lstm",
        name: format!("{lengths:?} x {n} ± {spread}"),
        dtype,
        // h and c stay in f32, and results are rounded once. A gate adds `n` products of numbers
        // below 1 in f32; σ and tanh are within 4 ulp; f < 1 lets the errors of earlier tokens fade.
        tolerance: Tolerance { fused: 1.0, composed: 1.0, sums: 48.0 },
        flops: (16 * tokens * n * n) as u64,
        prepare: Box::new(move |place| {
            let entries = [
                ("weight_ih_l0", &input),
                ("weight_ih_l0_reverse", &input),
                ("weight_hh_l0", &recurrent[0]),
                ("weight_hh_l0_reverse", &recurrent[1]),
                ("bias_ih_l0", &bias),
                ("bias_hh_l0", &bias),
                ("bias_ih_l0_reverse", &bias),
                ("bias_hh_l0_reverse", &bias),
            ];
            let lstm = Lstm::load(&weights(&entries, place), 0, 1, n)?;
            let (x, segments) = (x.on(place)?.narrow(1, start, 8 * n)?, Segments::new(lengths)?);
            Ok(Box::new(move || lstm.recur(&x, &segments)))
        }),
        reference: Box::new(move || match Segments::new(lengths) {
            Ok(segments) => {
                let weights = [&**recurrent_values[0], &**recurrent_values[1]];
                reference::lstm(&Problem { x: &columns, weights, hidden: n, segments: &segments })
            }
            Err(_) => Vec::new(),
        }),
    }
}
