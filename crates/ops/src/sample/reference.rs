//! The definition: everything sorted, everything in f64.

use super::SamplingParams;

/// A row's token, and its margin: the share of the total that must change before another token is
/// sampled. Rounding errors must stay below it.
pub(super) fn sample(logits: &[f32], params: &SamplingParams) -> (u32, f64) {
    if logits.iter().any(|l| !l.is_finite()) {
        return (u32::MAX, 1.0);
    }
    // + 0.0 turns -0 into 0.
    let mut order: Vec<(f64, u32)> = logits.iter().zip(0..).map(|(l, id)| (f64::from(*l) + 0.0, id)).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let best = order[0];
    if params.temperature == 0.0 {
        return (best.1, 1.0);
    }
    let mut candidates: Vec<(f64, u32)> =
        order.iter().map(|(l, id)| (((l - best.0) / f64::from(params.temperature)).exp(), *id)).collect();
    candidates.truncate(params.top_k.map_or(candidates.len(), |k| k as usize));
    candidates.retain(|(weight, _)| *weight > 0.0);
    let mut margin = 1f64;
    if params.top_p < 1.0 {
        let enough = total(&candidates) * f64::from(params.top_p);
        let mut before = 0.0;
        let end = candidates.iter().position(|(weight, _)| {
            let is_cut = before >= enough;
            // The best token is never cut.
            margin = margin.min(if before > 0.0 { (before - enough).abs() / enough.max(1.0) } else { 1.0 });
            before += weight;
            is_cut
        });
        candidates.truncate(end.unwrap_or(candidates.len()).max(1));
    }
    if params.min_p > 0.0 {
        let least = f64::from(params.min_p);
        // Tokens equal to the best have exactly its probability.
        let others = candidates.iter().filter(|(weight, _)| *weight < 1.0);
        margin = others.fold(margin, |margin, (weight, _)| margin.min((weight - least).abs()));
        candidates.retain(|(weight, id)| *weight >= least || *id == best.1);
    }
    let (sum, mut before) = (total(&candidates), 0.0);
    for (i, (weight, id)) in candidates.iter().enumerate() {
        let upto = before + weight / sum;
        if upto > params.u || i + 1 == candidates.len() {
            // The first and the last have no neighbour on one side.
            let low = if i > 0 { params.u - before } else { 1.0 };
            let high = if i + 1 < candidates.len() { upto - params.u } else { 1.0 };
            return (*id, margin.min(low).min(high));
        }
        before = upto;
    }
    (best.1, margin)
}

fn total(candidates: &[(f64, u32)]) -> f64 {
    candidates.iter().map(|(weight, _)| weight).sum()
}
