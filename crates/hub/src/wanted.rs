//! Which files of a model we want, and whether a directory holds them.
//!
//! Repositories often carry the same weights four times over (safetensors, torch's own checkpoint, ONNX, TensorFlow), so
//! what is fetched is chosen by name before a byte is asked for: what the loader reads, once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::HubError;
use super::error::disk;
use super::modules::{Module, Role, in_dir, modules, read_json};

/// Names and endings of weights, in the order in which the loader looks for them. The second is a torch checkpoint, which
/// is read without being run.
const WEIGHTS: [(&str, &str); 2] = [("model", ".safetensors"), ("pytorch_model", ".bin")];

/// What the name of their index adds to them, where they are in shards.
const INDEX: &str = ".index.json";

/// Pickles of any other kind, which we do not read.
const PICKLES: [&str; 4] = [".ckpt", ".pkl", ".pth", ".pt"];

/// The projections that bge-m3 keeps beside its encoder's weights, as `.pt` or `.safetensors`.
const PROJECTIONS: [&str; 2] = ["sparse_linear", "colbert_linear"];

/// Where a repository keeps the templates that a caller may name, beside the usual one.
const TEMPLATES: &str = "additional_chat_templates";

/// The names among `names` (all that a repository holds) that we want; the shards that an index lists come on top, see
/// [`shards`].
pub(super) fn wanted<'a>(names: &'a [String], modules: &[Module]) -> Vec<&'a str> {
    let mut wanted = beside(names, "");
    for module in modules {
        wanted.extend(weights(names, &module.path));
        if module.is_model() {
            wanted.extend(beside(names, &module.path));
        }
        let config = module.file("config.json");
        wanted.extend(names.iter().map(String::as_str).filter(|name| *name == config));
    }
    wanted.sort_unstable();
    wanted.dedup();
    wanted
}

/// What `folder` holds beside the weights of an encoder.
fn beside<'a>(names: &'a [String], folder: &str) -> Vec<&'a str> {
    let here = in_folder(names, folder);
    let has = |base: &str| here.iter().any(|(_, there)| *there == base);
    let has_text = has("tokenizer.json") || has("vocab.json") && has("merges.txt");
    let is_wanted = |base: &str| match base.rsplit_once('.') {
        // DeBERTa's first vocabulary is pickled; most of its models hold it as text too.
        _ if base == "bpe_encoder.bin" => !has_text,
        Some((stem, "safetensors")) => PROJECTIONS.contains(&stem),
        Some((stem, "pt")) => PROJECTIONS.contains(&stem) && !has(&format!("{stem}.safetensors")),
        _ => is_wanted_text(base),
    };
    let templates =
        in_folder(names, &in_dir(folder, TEMPLATES)).into_iter().filter(|(_, base)| base.ends_with(".jinja"));
    let here = here.iter().copied().filter(|(_, base)| is_wanted(base));
    here.chain(templates).map(|(name, _)| name).collect()
}

fn is_wanted_text(base: &str) -> bool {
    const EXACT: [&str; 18] = [
        "config.json",
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

/// The weights in `folder`: one file, else the index of one set of shards; safetensors, else torch's. A repository that
/// also holds `consolidated.safetensors` is thus fetched once, not twice.
fn weights<'a>(names: &'a [String], folder: &str) -> Option<&'a str> {
    let here = in_folder(names, folder);
    let find = |wanted: String| here.iter().find(|(_, base)| *base == wanted).map(|(name, _)| *name);
    let of = |(stem, end): (&str, &str)| find(format!("{stem}{end}")).or_else(|| find(format!("{stem}{end}{INDEX}")));
    WEIGHTS.into_iter().find_map(of)
}

/// A file that is all of some weights, or the index of their shards, wherever it lies.
pub(super) fn is_weights(name: &str) -> bool {
    let base = name.rsplit('/').next().unwrap_or(name);
    let base = base.strip_suffix(INDEX).unwrap_or(base);
    WEIGHTS.iter().any(|(stem, end)| base.strip_suffix(end) == Some(stem))
}

/// The files directly in `folder`: each name, and the file's own part of it.
fn in_folder<'a>(names: &'a [String], folder: &str) -> Vec<(&'a str, &'a str)> {
    let base = |name: &'a str| match folder {
        "" => Some(name),
        _ => name.strip_prefix(folder)?.strip_prefix('/'),
    };
    let here = names.iter().filter_map(|name| Some((name.as_str(), base(name)?)));
    here.filter(|(_, base)| !base.contains('/')).collect()
}

/// Refuses a listing that cannot be a model's, whatever its `modules.json` says, so that nothing is fetched of it.
pub(super) fn check_unread(place: &str, names: &[String]) -> Result<(), HubError> {
    let has = |name: &str| names.iter().any(|there| there == name);
    // Where the encoder lies, and so what is missing there, only that file can say.
    if has("modules.json") && (!has("config.json") || names.iter().any(|name| is_weights(name))) {
        return Ok(());
    }
    check(place, names, &[Module::top()])
}

/// Refuses what lacks a file that one of its modules needs.
pub(super) fn check(place: &str, names: &[String], modules: &[Module]) -> Result<(), HubError> {
    for module in modules {
        let missing = |base: &str| !names.contains(&module.file(base));
        let must = |base: &str| match missing(base) {
            true => Err(lacking(place, &module.file(base), "modules.json needs it")),
            false => Ok(()),
        };
        let folder = || if module.path.is_empty() { place.to_owned() } else { in_dir(place, &module.path) };
        let found = || {
            let here: Vec<&str> = in_folder(names, &module.path).iter().map(|(_, base)| *base).collect();
            some_of(&here)
        };
        match module.role() {
            Role::Encoder if missing("config.json") => {
                return Err(HubError::NoConfig { place: folder(), found: found() });
            }
            Role::Table => must("tokenizer.json")?,
            Role::Dense | Role::Other => must("config.json")?,
            Role::Encoder | Role::Normalize => {}
        }
        let needs_weights = matches!(module.role(), Role::Encoder | Role::Table | Role::Dense);
        if needs_weights && weights(names, &module.path).is_none() {
            return Err(match pickle(names, &module.path) {
                Some(file) => HubError::Pickle { place: folder(), file: file.to_owned() },
                None => HubError::NoWeights { place: folder(), found: found() },
            });
        }
    }
    Ok(())
}

/// A file of `folder` that may be weights in a form that we do not read.
fn pickle<'a>(names: &'a [String], folder: &str) -> Option<&'a str> {
    let is_other = |base: &str| {
        let stem = PICKLES.iter().find_map(|end| base.strip_suffix(end));
        stem.is_some_and(|stem| !PROJECTIONS.contains(&stem))
    };
    in_folder(names, folder).into_iter().map(|(_, base)| base).find(|base| is_other(base))
}

pub(super) fn lacking(place: &str, file: &str, why: &str) -> HubError {
    HubError::BadFile { file: PathBuf::from(place).join(file), why: format!("missing, and {why}") }
}

/// Refuses a directory from which no model could be loaded: as [`check`], and every shard that an index promises must be
/// there.
pub(super) fn inspect(dir: &Path) -> Result<(), HubError> {
    let modules = modules(dir)?;
    let names = list(dir, &modules)?;
    let place = dir.display().to_string();
    check(&place, &names, &modules)?;
    match shards(dir, &names, &modules)?.iter().find(|shard| !names.contains(&shard.name)) {
        Some(Shard { name, index }) => Err(lacking(&place, name, &format!("{index} lists it"))),
        None => Ok(()),
    }
}

/// A part of some weights, and the index that lists it.
pub(super) struct Shard {
    pub(super) name: String,
    index: String,
}

/// The shards that the indices among `names` list; those indices lie in `dir`. What the weights are in is written there
/// and nowhere else: beside the shards may lie a variant of them, and not everybody numbers them alike.
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

/// How near to a model a directory is.
pub(super) enum Stage {
    /// Whatever takes texts in is there; other modules may still lack something.
    Model,
    /// A configuration or a list of modules, without weights for it.
    Half,
    /// Neither.
    Other,
}

/// How near to a model `dir` is, given its modules.
pub(super) fn stage(dir: &Path, modules: &[Module]) -> Result<Stage, HubError> {
    let names = list(dir, modules)?;
    let begun = |module: &Module| module.role() == Role::Table || names.contains(&module.file("config.json"));
    let whole = |module: &Module| begun(module) && weights(&names, &module.path).is_some();
    Ok(if modules.iter().filter(|module| module.is_model()).all(whole) {
        Stage::Model
    } else if ["config.json", "modules.json"].iter().any(|name| names.iter().any(|there| there == name)) {
        Stage::Half
    } else {
        Stage::Other
    })
}

/// The files directly in `dir` and in its modules' folders, named from `dir`. A folder that is not there has none.
fn list(dir: &Path, modules: &[Module]) -> Result<Vec<String>, HubError> {
    let mut names = list_folder(dir, "")?;
    for module in modules.iter().filter(|module| !module.path.is_empty()) {
        names.extend(list_folder(dir, &module.path).unwrap_or_default());
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// A link that leads nowhere is no file.
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

/// A few names, for a message.
pub(super) fn some_of<T: AsRef<str>>(names: &[T]) -> String {
    let few = names.iter().take(4).map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => "no files".to_owned(),
        1..=4 => few,
        all => format!("{few} and {} more", all - 4),
    }
}
