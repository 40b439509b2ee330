//! Cases: one, two and three tables, widths on and off the vector size.

use super::embed;
use super::reference;
use crate::case::{Case, InBlocks, Input, Tolerance, ids, weights};
use crate::{DType, Linear, Quant, Tensor};

pub(crate) fn cases() -> Vec<Case> {
    // tokens, width, rows of each table
    let shapes: [(usize, usize, &[u32]); 4] =
        [(64, 384, &[1000, 512, 2]), (7, 130, &[99, 40]), (1, 31, &[5]), (300, 768, &[500, 512, 2])];
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, dtype, *s));
    DType::FLOATS
        .into_iter()
        .flat_map(case)
        .chain(DType::FLOATS.map(shared))
        .chain(DType::FLOATS.map(in_blocks))
        .collect()
}

/// Words that are the matrix of a product too, scaled, with positions beside them.
fn shared(dtype: DType) -> Case {
    let (t, n, rows) = (9, 50, 70);
    let (words, positions) =
        (Input::normal(270, &[rows, n], dtype, (0.0, 1.0)), Input::normal(271, &[12, n], dtype, (0.0, 1.0)));
    let (of_words, of_positions) = (ids(272, t, rows as u32), ids(273, t, 12));
    let kept = (words.clone(), positions.clone(), of_words.clone(), of_positions.clone());
    Case {
        op: "embed",
        name: format!("{t}x{n} from the matrix of a product, times 3, and a table"),
        dtype,
        tolerance: Tolerance { fused: 1.0, composed: 1.0, sums: 3.0 },
        flops: (2 * t * n) as u64,
        prepare: Box::new(move |place| {
            let linear = Linear::load(&weights(&[("weight", &words)], place), n, rows, false)?;
            let (table, places) = (positions.on(place)?, Tensor::from_u32(&of_positions, place)?);
            let ids = Tensor::from_u32(&of_words, place)?;
            Ok(Box::new(move || linear.embed(&ids, 3.0, Some((&table, &places)))))
        }),
        reference: Box::new(move || {
            let (words, positions, of_words, of_positions) = &kept;
            let words: Vec<f32> = words.values.iter().map(|v| v * 3.0).collect();
            reference::embed(&[(&words, of_words), (&positions.values, of_positions)], n)
        }),
    }
}

/// The same in blocks, of which rows are looked up, without a table and then with one.
fn in_blocks(dtype: DType) -> Case {
    let (t, n, rows) = (9, 256, 30);
    let quant = if dtype == DType::F32 { Quant::Q4_1 } else { Quant::Q6K };
    let words = Input::normal(280, &[rows, n], DType::F32, (0.0, 1.0));
    let words = InBlocks::of(280, quant, [rows, n], move || words.values.to_vec());
    let (of_words, known) = (ids(281, t, rows as u32), words.clone());
    let table = (dtype != DType::BF16).then(|| Input::normal(282, &[12, n], dtype, (0.0, 1.0)));
    let (places, added, kept) = (ids(283, t, 12), table.clone(), of_words.clone());
    let positions = places.clone();
    Case {
        op: "embed",
        name: format!(
            "{t}x{n} from the matrix of a product in {quant}, times 3{}",
            table.as_ref().map_or("", |_| ", and a table")
        ),
        dtype,
        // Composed forms round the row to T first.
        tolerance: Tolerance { fused: 1.0, composed: 2.0, sums: 4.0 },
        flops: (2 * t * n) as u64,
        prepare: Box::new(move |place| {
            let linear = Linear::load(&words.weights(dtype, place), n, rows, false)?;
            let (ids, places) = (Tensor::from_u32(&of_words, place)?, Tensor::from_u32(&places, place)?);
            let table = table.as_ref().map(|table| table.on(place)).transpose()?;
            Ok(Box::new(move || linear.embed(&ids, 3.0, table.as_ref().map(|table| (table, &places)))))
        }),
        reference: Box::new(move || {
            let words: Vec<f32> = known.values().iter().map(|v| v * 3.0).collect();
            match &added {
                Some(table) => reference::embed(&[(&words, &kept), (&table.values, &positions)], n),
                None => reference::embed(&[(&words, &kept)], n),
            }
        }),
    }
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
            reference::embed(&kept.iter().map(|(t, i)| (&**t.values, &**i)).collect::<Vec<_>>(), n)
        }),
    }
}
