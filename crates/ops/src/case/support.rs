//! Generates SUPPORT.md from the ladder: traces every case of every op as a phantom on every
//! device.

use crate::ladder::{Ladder, Policy, Rung};
use crate::{DType, Device, Place};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The table of op × device × dtype: which rung takes the calls of the op's cases.
pub fn support_md() -> String {
    let devices = [Device::Cpu, Device::Cuda(0), Device::Metal(0)];
    // (op, device, dtype) → rungs of its cases
    let mut rungs: BTreeMap<(&str, usize, DType), Vec<Option<Rung>>> = BTreeMap::new();
    for case in crate::cases() {
        for (d, device) in devices.into_iter().enumerate() {
            let ladder = Ladder::new(Policy::default());
            let (_, steps) = ladder.trace(|| (case.prepare)(&Place::phantom(device)).and_then(|call| call()));
            let chosen = steps.iter().filter(|s| s.op == case.op).map(|s| s.rung.as_ref().ok().copied());
            rungs.entry((case.op, d, case.dtype)).or_default().extend(chosen);
        }
    }
    let mut out = String::from(
        "# What runs where\n\n\
         Generated from the rungs that the ladder chooses for every case of every op (`cargo run -- doctor --support`);\n\
         a test keeps it current. *fused*: our kernel. *composed*: the formula in Candle's tensor ops, on the same\n\
         device. Where the cases of an op take different rungs, numbers in brackets count them. `sconce doctor` checks\n\
         the kernels on your machine.\n\n\
         | op | dtype | cpu | cuda | metal |\n|---|---|---|---|---|\n",
    );
    let rows: std::collections::BTreeSet<_> = rungs.keys().map(|(op, _, dtype)| (*op, *dtype)).collect();
    for (op, dtype) in rows {
        let cells: Vec<String> = (0..devices.len()).map(|d| cell(&rungs[&(op, d, dtype)])).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| {op} | {dtype} | {} |", cells.join(" | "));
    }
    out
}

fn cell(rungs: &[Option<Rung>]) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for rung in rungs {
        *counts.entry(rung.map_or_else(|| "—".into(), |r| r.to_string())).or_default() += 1;
    }
    match counts.len() {
        1 => counts.into_keys().next().unwrap_or_default(),
        _ => counts.iter().map(|(r, n)| format!("{r} ({n})")).collect::<Vec<_>>().join(", "),
    }
}
