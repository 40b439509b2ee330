//! Cases: greedy and random sampling, every cut alone and with the others, equal logits,
//! vocabularies of one token and of more than the kernels read at once, rows with different
//! parameters, and rows with logits that are not finite. An id is right or wrong, without a
//! tolerance, so no `u` is close enough to a boundary for rounding to change the token.

use super::{SamplingParams, reference, sample};
use crate::DType;
use crate::case::{Case, Input, Tolerance, ids};

const PLAIN: SamplingParams = SamplingParams { temperature: 1.0, u: 0.5, ..SamplingParams::GREEDY };

pub(crate) fn cases() -> Vec<Case> {
    DType::FLOATS.into_iter().flat_map(of).map(case).collect()
}

/// A case's logits, in a wider tensor with `start` columns before them and a few after, and their
/// sampling parameters.
struct Rows {
    name: String,
    x: Input,
    start: usize,
    n: usize,
    params: Vec<SamplingParams>,
}

fn of(dtype: DType) -> Vec<Rows> {
    let at =
        |params: SamplingParams, us: &[f64]| us.iter().map(|u| SamplingParams { u: *u, ..params }).collect::<Vec<_>>();
    let whole = |name: &str, n: usize, values: Vec<f32>, params: Vec<SamplingParams>| {
        let x = Input::new(&[params.len(), n], dtype, move || values);
        Rows { name: format!("{name} of {n}"), x, start: 0, n, params }
    };
    // Within wider rows, so that rows have any alignment.
    let normal = |name: &str, n: usize, spread: f32, params: Vec<SamplingParams>| {
        let x = Input::normal(n as u64 + 1100, &[params.len(), n + 7], dtype, (1.0, spread));
        Rows { name: format!("{name} of {n}"), x, start: 3, n, params }
    };
    // Few distinct values, which every format represents.
    let distinct = |n: usize, rows: usize, values: u32| -> Vec<f32> {
        ids(n as u64, n * rows, values).into_iter().map(|v| v as f32 * 0.5 - 2.0).collect()
    };
    let us = [0.0, 0.02, 0.3, 0.62, 0.9, 0.97, 1.0 - f64::EPSILON];
    let mut all = vec![
        normal("the largest", 1000, 2.0, vec![SamplingParams::GREEDY; 3]),
        normal("the largest", 4099, 2.0, vec![SamplingParams::GREEDY]),
        normal("the largest", 5, 1.0, vec![SamplingParams::GREEDY]),
        whole("the first of the largest", 301, distinct(301, 4, 5), vec![SamplingParams::GREEDY; 4]),
        whole(
            "two zeros",
            3,
            vec![-1.0, -0.0, 0.0, -1.0, 0.0, -0.0],
            vec![SamplingParams::GREEDY, SamplingParams { u: 0.1, ..PLAIN }],
        ),
        whole("below zero", 5, [-3.0, -1.0, -2.0, -1.0, -4.0].repeat(2), vec![SamplingParams::GREEDY, PLAIN]),
        normal("one", 1, 1.0, at(PLAIN, &[0.0, 0.9])),
        normal("any", 7, 0.5, at(PLAIN, &us)),
        normal("any", 333, 2.0, at(PLAIN, &us[..6])),
        normal("any, hot", 333, 2.0, at(SamplingParams { temperature: 4.0, ..PLAIN }, &us[..6])),
        normal("any, cold", 333, 1.0, at(SamplingParams { temperature: 0.25, ..PLAIN }, &us[..5])),
        normal("any, so cold that it is the best", 40, 2.0, at(SamplingParams { temperature: 1e-42, ..PLAIN }, &us)),
        normal("top_k", 333, 2.0, at(SamplingParams { top_k: Some(7), ..PLAIN }, &us)),
        normal("top_k 1", 333, 2.0, at(SamplingParams { top_k: Some(1), ..PLAIN }, &us[2..4])),
        normal("top_k of more than there are", 33, 1.0, at(SamplingParams { top_k: Some(99), ..PLAIN }, &us[..5])),
        normal("top_p", 333, 2.0, at(SamplingParams { top_p: 0.7, ..PLAIN }, &us[..6])),
        normal("top_p 0", 333, 2.0, at(SamplingParams { top_p: 0.0, ..PLAIN }, &us[5..])),
        normal("min_p", 333, 2.0, at(SamplingParams { min_p: 0.07, ..PLAIN }, &us)),
        normal("min_p 1", 333, 2.0, at(SamplingParams { min_p: 1.0, ..PLAIN }, &us[5..])),
        whole("equals and top_k", 301, distinct(301, 5, 5), at(SamplingParams { top_k: Some(41), ..PLAIN }, &us[..5])),
        whole("equals and top_p", 301, distinct(301, 5, 5), at(SamplingParams { top_p: 0.45, ..PLAIN }, &us[..5])),
        // The kernel's 1024 threads read 2045 tokens first: the last `u` selects the last of these.
        whole("all equal", 4099, vec![0.5; 4099 * 5], at(PLAIN, &[0.0, 0.4, 0.8, 0.9999, 2044.5 / 4099.0])),
        whole(
            "all equal, top_k",
            4099,
            vec![-3.0; 4099 * 2],
            at(SamplingParams { top_k: Some(3001), ..PLAIN }, &us[3..5]),
        ),
        whole("all equal, top_k", 4099, vec![1.0; 4099], at(SamplingParams { top_k: Some(2045), ..PLAIN }, &[0.9999])),
        normal("many", 4099, 0.25, at(PLAIN, &[0.1, 0.6, 0.98])),
        normal("many and top_p", 4099, 0.25, at(SamplingParams { top_p: 0.8, ..PLAIN }, &[0.1, 0.97])),
        normal("many and min_p", 4099, 0.25, at(SamplingParams { min_p: 0.3, ..PLAIN }, &[0.1, 0.97])),
    ];
    // The largest logits belong to few threads, which find more of them than the window holds.
    let crowded = (0..2 * 8200).map(|i| if i % 8200 % 4096 < 1200 { 2.0 } else { 1.0 }).collect();
    all.push(whole("crowded", 8200, crowded, at(PLAIN, &[0.3, 0.8])));
    let all_cuts = SamplingParams { temperature: 0.8, top_k: Some(20), top_p: 0.9, min_p: 0.02, u: 0.7 };
    let various = vec![
        all_cuts,
        SamplingParams::GREEDY,
        SamplingParams { u: 0.05, ..all_cuts },
        SamplingParams { top_k: None, ..all_cuts },
        SamplingParams { top_p: 1.0, u: 0.9, ..all_cuts },
        SamplingParams { min_p: 0.0, u: 0.95, ..all_cuts },
        PLAIN,
    ];
    all.push(normal("different rows", 515, 2.0, various.clone()));
    all.push(normal("different rows", 4099, 2.0, various));
    // With any parameters, and wherever the logit that is not finite is.
    let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0];
    let values = (0..4 * 130).map(|i| if i % 130 == 129 { bad[i / 130] } else { (i % 7) as f32 });
    let params = vec![SamplingParams::GREEDY, all_cuts, PLAIN, SamplingParams { u: 0.1, ..PLAIN }];
    all.push(whole("no numbers", 130, values.collect(), params));
    all
}

fn case(rows: Rows) -> Case {
    let Rows { name, x, start, n, params } = rows;
    let (logits, reference_params) = (x.columns(start, n), params.clone());
    Case {
        op: "sample",
        name: format!("{name}, {} rows", params.len()),
        dtype: x.dtype,
        tolerance: Tolerance { fused: 0.0, composed: 0.0, sums: 0.0 },
        flops: 10 * (params.len() * n) as u64,
        prepare: Box::new(move |place| {
            let (x, params) = (x.on(place)?.narrow(1, start, n)?, params.clone());
            Ok(Box::new(move || sample(&x, &params)))
        }),
        reference: Box::new(move || {
            // As f32, as the host reads the result.
            let token = |(row, params)| f64::from(reference::sample(row, params).0 as f32);
            logits.chunks(n).zip(&reference_params).map(token).collect()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// f32 adds up a few thousand probabilities with an error of a few units in their seventh
    /// digit.
    #[test]
    fn no_case_depends_on_rounding() {
        for Rows { name, x, start, n, params } in DType::FLOATS.into_iter().flat_map(of) {
            for (row, params) in x.values.chunks(x.dims[1]).zip(&params) {
                let (token, margin) = reference::sample(&row[start..][..n], params);
                assert!(margin > 5e-6, "{name} in {}: {token} by {margin:e}, {params:?}", x.dtype);
            }
        }
    }
}
