//! The comparison as tables and as JSON.

use super::{Comparison, Engine};
use crate::commands::table;
use serde_json::{Value, json};

/// A time of an engine in seconds.
type Time = Box<dyn Fn(&Engine) -> f64>;

/// The median; for an even number, the mean of the two in the middle.
pub(super) fn median(all: &[f64]) -> f64 {
    let mut all = all.to_vec();
    all.sort_by(f64::total_cmp);
    match all.len() {
        0 => f64::NAN,
        n => (all[(n - 1) / 2] + all[n / 2]) / 2.0,
    }
}

/// The lowest cosine similarity between vectors of the same texts.
pub(super) fn min_cosine(a: &[Vec<f32>], b: &[Vec<f32>]) -> f64 {
    let cosine = |(a, b): (&Vec<f32>, &Vec<f32>)| {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
        if a.len() == b.len() { dot(a, b) / (dot(a, a) * dot(b, b)).sqrt() } else { f64::NAN }
    };
    if a.len() != b.len() {
        return f64::NAN;
    }
    // NaN counts as lowest, so that it is not overlooked.
    a.iter().zip(b).map(cosine).fold(1.0, |least, c| if c.is_nan() || c < least { c } else { least })
}

impl Engine {
    fn median(&self, row: usize) -> f64 {
        median(&self.rounds[row])
    }

    fn is_f32(&self) -> bool {
        self.name.ends_with(" f32")
    }
}

/// For a row: our fastest engine, the fastest peer among those that `counts` admits, and the ratio
/// of their times.
fn speedup(
    comparison: &Comparison,
    time: impl Fn(&Engine) -> f64,
    counts: impl Fn(&Engine) -> bool,
) -> Option<(&Engine, &Engine, f64)> {
    let fastest = |is_ours: bool| {
        let all = comparison.engines.iter().filter(|e| e.is_ours == is_ours && counts(e) && time(e).is_finite());
        all.min_by(|a, b| time(a).total_cmp(&time(b)))
    };
    let (ours, theirs) = (fastest(true)?, fastest(false)?);
    Some((ours, theirs, time(theirs) / time(ours)))
}

fn milliseconds(seconds: f64) -> String {
    match seconds * 1e3 {
        ms if !ms.is_finite() => "-".into(),
        ms if ms < 10.0 => format!("{ms:.2} ms"),
        ms => format!("{ms:.1} ms"),
    }
}

/// One column per row, and one for the first vector.
fn columns(comparison: &Comparison) -> Vec<(String, Time)> {
    let mut columns: Vec<(String, Time)> = Vec::new();
    for (i, row) in comparison.rows.iter().enumerate() {
        columns.push((row.name.clone(), Box::new(move |engine: &Engine| engine.median(i))));
    }
    columns.push(("first vector".into(), Box::new(|engine: &Engine| median(&engine.first))));
    columns
}

pub(super) fn as_text(comparison: &Comparison) -> String {
    let columns = columns(comparison);
    let names = || columns.iter().map(|(name, _)| name.clone());
    let mut times = vec![std::iter::once("engine".to_string()).chain(names()).chain(["cosine".into()]).collect()];
    for engine in &comparison.engines {
        let cells = columns.iter().map(|(_, time)| milliseconds(time(engine)));
        let cosine = format!("{:.5}", engine.cosine);
        times.push(std::iter::once(engine.name.clone()).chain(cells).chain([cosine]).collect());
    }
    let mut ratios: Vec<Vec<String>> = vec![std::iter::once("ahead of".to_string()).chain(names()).collect()];
    for (name, is_f32) in [("the best f32 peer, in f32", true), ("the best peer, in any format", false)] {
        let cell = |(_, time): &(String, Time)| {
            let best = speedup(comparison, time, |engine| !is_f32 || engine.is_f32());
            best.map_or_else(|| "-".into(), |(_, theirs, ratio)| format!("{ratio:.2} × {}", theirs.name))
        };
        ratios.push(std::iter::once(name.to_string()).chain(columns.iter().map(cell)).collect());
    }
    let Comparison { model, threads, .. } = comparison;
    let s = if *threads == 1 { "" } else { "s" };
    let mut parts =
        vec![format!("{model}, {threads} thread{s}; medians, texts × tokens"), table(&times), table(&ratios)];
    let missing = comparison
        .missing
        .iter()
        .map(|(name, what)| format!("{name} is not installed: pip install {}", what.join(" ")));
    let failed = comparison.failed.iter().map(|(name, why)| format!("{name} failed: {why}"));
    let notes: Vec<String> = missing.chain(failed).collect();
    if !notes.is_empty() {
        parts.push(notes.join("\n"));
    }
    parts.join("\n\n")
}

pub(super) fn as_json(comparison: &Comparison) -> Value {
    let engine = |engine: &Engine| {
        let rows = comparison.rows.iter().enumerate().map(|(i, row)| {
            let seconds = engine.median(i);
            json!({"row": row.name, "texts": row.texts.len(), "tokens": row.tokens(), "median_seconds": seconds,
                "texts_per_second": row.texts.len() as f64 / seconds, "rounds": engine.rounds[i]})
        });
        json!({"engine": engine.name, "ours": engine.is_ours, "cosine": engine.cosine,
            "rows": rows.collect::<Vec<_>>(), "first_vector_seconds": median(&engine.first), "starts": engine.first})
    };
    let ratio = |(name, time): &(String, Time)| {
        let of = |is_f32: bool| {
            speedup(comparison, time, |engine| !is_f32 || engine.is_f32())
                .map(|(ours, theirs, ratio)| json!({"ours": ours.name, "peer": theirs.name, "ratio": ratio}))
        };
        json!({"row": name, "f32": of(true), "any": of(false)})
    };
    let missing = comparison
        .missing
        .iter()
        .map(|(name, what)| json!({"peer": name, "install": format!("pip install {}", what.join(" "))}));
    let failed = comparison.failed.iter().map(|(name, why)| json!({"peer": name, "why": why}));
    json!({
        "model": comparison.model,
        "threads": comparison.threads,
        "engines": comparison.engines.iter().map(engine).collect::<Vec<_>>(),
        "ratios": columns(comparison).iter().map(ratio).collect::<Vec<_>>(),
        "missing": missing.collect::<Vec<_>>(),
        "failed": failed.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_min_cosine_handle_edge_cases() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0])), (2.0, 2.5));
        assert!(median(&[]).is_nan());
        let (a, b) = (vec![vec![1.0, 0.0]], vec![vec![2.0, 0.0]]);
        assert_eq!(min_cosine(&a, &b), 1.0);
        assert_eq!(min_cosine(&[a.clone(), a.clone()].concat(), &[b, vec![vec![0.0, 1.0]]].concat()), 0.0);
        assert!(
            min_cosine(&a, &[vec![f32::NAN, 0.0]]).is_nan()
                && min_cosine(&a, &[]).is_nan()
                && min_cosine(&a, &[vec![1.0]]).is_nan()
        );
    }
}
