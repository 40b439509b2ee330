//! Selects the files that a model needs, and checks that a directory has them.
//!
//! Repositories often hold the same weights four times (safetensors, torch checkpoint, ONNX,
//! TensorFlow), so files are selected by name before anything is downloaded: those that the loader
//! reads, once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::HubError;
use super::OnnxFiles;
use super::error::disk;
use super::modules::{Module, ROUTER, Role, in_dir, modules, read_json};

/// Names and extensions of weights, in the order in which the loader looks for them. The second is
/// a torch checkpoint, which is parsed without running it.
const WEIGHTS: [(&str, &str); 2] = [("model", ".safetensors"), ("pytorch_model", ".bin")];

/// ONNX models, which have weights and graph in one file: the places where the `onnx` crate looks.
const GRAPHS: [&str; 2] = ["model.onnx", "onnx/model.onnx"];

/// The towers of a model for texts and images, where they are in files of their own.
const TOWERS: [&str; 2] = ["text_model", "vision_model"];

/// Suffix of the index of sharded weights.
const INDEX: &str = ".index.json";

/// Other pickles, which are not supported.
const PICKLES: [&str; 4] = [".ckpt", ".pkl", ".pth", ".pt"];

/// The projections that bge-m3 stores next to its encoder's weights, as `.pt` or `.safetensors`.
const PROJECTIONS: [&str; 2] = ["sparse_linear", "colbert_linear"];

/// Folder of the named chat templates of a repository, besides the default one.
const TEMPLATES: &str = "additional_chat_templates";

/// The files to fetch among `names`, all files of a repository. The shards that an index lists come
/// on top, see [`shards`].
pub(super) fn select<'a>(names: &'a [String], modules: &[Module], onnx: &OnnxFiles) -> Vec<&'a str> {
    let mut selected = beside_weights(names, "");
    for module in modules {
        let weights = weights(names, &module.path);
        match onnx {
            OnnxFiles::InPlaceOfWeights(file) if module.role() == Role::Encoder => {
                selected.extend(graph(names, &module.path, file.as_deref()));
            }
            OnnxFiles::WithoutWeights if module.role() == Role::Encoder && weights.is_none() => {
                selected.extend(graph(names, &module.path, None));
            }
            _ => selected.extend(weights),
        }
        if module.is_model() {
            selected.extend(beside_weights(names, &module.path));
        }
        let config = module.file("config.json");
        selected.extend(names.iter().map(String::as_str).filter(|name| *name == config));
    }
    selected.sort_unstable();
    selected.dedup();
    selected
}

/// Files of an encoder in `folder` other than its weights.
fn beside_weights<'a>(names: &'a [String], folder: &str) -> Vec<&'a str> {
    let here = in_folder(names, folder);
    let has = |base: &str| here.iter().any(|(_, there)| *there == base);
    let has_text = has("tokenizer.json") || has("vocab.json") && has("merges.txt");
    let is_selected = |base: &str| match base.rsplit_once('.') {
        // DeBERTa's first vocabulary is pickled; most of its models also have it as text.
        _ if base == "bpe_encoder.bin" => !has_text,
        Some((stem, "safetensors")) => PROJECTIONS.contains(&stem),
        Some((stem, "pt")) => PROJECTIONS.contains(&stem) && !has(&format!("{stem}.safetensors")),
        _ => is_text_file(base),
    };
    let templates =
        in_folder(names, &in_dir(folder, TEMPLATES)).into_iter().filter(|(_, base)| base.ends_with(".jinja"));
    let here = here.iter().copied().filter(|(_, base)| is_selected(base));
    here.chain(templates).map(|(name, _)| name).collect()
}

/// The files of a repository that a tokenizer may need: small ones at the top.
pub(super) fn text_files(names: &[String]) -> Vec<&str> {
    in_folder(names, "").into_iter().filter(|(_, base)| is_text_file(base)).map(|(name, _)| name).collect()
}

/// Checks that a folder has a tokenizer.
pub(super) fn check_tokenizer(dir: &Path) -> Result<(), HubError> {
    let names = list_folder(dir, "")?;
    let vocabularies = [
        "tokenizer.json",
        "vocab.txt",
        "vocab.json",
        "spm.model",
        "spiece.model",
        "sentencepiece.bpe.model",
        "tokenizer.model",
        "bpe_encoder.bin",
    ];
    match names.iter().any(|name| vocabularies.contains(&name.as_str())) {
        true => Ok(()),
        false => {
            let why = format!("no tokenizer in it, only {}", summarize(&names));
            Err(HubError::BadFile { file: dir.to_owned(), why })
        }
    }
}

fn is_text_file(base: &str) -> bool {
    const EXACT: [&str; 20] = [
        "config.json",
        ROUTER,
        "gliner_config.json",
        "config_sentence_transformers.json",
        "modules.json",
        "generation_config.json",
        "preprocessor_config.json",
        "processor_config.json",
        "artifact.metadata",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.txt",
        "vocab.json",
        "merges.txt",
        "spm.model",
        "spiece.model",
        "sentencepiece.bpe.model",
        "tokenizer.model",
        "chat_template.jinja",
        "chat_template.json",
    ];
    let shaped = |start: &str, end: &str| base.starts_with(start) && base.ends_with(end);
    EXACT.contains(&base) || shaped("tokenizer", ".json") || shaped("sentence_", "_config.json")
}

/// The weights in `folder`: one file, else the index of sharded weights; safetensors, else torch.
/// So `consolidated.safetensors`, a second copy in some repositories, is not fetched.
fn weights<'a>(names: &'a [String], folder: &str) -> Option<&'a str> {
    let here = in_folder(names, folder);
    let find = |name: String| here.iter().find(|(_, base)| *base == name).map(|(path, _)| *path);
    let of = |(stem, end): (&str, &str)| find(format!("{stem}{end}")).or_else(|| find(format!("{stem}{end}{INDEX}")));
    WEIGHTS.into_iter().find_map(of)
}

/// The ONNX model in `folder`, and the files beside it that hold its weights: the one that the user
/// names; else the usual one, two towers, or the first of those that a user can name.
fn graph<'a>(names: &'a [String], folder: &str, named: Option<&str>) -> Vec<&'a str> {
    let find = |base: &str| {
        let places = [in_dir(folder, base), in_dir(folder, &format!("onnx/{base}"))];
        places.into_iter().find(|path| names.contains(path))
    };
    let towers = |file: &str, tower: &str| -> Option<Vec<String>> {
        TOWERS.iter().map(|other| find(&file.replace(tower, other))).collect()
    };
    let first = || {
        let all = [folder.to_owned(), in_dir(folder, "onnx")].into_iter().flat_map(|folder| in_folder(names, &folder));
        all.map(|(path, _)| path.to_owned()).find(|path| path.ends_with(".onnx"))
    };
    let graphs = match named {
        Some(file) => match TOWERS.iter().find(|tower| file.contains(*tower)).and_then(|tower| towers(file, tower)) {
            Some(both) => both,
            None => find(file).into_iter().collect(),
        },
        None => {
            let usual = GRAPHS.iter().map(|base| in_dir(folder, base)).find(|path| names.contains(path));
            match usual.map(|usual| vec![usual]).or_else(|| towers("text_model.onnx", TOWERS[0])) {
                Some(graphs) => graphs,
                None => first().into_iter().collect(),
            }
        }
    };
    // `model.onnx_data`, `model.onnx.data` and `model.onnx_data_1`, as exporters name them.
    let is_part = |name: &&str| {
        let rest = graphs.iter().find_map(|graph| name.strip_prefix(graph.as_str()));
        rest.is_some_and(|rest| rest.is_empty() || rest.contains("data"))
    };
    names.iter().map(String::as_str).filter(is_part).collect()
}

/// Checks that the ONNX model that is wanted in place of weights is among the files.
pub(super) fn check_onnx(place: &str, names: &[String], modules: &[Module], onnx: &OnnxFiles) -> Result<(), HubError> {
    let OnnxFiles::InPlaceOfWeights(file) = onnx else { return Ok(()) };
    let is_absent = |module: &Module| graph(names, &module.path, file.as_deref()).is_empty();
    let mut encoders = modules.iter().filter(|module| module.role() == Role::Encoder);
    match encoders.find(|module| is_absent(module)) {
        Some(module) => {
            let (file, why) = match file {
                Some(file) => (file.as_str(), "--onnx-file names it"),
                None => ("model.onnx", "--engine onnx or an ONNX device needs it"),
            };
            Err(missing_file(place, &module.file(file), why))
        }
        None => Ok(()),
    }
}

/// Whether a folder has an ONNX model.
pub(super) fn has_onnx(dir: &Path) -> bool {
    let listed = |folder: &str| list_folder(dir, folder).unwrap_or_default();
    let names = [listed(""), listed("onnx")].concat();
    !graph(&names, "", None).is_empty()
}

/// Whether weights among `listed`, the files of a repository, were left out of `dir` for a model in
/// ONNX.
pub(super) fn lacks_weights(dir: &Path, listed: &[String]) -> Result<bool, HubError> {
    let modules = modules(dir)?;
    let there = list(dir, &modules)?;
    let is_lacking =
        |module: &Module| weights(listed, &module.path).is_some() && weights(&there, &module.path).is_none();
    Ok(modules.iter().any(is_lacking))
}

/// [`check_onnx`] for a folder.
pub(super) fn inspect_onnx(dir: &Path, onnx: &OnnxFiles) -> Result<(), HubError> {
    let modules = modules(dir)?;
    check_onnx(&dir.display().to_string(), &list(dir, &modules)?, &modules, onnx)
}

/// Whether the file, in any folder, is unsharded weights or the index of sharded ones.
pub(super) fn is_weights(name: &str) -> bool {
    let base = name.rsplit('/').next().unwrap_or(name);
    let base = base.strip_suffix(INDEX).unwrap_or(base);
    WEIGHTS.iter().any(|(stem, end)| base.strip_suffix(end) == Some(stem))
}

/// The files directly in `folder`: path and file name.
fn in_folder<'a>(names: &'a [String], folder: &str) -> Vec<(&'a str, &'a str)> {
    let base = |name: &'a str| match folder {
        "" => Some(name),
        _ => name.strip_prefix(folder)?.strip_prefix('/'),
    };
    let here = names.iter().filter_map(|name| Some((name.as_str(), base(name)?)));
    here.filter(|(_, base)| !base.contains('/')).collect()
}

/// Refuses a listing that cannot be a model, whatever its `modules.json` says, before anything is
/// fetched.
pub(super) fn check_listing(place: &str, names: &[String]) -> Result<(), HubError> {
    let has = |name: &str| names.iter().any(|there| there == name);
    // Only `modules.json` says where the encoder is, and so which files are missing.
    if has("modules.json") && (!has("config.json") || names.iter().any(|name| is_weights(name))) {
        return Ok(());
    }
    check(place, names, &[Module::top()])
}

/// Checks that every module has the files it needs.
pub(super) fn check(place: &str, names: &[String], modules: &[Module]) -> Result<(), HubError> {
    for module in modules {
        let missing = |base: &str| !names.contains(&module.file(base));
        let must = |base: &str| match missing(base) {
            true => Err(missing_file(place, &module.file(base), "modules.json needs it")),
            false => Ok(()),
        };
        let folder = || if module.path.is_empty() { place.to_owned() } else { in_dir(place, &module.path) };
        let found = || {
            let here: Vec<&str> = in_folder(names, &module.path).iter().map(|(_, base)| *base).collect();
            summarize(&here)
        };
        match module.role() {
            Role::Encoder if missing("config.json") && missing("gliner_config.json") => {
                return Err(HubError::NoConfig { place: folder(), found: found() });
            }
            Role::Table => must("tokenizer.json")?,
            Role::Dense | Role::Other => must("config.json")?,
            Role::Router => must(ROUTER)?,
            Role::Encoder | Role::Normalize => {}
        }
        let needs_weights = matches!(module.role(), Role::Encoder | Role::Table | Role::Dense);
        let has_graph = module.role() == Role::Encoder && !graph(names, &module.path, None).is_empty();
        if needs_weights && weights(names, &module.path).is_none() && !has_graph {
            return Err(match pickle(names, &module.path) {
                Some(file) => HubError::Pickle { place: folder(), file: file.to_owned() },
                None => HubError::NoWeights { place: folder(), found: found() },
            });
        }
    }
    Ok(())
}

/// A file of `folder` that may be weights in an unsupported format.
fn pickle<'a>(names: &'a [String], folder: &str) -> Option<&'a str> {
    let is_other = |base: &str| {
        let stem = PICKLES.iter().find_map(|end| base.strip_suffix(end));
        stem.is_some_and(|stem| !PROJECTIONS.contains(&stem))
    };
    in_folder(names, folder).into_iter().map(|(_, base)| base).find(|base| is_other(base))
}

pub(super) fn missing_file(place: &str, file: &str, why: &str) -> HubError {
    HubError::BadFile { file: PathBuf::from(place).join(file), why: format!("missing, and {why}") }
}

/// Checks that a model can be loaded from a directory: like [`check`], and every shard that an
/// index lists must exist.
pub(super) fn inspect(dir: &Path) -> Result<(), HubError> {
    let modules = modules(dir)?;
    let names = list(dir, &modules)?;
    let place = dir.display().to_string();
    check(&place, &names, &modules)?;
    match shards(dir, &names, &modules)?.iter().find(|shard| !names.contains(&shard.name)) {
        Some(Shard { name, index }) => Err(missing_file(&place, name, &format!("{index} lists it"))),
        None => Ok(()),
    }
}

/// A shard, and the index that lists it.
pub(super) struct Shard {
    pub(super) name: String,
    index: String,
}

/// The shards that the indices in `dir` list. Only the index says which files are shards: a variant
/// of the weights may be next to them, and numbering schemes differ.
pub(super) fn shards(dir: &Path, names: &[String], modules: &[Module]) -> Result<Vec<Shard>, HubError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let mut shards = Vec::new();
    for module in modules {
        if let Some(index) = weights(names, &module.path).filter(|name| name.ends_with(INDEX)) {
            let Index { weight_map } = read_json(&dir.join(index))?;
            let bases: BTreeSet<String> = weight_map.into_values().collect();
            shards.extend(bases.iter().map(|base| Shard { name: module.file(base), index: index.to_owned() }));
        }
    }
    Ok(shards)
}

/// How complete a model directory is.
pub(super) enum Completeness {
    /// All modules that take input are complete; other modules may still lack files.
    Complete,
    /// A configuration or `modules.json`, without weights for it.
    Partial,
    /// Neither.
    Other,
}

/// How complete the model in `dir` is, given its modules.
pub(super) fn completeness(dir: &Path, modules: &[Module]) -> Result<Completeness, HubError> {
    let names = list(dir, modules)?;
    let has = |module: &Module, file: &str| names.contains(&module.file(file));
    let has_config = |module: &Module| {
        module.role() == Role::Table || has(module, "config.json") || has(module, "gliner_config.json")
    };
    let has_weights =
        |module: &Module| weights(&names, &module.path).is_some() || !graph(&names, &module.path, None).is_empty();
    let is_complete = |module: &Module| has_config(module) && has_weights(module);
    Ok(if modules.iter().filter(|module| module.is_model()).all(is_complete) {
        Completeness::Complete
    } else if ["config.json", "gliner_config.json", "modules.json"]
        .iter()
        .any(|name| names.iter().any(|there| there == name))
    {
        Completeness::Partial
    } else {
        Completeness::Other
    })
}

/// The files directly in `dir` and in its modules' folders, as paths from `dir`. A missing folder
/// has none.
fn list(dir: &Path, modules: &[Module]) -> Result<Vec<String>, HubError> {
    let mut names = list_folder(dir, "")?;
    for module in modules.iter().filter(|module| !module.path.is_empty()) {
        names.extend(list_folder(dir, &module.path).unwrap_or_default());
    }
    for module in modules.iter().filter(|module| module.is_model()) {
        names.extend(list_folder(dir, &in_dir(&module.path, "onnx")).unwrap_or_default());
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// Dangling links are skipped.
pub(super) fn list_folder(dir: &Path, folder: &str) -> Result<Vec<String>, HubError> {
    let at = dir.join(folder);
    let mut names = Vec::new();
    for entry in fs::read_dir(&at).map_err(disk("list", &at))? {
        let entry = entry.map_err(disk("list", &at))?;
        if let (true, Ok(name)) = (entry.path().is_file(), entry.file_name().into_string()) {
            names.push(in_dir(folder, &name));
        }
    }
    Ok(names)
}

/// The first names, for a message.
pub(super) fn summarize<T: AsRef<str>>(names: &[T]) -> String {
    let few = names.iter().take(4).map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => "no files".to_owned(),
        1..=4 => few,
        all => format!("{few} and {} more", all - 4),
    }
}
