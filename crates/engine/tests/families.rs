//! The list of families against the code, the goldens and the tests; and docs/models.md, which has
//! the list.

use sconce_engine::hub::{Files, Options};
use sconce_engine::{Checkpoint, FAMILIES, Family, LoadOptions, ModelDescription, Task, family_tasks};
use sconce_formats::gguf::ARCHITECTURES;
use sconce_models::{GLINER, Task as Head, head, model_type, model_types};
use sconce_ops::{DType, Device, Place, Rung, Weights};
use sconce_testkit::{golden, json, materialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The lines around the tables in docs/models.md.
const MARKERS: [&str; 2] =
    ["<!-- families: generated from crates/models/src/families.rs -->\n", "<!-- end of families -->"];

const BLESS: &str = "SCONCE_BLESS=1 cargo test --release -p sconce-engine --test families";

/// The `model_type` of a golden with weights.
fn kind_of(name: &str) -> Option<String> {
    let dir = golden(name);
    if !dir.join("tensors.json").exists() {
        return None;
    }
    if dir.join("gliner_config.json").exists() {
        return Some(GLINER.to_owned());
    }
    let path = dir.join("config.json");
    path.exists().then(|| model_type(&json(&path)).map(str::to_owned)).flatten()
}

/// Goldens whose weights are a formula beside a configuration of this family.
fn goldens(family: &Family) -> Vec<String> {
    let all = std::fs::read_dir(golden("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let of_family = |name: &String| kind_of(name).is_some_and(|kind| family.types.contains(&&*kind));
    let mut names: Vec<_> = all.filter(of_family).collect();
    names.sort();
    // A task's golden compares its results alone; it counts where a family has no other.
    match names.iter().all(|name| name.starts_with("task-")) {
        true => names,
        false => names.into_iter().filter(|name| !name.starts_with("task-") && !name.starts_with("st-")).collect(),
    }
}

/// The golden of the family's first `model_type` with the fewest weights.
fn smallest(family: &Family) -> String {
    let elements = |name: &String| -> u64 {
        let tensors = json(&golden(name).join("tensors.json"));
        let shapes = tensors["tensors"].as_object().unwrap().values().map(|t| t["shape"].as_array().unwrap());
        shapes.map(|dims| dims.iter().map(|n| n.as_u64().unwrap()).product::<u64>()).sum()
    };
    let is_first = |name: &String| kind_of(name).as_deref() == Some(family.types[0]);
    let first = goldens(family).into_iter().filter(is_first).min_by_key(elements);
    first.unwrap_or_else(|| panic!("no golden of {}: tools/goldens makes them", family.types[0]))
}

/// The sources of a test: a file, or the files of a folder.
fn sources(test: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let file = root.join(format!("{test}.rs"));
    let files: Vec<PathBuf> = match file.exists() {
        true => vec![file],
        false => std::fs::read_dir(root.join(test))
            .unwrap_or_else(|_| panic!("no test `{test}` in {}", root.display()))
            .map(|entry| entry.unwrap().path())
            .collect(),
    };
    files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

/// Whether a test's source names a golden, or the beginning of it before a placeholder.
fn names(source: &str, golden: &str) -> bool {
    let is_beginning = |end: usize| golden.is_char_boundary(end) && source.contains(&format!("\"{}{{", &golden[..end]));
    source.contains(&format!("\"{golden}\"")) || (5..=golden.len()).any(is_beginning)
}

#[test]
fn every_model_type_is_in_exactly_one_row() {
    for family in FAMILIES {
        assert!(!family.types.is_empty(), "{}", family.name);
    }
    let mut rows: Vec<(&str, &str)> =
        FAMILIES.iter().flat_map(|family| family.types.iter().map(|kind| (*kind, family.name))).collect();
    for kind in model_types() {
        let named: Vec<_> = rows.extract_if(.., |(row, _)| *row == kind).collect();
        assert_eq!(named.len(), 1, "`{kind}` must be in one row of FAMILIES, it is in {named:?}");
    }
    assert!(rows.is_empty(), "FAMILIES has model_types that no code implements: {rows:?}");
}

#[test]
fn ids_have_an_organisation_and_are_unique() {
    let ids: Vec<_> = FAMILIES.iter().flat_map(|family| family.models).collect();
    assert!(FAMILIES.iter().all(|family| !family.models.is_empty()));
    assert!(ids.iter().all(|id| id.split('/').filter(|part| !part.is_empty()).count() == 2));
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
}

#[test]
fn every_family_is_compared_with_goldens_by_the_test_it_names() {
    let all: String = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"))
        .unwrap()
        .filter_map(|entry| entry.unwrap().path().file_stem()?.to_str().map(str::to_owned))
        .collect::<BTreeSet<_>>()
        .iter()
        .filter(|test| *test != "families")
        .map(|test| sources(test))
        .collect();
    for family in FAMILIES {
        let (goldens, source) = (goldens(family), sources(family.test));
        assert!(
            goldens.iter().any(|name| names(&source, name)),
            "{}: no golden in --test {}",
            family.name,
            family.test
        );
        for name in goldens {
            assert!(names(&all, &name), "{}: no test compares with the golden {name}", family.name);
        }
    }
}

#[test]
fn families_name_the_gguf_architectures_that_are_read() {
    let named: BTreeSet<&str> = FAMILIES.iter().flat_map(|family| family.gguf).copied().collect();
    assert_eq!(named, BTreeSet::from(ARCHITECTURES), "Family::gguf and the architectures of sconce-formats differ");
}

/// Asks the code for every head. A head that exists may then miss its weights.
#[test]
fn families_list_the_heads_that_the_code_has() {
    for family in FAMILIES.iter().filter(|family| !family.is_dual() && !family.is_gliner()) {
        let (name, dir) = (smallest(family), materialize(&smallest(family)));
        let config: Value = json(&dir.path().join("config.json"));
        let store = Checkpoint::open(dir.path()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let weights = Weights::new(Arc::new(store), DType::F32, Place::cpu());
        for task in [Head::Classify, Head::Tag, Head::Vocabulary] {
            let is_missing =
                head(task, &config, &weights).err().is_some_and(|e| e.to_string().contains("has no head for"));
            assert_eq!(
                family.heads.contains(&task),
                !is_missing,
                "{}: {task:?} in Family::heads ({name})",
                family.name
            );
        }
    }
}

/// `sconce show` describes a model by its row.
#[test]
fn descriptions_name_the_family() {
    for family in FAMILIES {
        let dir = materialize(&smallest(family));
        let about = ModelDescription::read(&Files::local(dir.path())).unwrap();
        assert_eq!(about.family, Some(family), "{}", family.name);
        let is_listed = about.task == Task::M3 || family_tasks(family).contains(&about.task);
        assert!(is_listed, "{}: {}", family.name, about.task);
    }
}

/// The devices that run every op of a family by a kernel of ours.
fn devices(family: &Family) -> Vec<&'static str> {
    let dir = materialize(&smallest(family));
    let cache = std::env::temp_dir();
    let options = LoadOptions::new(Options::new(cache.clone(), cache)).with_batch_tokens(Some(64));
    let task = Task::detect(dir.path()).unwrap();
    let runs = |device| {
        let plan = task.plan(&Files::local(dir.path()), device, &options);
        let plan = plan.unwrap_or_else(|e| panic!("{} on {device}: {e}", family.name));
        plan.steps.iter().all(|step| step.rung == Ok(Rung::Fused))
    };
    let all = [(Device::Cpu, "CPU"), (Device::Cuda(0), "CUDA"), (Device::Metal(0), "Metal")];
    all.into_iter().filter(|(device, _)| runs(*device)).map(|(_, name)| name).collect()
}

/// The tables of docs/models.md.
fn tables() -> String {
    let code = |all: &[&str]| all.iter().map(|one| format!("`{one}`")).collect::<Vec<_>>().join(", ");
    let mut out = "| family | `model_type` | tasks | weights | devices |\n|---|---|---|---|---|\n".to_owned();
    for family in FAMILIES {
        let tasks: Vec<_> = family_tasks(family).into_iter().map(Task::name).collect();
        let gguf = if family.gguf.is_empty() { String::new() } else { format!(", GGUF ({})", code(family.gguf)) };
        let devices = devices(family).join(", ");
        out += &format!(
            "| {} | {} | {} | safetensors, torch{gguf} | {devices} |\n",
            family.name,
            code(family.types),
            tasks.join(", ")
        );
    }
    out += "\n| family | checked against | by `--test`, with | well-known models |\n|---|---|---|---|\n";
    for family in FAMILIES {
        let (test, count) = (family.test, goldens(family).len());
        let models = if count == 1 { "model" } else { "models" };
        let ids = family.models.join(", ");
        out += &format!("| {} | {} | `{test}`, {count} {models} | {ids} |\n", family.name, family.reference);
    }
    out
}

#[test]
fn the_page_of_models_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/models.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(MARKERS[0]).expect("the first marker in docs/models.md");
    let (_, after) = rest.split_once(MARKERS[1]).expect("the last marker in docs/models.md");
    let want = [before, MARKERS[0], &tables(), MARKERS[1], after].concat();
    if std::env::var_os("SCONCE_BLESS").is_some() {
        std::fs::write(&path, &want).unwrap();
    }
    let have = std::fs::read_to_string(&path).unwrap();
    assert!(have == want, "docs/models.md is out of date: run `{BLESS}`");
}
