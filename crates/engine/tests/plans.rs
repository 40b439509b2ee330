//! Plans of every family on every device, before anything is loaded; and of broken configurations.

use sconce_engine::hub::{Files, Options};
use sconce_engine::{LoadOptions, Task, supports};
use sconce_ops::{DType, Device, Rung, Withdrawn};
use sconce_testkit::{golden, json, materialize};
use serde_json::{Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

fn options() -> LoadOptions {
    let cache = std::env::temp_dir();
    LoadOptions::new(Options::new(cache.clone(), cache)).with_batch_tokens(Some(64))
}

/// Names of the goldens whose weights are a formula beside a configuration: one or more of every
/// family.
fn families() -> Vec<String> {
    let all = std::fs::read_dir(golden("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let is_model = |name: &String| {
        let dir = golden(name);
        let is_there = |file: &str| dir.join(file).exists();
        is_there("tensors.json") && (is_there("config.json") || is_there("gliner_config.json"))
    };
    let mut names: Vec<String> = all.filter(is_model).collect();
    names.sort();
    assert!(names.len() > 90, "only {} families", names.len());
    names
}

/// The tasks to plan a model for: the detected one, and sparse embeddings for a masked language
/// model.
fn tasks_of(name: &str, dir: &Path) -> Vec<Task> {
    std::iter::once(Task::detect(dir).unwrap()).chain(name.contains("mlm").then_some(Task::Sparse)).collect()
}

#[test]
fn every_op_of_every_family_is_fused_on_every_device() {
    for name in families() {
        let dir = materialize(&name);
        // A single tower cannot compare texts and images.
        let single = ["clip-text", "clip-vision", "siglip-text", "siglip-vision", "siglip-projection"];
        if single.contains(&&*name) {
            continue;
        }
        for task in tasks_of(&name, dir.path()) {
            for device in [Device::Cpu, Device::Cuda(0), Device::Metal(0)] {
                let plan = task
                    .plan(&Files::local(dir.path()), device, &options())
                    .unwrap_or_else(|e| panic!("{name} for {task}: {e}"));
                assert!(!plan.steps.is_empty() && plan.weights > 0 && plan.workspace > 0, "{name} for {task}");
                for step in &plan.steps {
                    assert_eq!(step.rung, Ok(Rung::Fused), "{name} for {task} on {device}: {}", step.op);
                }
            }
        }
    }
}

/// Captured passes have their own buffers: twice what the largest pass holds, which here is the
/// batch itself.
#[test]
fn cuda_graphs_are_included_in_the_plan() {
    let dir = materialize("task-rerank");
    let of = |device| Task::detect(dir.path()).unwrap().plan(&Files::local(dir.path()), device, &options()).unwrap();
    let (cpu, cuda) = (of(Device::Cpu), of(Device::Cuda(0)));
    assert!(cpu.graph_bytes == 0 && cuda.graph_bytes > 0);
    assert_eq!(cuda.graph_bytes, 2 * (cuda.workspace - cuda.graph_bytes));
    // A sequence-to-sequence model captures its decoding steps, which take less than encoding.
    let dir = materialize("t5-seq2seq");
    let of = |device| Task::Seq2Seq.plan(&Files::local(dir.path()), device, &options()).unwrap();
    let (cpu, cuda) = (of(Device::Cpu), of(Device::Cuda(0)));
    assert!(cpu.graph_bytes == 0 && cuda.graph_bytes > 0);
    assert!(cuda.graph_bytes <= 2 * (cuda.workspace - cuda.graph_bytes));
}

#[test]
fn supports_reports_the_refusals_of_the_plan() {
    let dir = materialize("task-rerank");
    let cpu = supports(Device::Cpu, &Files::local(dir.path()), &options()).unwrap();
    assert!(cpu.is_full() && cpu.task == Task::Rerank && cpu.refusals.is_empty());
    let mut fused = options();
    fused.policy.force = Some(Rung::Fused);
    let attention = Withdrawn { op: "attention".into(), kind: "cuda".into(), dtype: DType::F16, rung: Rung::Fused };
    fused.policy.withdrawn = vec![attention];
    let cuda = supports(Device::Cuda(7), &Files::local(dir.path()), &fused).unwrap();
    assert!(!cuda.is_full() && cuda.refusals.iter().any(|r| r.contains("is withdrawn")), "{:?}", cuda.refusals);
}

/// Writes `config` beside the weights in `dir` and plans; anything except a panic or a long wait is
/// fine.
fn assert_survives(dir: &Path, config: &Value, what: &str) {
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let start = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        for task in [Task::Embed, Task::Classify, Task::Clip] {
            let _ = task.plan(&Files::local(dir), Device::Cpu, &options());
        }
    }));
    assert!(outcome.is_ok(), "{what}: panicked");
    assert!(start.elapsed() < Duration::from_secs(20), "{what}: took {:?}", start.elapsed());
}

fn fields(value: &Value, path: &str, out: &mut Vec<String>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}/{key}");
        if value.is_object() {
            fields(value, &path, out);
        }
        out.push(path);
    }
}

#[test]
fn no_field_of_any_configuration_crashes_or_hangs_planning() {
    let tiny: Vec<String> = families()
        .into_iter()
        .filter(|n| {
            !n.starts_with("task-")
                && ["tiny", "conv", "relu", "code-tiny", "new-tiny"].iter().any(|end| n.ends_with(end))
        })
        .collect();
    assert!(tiny.len() >= 15, "{tiny:?}");
    let broken = [
        json!(0),
        json!(1),
        json!(7),
        json!(-1),
        json!(1u64 << 40),
        json!(u64::MAX),
        json!(1e30),
        json!("x"),
        json!([]),
        Value::Null,
    ];
    for name in tiny {
        let dir = materialize(&name);
        let config = json(&golden(&name).join("config.json"));
        let mut paths = Vec::new();
        fields(&config, "", &mut paths);
        for path in paths {
            for value in &broken {
                let mut config = config.clone();
                *config.pointer_mut(&path).unwrap() = value.clone();
                assert_survives(dir.path(), &config, &format!("{name}: {path} = {value}"));
            }
        }
    }
}
