//! Tiny models and their reference results.

use sconce_testkit::{Arrays, json, materialize};
use serde_json::Value;
use tempfile::TempDir;

/// Scores are probabilities and may differ by a few roundings.
pub(crate) const TOLERANCE: f64 = 2e-5;

pub(crate) struct Model {
    pub(crate) dir: TempDir,
    pub(crate) golden: Value,
}

impl Model {
    pub(crate) fn new(name: &str) -> Model {
        let dir = materialize(name);
        let golden = json(&dir.path().join("golden.json"));
        Model { dir, golden }
    }

    pub(crate) fn path(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }

    pub(crate) fn arrays(&self) -> Arrays {
        Arrays::open(&self.dir.path().join("golden.safetensors"))
    }
}

pub(crate) fn list(v: &Value) -> &Vec<Value> {
    v.as_array().unwrap_or_else(|| panic!("a list, not {v}"))
}

pub(crate) fn text(v: &Value) -> &str {
    v.as_str().unwrap_or_else(|| panic!("a string, not {v}"))
}

pub(crate) fn assert_close(got: &Value, want: f64) {
    let got = got.as_f64().unwrap_or_else(|| panic!("a number, not {got}"));
    assert!((got - want).abs() < TOLERANCE, "{got} is not {want}");
}

/// Checks the device, dtype, ops and source that every result reports.
pub(crate) fn assert_ran(v: &Value) {
    assert_eq!((v["device"].as_str(), v["dtype"].as_str()), (Some("cpu"), Some("f32")), "{v}");
    assert!(list(&v["ops"]).iter().all(|o| o["rung"] == "fused" && o["calls"].as_u64() > Some(0)), "{v}");
    assert!(text(&v["source"]).starts_with("directory "));
}
