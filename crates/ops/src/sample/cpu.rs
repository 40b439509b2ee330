//! Samples one row at a time, without sorting the vocabulary.

use super::rank::Ranked;
use super::{SampleOp, SamplingParams, logit_scans};
use crate::Result;
use crate::cpu::elem::{Elem, with_elem};
use crate::cpu::rows::Reading;
use crate::tensor::host;

pub(super) fn run(op: &SampleOp) -> Result<candle_core::Tensor> {
    with_elem!("sample", op.x.dtype(), T => {
        let x = Reading::of(&op.x)?;
        let x = x.rows::<T>()?;
        let tokens = x.iter().zip(op.params.iter()).map(|(row, params)| {
            let row: Vec<f32> = row.iter().map(|x| x.wide()).collect();
            let token = if logit_scans::not_finite(&row).is_none() { sample_row(&row, params) } else { None };
            token.unwrap_or(u32::MAX)
        });
        host(tokens.collect::<Vec<u32>>(), &[x.rows])
    })
}

/// Samples a token from a row of logits without NaN and +∞. A logit of -∞ excludes its token;
/// `None` if all are excluded.
pub fn sample_row(logits: &[f32], params: &SamplingParams) -> Option<u32> {
    if params.temperature == 0.0 { logit_scans::argmax(logits) } else { draw(logits, params) }
}

/// Temperature, `top_k`, `top_p`, `min_p`, and the token at quantile `u` of the rest, best first.
/// `None` if there is none.
///
/// Best first has two uses: the few best are found without sorting the vocabulary, and on another
/// machine, whose logits differ slightly, the same `u` mostly selects the same token, because the
/// large probabilities come first.
fn draw(logits: &[f32], params: &SamplingParams) -> Option<u32> {
    let max_tokens = params.top_k.map_or(logits.len(), |k| (k as usize).min(logits.len()));
    let mut ranked = Ranked::new(logits, if max_tokens < logits.len() { max_tokens } else { 64 });
    let best = ranked.get(0)?.0;
    // Relative to the best, so that nothing overflows however small the temperature. In f32, like
    // the sum of all.
    let weight = |logit: f32| f64::from(logit_scans::exp((logit - best) / params.temperature));
    let total = if max_tokens < logits.len() {
        (0..max_tokens).map_while(|i| ranked.get(i)).map(|(logit, _)| weight(logit)).sum()
    } else if params.top_p < 1.0 || params.min_p == 0.0 {
        logit_scans::sum_exp(logits, best, params.temperature)
    } else {
        f64::INFINITY
    };
    let has_cuts = params.top_p < 1.0 || params.min_p > 0.0;
    let enough = if has_cuts { total * f64::from(params.top_p) } else { total * params.u };
    let mut candidates: Vec<(f64, u32)> = Vec::new(); // cumulative weight including this token, id
    let mut sum = 0.0;
    for i in 0..max_tokens {
        let Some((logit, id)) = ranked.get(i) else { break };
        let weight = weight(logit);
        // The best always stays; a token without weight can never be selected.
        if i > 0 && (weight == 0.0 || (has_cuts && (sum >= enough || weight < f64::from(params.min_p)))) {
            break;
        }
        sum += weight;
        candidates.push((sum, id));
        if !has_cuts && sum > enough {
            return Some(id);
        }
    }
    // Without cuts this is reached only if rounding made the total larger than the sum of its
    // parts: then it is the last.
    let at = if has_cuts { candidates.partition_point(|(upto, _)| *upto <= params.u * sum) } else { candidates.len() };
    Some(candidates[at.min(candidates.len() - 1)].1)
}
