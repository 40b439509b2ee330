//! The commands, one file each.

#[cfg(feature = "index")]
pub(crate) mod ask;
pub(crate) mod batch;
pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod classify;
pub(crate) mod clip;
pub(crate) mod devices;
pub(crate) mod doctor;
pub(crate) mod embed;
pub(crate) mod generate;
#[cfg(feature = "index")]
pub(crate) mod index;
pub(crate) mod list;
pub(crate) mod manual;
#[cfg(feature = "index")]
pub(crate) mod mcp;
#[cfg(feature = "index")]
pub(crate) mod parse_files;
pub(crate) mod plan;
pub(crate) mod pool;
pub(crate) mod pull;
pub(crate) mod rerank;
pub(crate) mod rm;
#[cfg(feature = "index")]
pub(crate) mod search;
pub(crate) mod serve;
pub(crate) mod shards;
pub(crate) mod show;
pub(crate) mod similarity;
pub(crate) mod tag;
pub(crate) mod worker;
pub(crate) mod worker_names;

use sconce_engine::{Loaded, OpCalls};
use sconce_ops::Rung;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;

/// Bytes for a person.
fn bytes(n: u64) -> String {
    indicatif::BinaryBytes(n).to_string()
}

/// Prints text and a newline. Unlike `println!` it does not panic when the reader has gone.
fn print(text: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{text}")
}

/// The object `about`, extended with what ran.
pub(crate) fn with_run_info(mut about: Value, model: &dyn Loaded) -> Value {
    if let (Value::Object(about), Value::Object(run_info)) = (&mut about, run_info(model)) {
        about.extend(run_info);
    }
    about
}

/// What ran, for scripts.
fn run_info(model: &dyn Loaded) -> Value {
    let count =
        |c: OpCalls| json!({"op": c.op, "device": c.device, "dtype": c.dtype, "rung": c.rung, "calls": c.calls});
    let graph = model.plan().graph.as_ref();
    json!({
        "device": model.plan().runs_on(),
        "engine": graph.map_or_else(|| "native".into(), |graph| graph.engine()),
        "dtype": model.plan().format(),
        "source": model.files().origin.to_string(),
        "ops": model.op_calls().into_iter().map(count).collect::<Vec<_>>(),
    })
}

/// What ran, for a person: `cpu, f32: 46 op calls, all fused`.
pub(crate) fn run_line(model: &dyn Loaded) -> String {
    let counts = model.counts();
    let total: u64 = counts.iter().map(|(_, n)| n).sum();
    let of = |rung: Rung| counts.iter().filter(|(c, _)| c.rung == rung).map(|(_, n)| n).sum::<u64>();
    let parts: Vec<String> = Rung::ALL.into_iter().filter(|r| of(*r) > 0).map(|r| format!("{} {r}", of(r))).collect();
    let rungs = if let [rung] = &parts[..] {
        format!("all {}", rung.split(' ').next_back().unwrap_or_default())
    } else {
        parts.join(", ")
    };
    let plan = model.plan();
    let ours = format!("{}, {} ({}): {total} op calls, {rungs}", plan.device, plan.format(), plan.dtype_reason);
    let Some(graph) = &plan.graph else { return ours };
    let on = |provider: &str| graph.nodes().filter(|n| n.provider == provider).map(|n| n.nodes).sum::<u64>();
    let providers: BTreeSet<&str> = graph.nodes().map(|node| node.provider.as_str()).collect();
    let nodes: Vec<_> = providers.iter().map(|provider| format!("{} nodes on {provider}", on(provider))).collect();
    format!("{}: {} calls of {}; after it {ours}", graph.engine(), graph.calls(), nodes.join(", "))
}

/// Aligns columns; the first row is the heading.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, w)| format!("{cell:<w$}")).collect();
        cells.join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}
