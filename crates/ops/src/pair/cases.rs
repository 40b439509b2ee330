//! Cases: every combination, widths on and off the vector size, one row and many, matrices that are
//! part of wider ones.

use super::reference::{self, Problem};
use super::{Combine, dot, product, relu_sum, score};
use crate::case::{Case, Input, Tolerance, ids};
use crate::{DType, Result, Tensor};

pub(crate) fn cases() -> Vec<Case> {
    use Combine::{Dot, Product, ReluSum, Score};
    // combination, matrices, result rows, width
    let shapes = [
        (ReluSum, 2, 64, 384),
        (ReluSum, 3, 5, 33),
        (Product, 2, 7, 130),
        (Product, 2, 300, 512),
        (Dot, 2, 1, 31),
        (Dot, 2, 40, 768),
        (Score, 3, 600, 2048),
        (Score, 3, 9, 77),
    ];
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, dtype, *s)).collect::<Vec<_>>();
    DType::FLOATS.into_iter().flat_map(case).collect()
}

fn one(seed: u64, dtype: DType, (combine, count, rows, n): (Combine, usize, usize, usize)) -> Case {
    // With an odd seed, rows are part of wider rows.
    let (width, start) = if seed.is_multiple_of(2) { (n, 0) } else { (n + 7, 3) };
    let seed = 1700 + 20 * seed;
    let sizes = [30, 11, 4];
    let matrix = |i: usize| {
        let own = seed + 3 * i as u64;
        (Input::normal(own, &[sizes[i], width], dtype, (0.0, 1.0)), ids(own + 1, rows, sizes[i] as u32))
    };
    let matrices: Vec<_> = (0..count).map(matrix).collect();
    let offsets = (combine == Combine::Score).then(|| Input::normal(seed + 15, &[sizes[2], 1], DType::F32, (0.0, 3.0)));
    let columns: Vec<_> = matrices.iter().map(|(m, ids)| (m.columns(start, n), ids.clone())).collect();
    let reference_offsets = offsets.clone();
    let name = match combine {
        Combine::ReluSum => format!("relu sum of {count}"),
        Combine::Product => "product".into(),
        Combine::Dot => "dot".into(),
        Combine::Score => "score".into(),
    };
    Case {
        op: "pair",
        name: format!("{name}: {rows}x{n}"),
        dtype,
        // Elements are rounded once. Sums of `n` products stay in f32; they cancel, so an error is
        // relative to their rms, and it grows with the root of `n`.
        tolerance: match combine.reduces() {
            true => Tolerance { fused: 0.0, composed: 0.0, sums: 24.0 },
            false => Tolerance { fused: 1.0, composed: 1.0, sums: 2.0 },
        },
        flops: (count * rows * n) as u64,
        prepare: Box::new(move |place| {
            let open =
                |(m, ids): &(Input, Vec<u32>)| Ok((m.on(place)?.narrow(1, start, n)?, Tensor::from_u32(ids, place)?));
            let open = matrices.iter().map(open).collect::<Result<Vec<_>>>()?;
            let offsets = offsets.as_ref().map(|offsets| offsets.on(place)).transpose()?;
            Ok(Box::new(move || {
                let rows: Vec<_> = open.iter().map(|(m, ids)| (m, ids)).collect();
                match (combine, &offsets) {
                    (Combine::Score, Some(offsets)) => score(rows[0], rows[1], rows[2], offsets),
                    (Combine::Product, _) => product(rows[0], rows[1]),
                    (Combine::Dot, _) => dot(rows[0], rows[1]),
                    _ => relu_sum(&rows),
                }
            }))
        }),
        reference: Box::new(move || {
            let operands = columns.iter().map(|(m, ids)| (&***m, &**ids)).collect();
            let offsets = reference_offsets.as_ref().map(|offsets| &**offsets.values);
            reference::pair(&Problem { combine, operands, offsets, n })
        }),
    }
}
