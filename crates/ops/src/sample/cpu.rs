//! A row at a time, without sorting the vocabulary.

use super::rank::Ranked;
use super::{SampleOp, SamplingParams, maths};
use crate::Result;
use crate::cpu::elem::{Elem, with_elem};
use crate::cpu::rows::Reading;
use crate::tensor::host;

pub(super) fn run(op: &SampleOp) -> Result<candle_core::Tensor> {
    with_elem!("sample", op.x.dtype(), T => {
        let x = Reading::of(&op.x)?;
        let x = x.rows::<T>()?;
        let chosen = x.iter().zip(op.how.iter()).map(|(row, how)| {
            let row: Vec<f32> = row.iter().map(|x| x.wide()).collect();
            let select_rows = if maths::not_finite(&row).is_none() { sample_row(&row, how) } else { None };
            select_rows.unwrap_or(u32::MAX)
        });
        host(chosen.collect::<Vec<u32>>(), &[x.rows])
    })
}

/// The token of a row on the host, without NaN and +∞. Those of logit -∞ are out of the question; `None` if all are.
pub fn sample_row(logits: &[f32], how: &SamplingParams) -> Option<u32> {
    if how.temperature == 0.0 { maths::argmax(logits) } else { draw(logits, how) }
}

/// Temperature, `top_k`, `top_p`, `min_p`, and the token at `u` of the whole of the rest, best first. `None` if there is none.
///
/// Best first has two uses: the few best are found without sorting the vocabulary, and on another machine, whose logits are
/// a little different, the same `u` mostly meets the same token, as the large shares come first.
fn draw(logits: &[f32], how: &SamplingParams) -> Option<u32> {
    let most = how.top_k.map_or(logits.len(), |k| (k as usize).min(logits.len()));
    let mut ranked = Ranked::new(logits, if most < logits.len() { most } else { 64 });
    let best = ranked.get(0)?.0;
    // Relative to the best, so that nothing overflows however small the temperature. f32, as the sum of all is.
    let weight = |logit: f32| f64::from(maths::exp((logit - best) / how.temperature));
    let whole = if most < logits.len() {
        (0..most).map_while(|i| ranked.get(i)).map(|(logit, _)| weight(logit)).sum()
    } else if how.top_p < 1.0 || how.min_p == 0.0 {
        maths::sum_exp(logits, best, how.temperature)
    } else {
        f64::INFINITY
    };
    let cuts = how.top_p < 1.0 || how.min_p > 0.0;
    let enough = if cuts { whole * f64::from(how.top_p) } else { whole * how.u };
    let mut kept: Vec<(f64, u32)> = Vec::new(); // sum of weights up to and with it, id
    let mut sum = 0.0;
    for i in 0..most {
        let Some((logit, id)) = ranked.get(i) else { break };
        let weight = weight(logit);
        // The best always stays; one without weight could never be met.
        if i > 0 && (weight == 0.0 || (cuts && (sum >= enough || weight < f64::from(how.min_p)))) {
            break;
        }
        sum += weight;
        kept.push((sum, id));
        if !cuts && sum > enough {
            return Some(id);
        }
    }
    // Without cuts we come here only if rounding made the whole larger than its parts: then it is the last.
    let at = if cuts { kept.partition_point(|(upto, _)| *upto <= how.u * sum) } else { kept.len() };
    Some(kept[at.min(kept.len() - 1)].1)
}
