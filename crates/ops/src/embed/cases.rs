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
        .chain(DType::FLOATS.map(tied))
        .chain(DType::FLOATS.map(|dtype| in_blocks(dtype, if dtype == DType::F32 { Quant::Q4_1 } else { Quant::Q6K })))
        .chain(
            DType::FLOATS.into_iter().flat_map(|dtype| [normed(dtype, 384), normed(dtype, 100), normed(dtype, 1024)]),
        )
        .collect()
}

/// Every block format: CUDA dequantizes each by a kernel of its own, also for products of many
/// rows.
pub(crate) fn cases_of_cuda() -> Vec<Case> {
    Quant::all().map(|quant| in_blocks(DType::F32, quant)).collect()
}

/// With a layer norm of the sum.
fn normed(dtype: DType, n: usize) -> Case {
    let (t, eps, rows) = (9, 1e-5, [50, 12, 2]);
    let seeds = [290, 291, 292].map(|seed| seed + 10 * n as u64);
    let tables = [0, 1, 2].map(|i| Input::normal(seeds[i], &[rows[i], n], dtype, (0.0, 1.0)));
    let ids = [0, 1, 2].map(|i| ids(seeds[i] + 3, t, rows[i] as u32));
    let w = Input::normal(296, &[n], dtype, (1.0, 0.3));
    let b = Input::normal(297, &[n], dtype, (0.0, 0.3));
    let reference_inputs = (tables.clone(), ids.clone(), w.clone(), b.clone());
    Case {
        op: "embed",
        name: format!("{t}x{n} from three tables, with a norm"),
        dtype,
        // One rounding, or two with two calls: that of the sum, which is as large as the spread
        // that the norm divides by.
        tolerance: Tolerance { fused: 2.0, composed: 2.0, sums: 8.0 },
        flops: (11 * t * n) as u64,
        prepare: Box::new(move |place| {
            let norm = LayerNorm::load(&weights(&[("weight", &w), ("bias", &b)], place), n, eps, true)?;
            let tables = tables.iter().map(|table| table.on(place)).collect::<Result<Vec<_>>>()?;
            let ids = ids.iter().map(|ids| Tensor::from_u32(ids, place)).collect::<Result<Vec<_>>>()?;
            Ok(Box::new(move || embed_normed(&tables.iter().zip(&ids).collect::<Vec<_>>(), &norm)))
        }),
        reference: Box::new(move || {
            let (tables, ids, w, b) = &reference_inputs;
            let pairs = [0, 1, 2].map(|i| (&**tables[i].values, &*ids[i]));
            layer_norm::reference::of_sums(&reference::embed(&pairs, n), &w.values, Some(&**b.values), eps)
        }),
    }
}

/// Tied embeddings: the matrix of a linear layer, scaled, plus positions.
fn tied(dtype: DType) -> Case {
    let (t, n, rows) = (9, 50, 70);
    let (words, positions) =
        (Input::normal(270, &[rows, n], dtype, (0.0, 1.0)), Input::normal(271, &[12, n], dtype, (0.0, 1.0)));
    let (word_ids, position_ids) = (ids(272, t, rows as u32), ids(273, t, 12));
    let reference_inputs = (words.clone(), positions.clone(), word_ids.clone(), position_ids.clone());
    Case {
        op: "embed",
        name: format!("{t}x{n} from the matrix of a product, times 3, and a table"),
        dtype,
        tolerance: Tolerance { fused: 1.0, composed: 1.0, sums: 3.0 },
        flops: (2 * t * n) as u64,
        prepare: Box::new(move |place| {
            let linear = Linear::load(&weights(&[("weight", &words)], place), n, rows, false)?;
            let (table, places) = (positions.on(place)?, Tensor::from_u32(&position_ids, place)?);
            let ids = Tensor::from_u32(&word_ids, place)?;
            Ok(Box::new(move || linear.embed(&ids, 3.0, Some((&table, &places)))))
        }),
        reference: Box::new(move || {
            let (words, positions, word_ids, position_ids) = &reference_inputs;
            let words: Vec<f32> = words.values.iter().map(|v| v * 3.0).collect();
            reference::embed(&[(&words, word_ids), (&positions.values, position_ids)], n)
        }),
    }
}

/// Tied embeddings in quantized blocks, with and without a second table.
fn in_blocks(dtype: DType, quant: Quant) -> Case {
    let (t, n, rows) = (9, 256, 30);
    let words = Input::normal(280, &[rows, n], DType::F32, (0.0, 1.0));
    let words = InBlocks::of(280, quant, [rows, n], move || words.values.to_vec());
    let (word_ids, reference_words) = (ids(281, t, rows as u32), words.clone());
    let table = (dtype != DType::BF16).then(|| Input::normal(282, &[12, n], dtype, (0.0, 1.0)));
    let (position_ids, reference_table, reference_ids) = (ids(283, t, 12), table.clone(), word_ids.clone());
    let reference_positions = position_ids.clone();
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
            let (ids, places) = (Tensor::from_u32(&word_ids, place)?, Tensor::from_u32(&position_ids, place)?);
            let table = table.as_ref().map(|table| table.on(place)).transpose()?;
            Ok(Box::new(move || linear.embed(&ids, 3.0, table.as_ref().map(|table| (table, &places)))))
        }),
        reference: Box::new(move || {
            let words: Vec<f32> = reference_words.values().iter().map(|v| v * 3.0).collect();
            match &reference_table {
                Some(table) => reference::embed(&[(&words, &reference_ids), (&table.values, &reference_positions)], n),
                None => reference::embed(&[(&words, &reference_ids)], n),
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
    let reference_inputs = pairs.clone();
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
            reference::embed(&reference_inputs.iter().map(|(t, i)| (&**t.values, &**i)).collect::<Vec<_>>(), n)
        }),
    }
}
