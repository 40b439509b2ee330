//! Cases: one, two and three tables, widths on and off the vector size.

use super::embed;
use super::reference;
use crate::case::{Case, Input, Tolerance, ids};
use crate::{DType, Tensor};

pub(crate) fn cases() -> Vec<Case> {
    // tokens, width, rows of each table
    let shapes: [(usize, usize, &[u32]); 4] =
        [(64, 384, &[1000, 512, 2]), (7, 130, &[99, 40]), (1, 31, &[5]), (300, 768, &[500, 512, 2])];
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, dtype, *s));
    DType::FLOATS.into_iter().flat_map(case).collect()
}

fn one(seed: u64, dtype: DType, (t, n, rows): (usize, usize, &'static [u32])) -> Case {
    let table = |(i, r): (usize, &u32)| {
        let seed = 200 + seed * 10 + i as u64;
        (Input::normal(seed, &[*r as usize, n], dtype, (0.0, 1.0)), ids(seed + 5, t, *r))
    };
    let pairs: Vec<_> = rows.iter().enumerate().map(table).collect();
    let kept = pairs.clone();
    Case {
        op: "embed",
        name: format!("{t}x{n} from {} tables", rows.len()),
        dtype,
        // At most three numbers added in f32, rounded once.
        tolerance: Tolerance { fused: 1.0, composed: 1.0, sums: 2.0 },
        flops: (rows.len() * t * n) as u64,
        prepare: Box::new(move |place| {
            let open = |(table, ids): &(Input, Vec<u32>)| Ok((table.on(place)?, Tensor::from_u32(ids, place)?));
            let pairs = pairs.iter().map(open).collect::<crate::Result<Vec<_>>>()?;
            Ok(Box::new(move || embed(&pairs.iter().map(|(t, i)| (t, i)).collect::<Vec<_>>())))
        }),
        reference: Box::new(move || {
            reference::embed(&kept.iter().map(|(t, i)| (&*t.values, &**i)).collect::<Vec<_>>(), n)
        }),
    }
}
