//! Cases: one, two and three tables, widths on and off the vector size.

use super::{embed, embed_normed, reference};
use crate::case::{Case, InBlocks, Input, Tolerance, ids, weights};
use crate::{DType, LayerNorm, Linear, Quant, Result, Tensor, layer_norm};

pub(crate) fn cases() -> Vec<Case> {
    // tokens, width, rows of each table
    let shapes: [(usize, usize, &[u32]); 4] =
        [(64, 384, &[1000, 512, 2]), (7, 130, &[99, 40]), (1, 31, &[5]), (300, 768, &[500, 512, 2])];
    let case = |dtype| shapes.iter().enumerate().map(move |(i, s)| one(i as u64, dtype, *s));
    DType::FLOATS
        .into_iter()
        .flat_map(case)
        .chain(DType::FLOATS.map(shared))
        .chain(DType::FLOATS.map(|dtype| in_blocks(dtype, if dtype == DType::F32 { Quant::Q4_1 } else { Quant::Q6K })))
        .chain(
            DType::FLOATS.into_iter().flat_map(|dtype| [normed(dtype, 384), normed(dtype, 100), normed(dtype, 1024)]),
        )
        .collect()
}

/// Every format of blocks: CUDA opens each by a kernel of its own, also for products of many rows.
pub(crate) fn cases_of_cuda() -> Vec<Case> {
    Quant::all().map(|quant| in_blocks(DType::F32, quant)).collect()
}

/// With a norm behind them.
fn normed(dtype: DType, n: usize) -> Case {
    let (t, eps, rows) = (9, 1e-5, [50, 12, 2]);
    let seeds = [290, 291, 292].map(|seed| seed + 10 * n as u64);
    let tables = [0, 1, 2].map(|i| Input::normal(seeds[i], &[rows[i], n], dtype, (0.0, 1.0)));
    let ids = [0, 1, 2].map(|i| ids(seeds[i] + 3, t, rows[i] as u32));
    let w = Input::normal(296, &[n], dtype, (1.0, 0.3));
    let b = Input::normal(297, &[n], dtype, (0.0, 0.3));
    let kept = (tables.clone(), ids.clone(), w.clone(), b.clone());
    Case {
        op: "embed",
        name: format!("{t}x{n} from three tables, with a norm"),
        dtype,
        // One rounding, or two where these are two calls: the sum's, which is as large as the spread that the norm divides by.
        tolerance: Tolerance { fused: 2.0, composed: 2.0, sums: 8.0 },
        flops: (11 * t * n) as u64,
        prepare: Box::new(move |place| {
            let norm = LayerNorm::load(&weights(&[("weight", &w), ("bias", &b)], place), n, eps, true)?;
            let tables = tables.iter().map(|table| table.on(place)).collect::<Result<Vec<_>>>()?;
            let ids = ids.iter().map(|ids| Tensor::from_u32(ids, place)).collect::<Result<Vec<_>>>()?;
            Ok(Box::new(move || embed_normed(&tables.iter().zip(&ids).collect::<Vec<_>>(), &norm)))
        }),
        reference: Box::new(move || {
            let (tables, ids, w, b) = &kept;
            let pairs = [0, 1, 2].map(|i| (&**tables[i].values, &*ids[i]));
            layer_norm::reference::of_sums(&reference::embed(&pairs, n), &w.values, Some(&**b.values), eps)
        }),
    }
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
fn in_blocks(dtype: DType, quant: Quant) -> Case {
    let (t, n, rows) = (9, 256, 30);
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
