//! The report as a table and as JSON.

use super::examine::CheckResult;
use super::{DoctorReport, Row};
use crate::commands::table;
use serde_json::{Value, json};

pub(super) fn as_table(rows: &[Row]) -> String {
    let heading =
        ["device", "op", "dtype", "rung", "cases", "worst error", "allowed", "mean", "time", "× composed", ""];
    let mut out = vec![heading.map(String::from).to_vec()];
    let error = |e: Option<f64>| e.map_or_else(String::new, |e| format!("{e:.1e}"));
    for row in rows.iter().filter(|r| !r.checks.is_empty()) {
        let worst = row.worst();
        out.push(vec![
            row.device.to_string(),
            row.op.into(),
            row.dtype.to_string(),
            row.variant.to_string(),
            row.checks.len().to_string(),
            error(worst.and_then(|f| f.worst)),
            error(worst.and_then(|f| f.allowed)),
            error(row.mean()),
            row.seconds.map_or_else(String::new, |s| format!("{:.1} µs", s * 1e6)),
            row.speed.map_or_else(String::new, |s| format!("{s:.1}")),
            if row.holds() { "holds".into() } else { "FAILED".into() },
        ]);
    }
    table(&out)
}

/// One line per failed check.
pub(super) fn failures(rows: &[Row]) -> Vec<String> {
    let line = |row: &Row, case: &str, why: &str| {
        format!("FAILED {} {} {} {} {case}: {why}", row.device, row.op, row.dtype, row.variant)
    };
    let of = |row: &Row| -> Vec<String> {
        let mut lines: Vec<String> = row.failures().map(|(case, why)| line(row, case, why)).collect();
        if row.not_run > 0 {
            lines.push(line(row, "the rest", &format!("{} cases were not run", row.not_run)));
        }
        lines
    };
    rows.iter().flat_map(of).collect()
}

pub(super) fn as_json(all: &DoctorReport) -> Value {
    let device = |d: &super::CheckedDevice| {
        json!({"device": d.info.device.to_string(), "description": d.info.description,
            "total_bytes": d.info.total_bytes, "closed": d.closed})
    };
    let withdrawn = |row: &&Row| {
        json!({"device": row.device.to_string(), "op": row.op, "dtype": row.dtype.to_string(),
            "rung": row.variant.rung.to_string()})
    };
    json!({
        "holds": all.holds(),
        "seconds": all.seconds,
        "sconce": all.build,
        "machine": all.machine,
        "devices": all.devices.iter().map(device).collect::<Vec<_>>(),
        "withdrawn": all.withdrawn().map(|row| withdrawn(&row)).collect::<Vec<_>>(),
        "rows": all.rows.iter().map(row_json).collect::<Vec<_>>(),
    })
}

fn row_json(row: &Row) -> Value {
    let failures: Vec<Value> = row.failures().map(|(case, why)| json!({"case": case, "why": why})).collect();
    let check = |(case, f): &(String, CheckResult)| {
        json!({"case": case, "worst": f.worst, "mean": f.mean, "allowed": f.allowed, "seconds": f.seconds,
            "holds": f.failure.is_none()})
    };
    json!({
        "device": row.device.to_string(), "op": row.op, "dtype": row.dtype.to_string(),
        "rung": row.variant.rung.to_string(), "isa": row.variant.isa.map(|i| i.to_string()),
        "cases": row.checks.len(), "not_taken": row.not_taken, "not_run": row.not_run,
        "worst": row.worst().and_then(|f| f.worst), "allowed": row.worst().and_then(|f| f.allowed), "mean": row.mean(),
        "seconds": row.seconds, "speed": row.speed, "holds": row.holds(), "failures": failures,
        "checks": row.checks.iter().map(check).collect::<Vec<_>>(),
    })
}
