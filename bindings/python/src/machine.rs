//! Devices, plans and threads.

use crate::call::{call_with_progress, detached, parse};
use crate::error::OrRaise;
use crate::fork;
use crate::options::Options;
use pyo3::prelude::*;
use sconce_engine::{Device, DeviceChoice, Step, Task, hub};
use serde_json::{Value, json};

/// The version of the engine.
#[pyfunction]
pub(crate) fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The devices that models can run on here, a JSON list.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> PyResult<String> {
    fork::check(py, DeviceChoice::Auto)?;
    let (all, best) = detached(py, || Ok((Device::all(), Device::best().0)))?;
    all.iter().for_each(|info| fork::opened(info.device));
    let entry = |info: &sconce_engine::DeviceInfo| {
        json!({"device": info.device.to_string(), "description": info.description, "free_bytes": info.free_bytes,
            "total_bytes": info.total_bytes, "best": info.device == best})
    };
    Ok(Value::Array(all.iter().map(entry).collect()).to_string())
}

/// Models with a short name: a JSON list of names and repositories on the hub.
#[pyfunction]
pub(crate) fn short_names() -> String {
    let entry = |short: &hub::ShortName| json!({"name": short.name, "repo": short.repo});
    Value::Array(hub::SHORT_NAMES.iter().map(entry).collect()).to_string()
}

/// What runs where, before anything is loaded: a JSON object.
#[pyfunction]
pub(crate) fn plan(
    py: Python<'_>,
    task: Option<String>,
    name: String,
    options: String,
    on_progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<String> {
    let options: Options = parse(&options).or_raise(py)?;
    let (reference, options) = (options.reference(&name).or_raise(py)?, options.load_options().or_raise(py)?);
    fork::check(py, options.device)?;
    call_with_progress(py, on_progress, move |caller| {
        let files = hub::resolve(&reference, &options.hub_options(), caller)?;
        let task: Task = task.map_or_else(|| Task::detect(files.root()), |task| task.parse())?;
        let device = options.device.candidates(false).0[0];
        fork::tried(options.device);
        let plan = task.plan(&files, device, &options)?;
        let verdict = match device.info() {
            Ok(info) => plan.check(info.free_bytes).map_err(|e| e.to_string()),
            Err(e) => Err(e.to_string()),
        };
        let step = |s: &Step| {
            json!({"op": s.op, "at": s.at, "what": s.detail, "dtype": s.dtype.to_string(),
                "rung": s.rung.as_ref().ok().map(ToString::to_string), "why_not": s.why_not})
        };
        let plan = json!({
            "task": task.to_string(), "device": device.to_string(), "dtype": plan.format(),
            "dtype_reason": plan.dtype_reason, "weights_bytes": plan.weights, "cache_bytes": plan.cache,
            "cache_tokens": plan.cache_tokens, "workspace_bytes": plan.workspace, "batch_tokens": plan.batch_tokens,
            "max_tokens": plan.max_tokens, "dimension": plan.dimension, "runs": verdict.is_ok(),
            "why_not": verdict.err(), "steps": plan.steps.iter().map(step).collect::<Vec<_>>(),
        });
        Ok(plan.to_string())
    })
}

/// Fixes the number of CPU threads, before the first op.
#[pyfunction]
pub(crate) fn set_threads(py: Python<'_>, count: usize) -> PyResult<()> {
    detached(py, || Ok(sconce_engine::set_threads(Some(count), false)?))
}
