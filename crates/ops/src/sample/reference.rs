//! By the book: everything sorted, everything in f64.

use super::SamplingParams;

/// A row's token, and what part of the whole has to change before it is another: nothing that rounds may come near that.
pub(super) fn sample(logits: &[f32], how: &SamplingParams) -> (u32, f64) {
    if logits.iter().any(|l| !l.is_finite()) {
        return (u32::MAX, 1.0);
    }
    // + 0.0 makes one of the two zeros.
    let mut order: Vec<(f64, u32)> = logits.iter().zip(0..).map(|(l, id)| (f64::from(*l) + 0.0, id)).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let best = order[0];
    if how.temperature == 0.0 {
        return (best.1, 1.0);
    }
    let mut kept: Vec<(f64, u32)> =
        order.iter().map(|(l, id)| (((l - best.0) / f64::from(how.temperature)).exp(), *id)).collect();
    kept.truncate(how.top_k.map_or(kept.len(), |k| k as usize));
    kept.retain(|(weight, _)| *weight > 0.0);
    let mut margin = 1f64;
    if how.top_p < 1.0 {
        let enough = total(&kept) * f64::from(how.top_p);
        let mut before = 0.0;
        let end = kept.iter().position(|(weight, _)| {
            let stops = before >= enough;
            // Nothing comes before the best.
            margin = margin.min(if before > 0.0 { (before - enough).abs() / enough.max(1.0) } else { 1.0 });
            before += weight;
            stops
        });
        kept.truncate(end.unwrap_or(kept.len()).max(1));
    }
    if how.min_p > 0.0 {
        let least = f64::from(how.min_p);
        // Those like the best have exactly as much as it has.
        let others = kept.iter().filter(|(weight, _)| *weight < 1.0);
        margin = others.fold(margin, |margin, (weight, _)| margin.min((weight - least).abs()));
        kept.retain(|(weight, id)| *weight >= least || *id == best.1);
    }
    let (whole, mut before) = (total(&kept), 0.0);
    for (i, (weight, id)) in kept.iter().enumerate() {
        let upto = before + weight / whole;
        if upto > how.u || i + 1 == kept.len() {
            // The first and the last have no neighbour on one side.
            let low = if i > 0 { how.u - before } else { 1.0 };
            let high = if i + 1 < kept.len() { upto - how.u } else { 1.0 };
            return (*id, margin.min(low).min(high));
        }
        before = upto;
    }
    (best.1, margin)
}

fn total(kept: &[(f64, u32)]) -> f64 {
    kept.iter().map(|(weight, _)| weight).sum()
}
