//! Which files of a model we want, and whether a directory holds them.
//!
//! Weights are safetensors alone. Repositories often carry the same weights four times over (pickle, ONNX, TensorFlow,
//! a second safetensors), so what is fetched is chosen by name before a byte is asked for.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::SourceError;
use super::error::disk;
use super::reference::is_safe_relative;

/// Files that change what the model computes, and which many models rightly lack. A cache that has neither the file nor
/// a word that the repository lacks it may be a half: Python's `AutoModel`, for one, never fetches `modules.json`, and
/// without it the pooling would be guessed.
pub(super) const TELLING: [&str; 5] = [
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// No configuration or index is as long as this; a file that is must be something else.
const JSON_LIMIT: u64 = 64 << 20;

/// One step of a sentence-transformers model.
#[derive(Debug, Deserialize)]
pub(super) struct Module {
    /// Its folder; empty where its files lie at the top.
    #[serde(default)]
    pub(super) path: String,
    #[serde(rename = "type", default)]
    kind: String,
}

/// The modules that have a folder of their own, as `modules.json` lists them; none where there is no such file.
pub(super) fn modules(dir: &Path) -> Result<Vec<Module>, SourceError> {
    let file = dir.join("modules.json");
    if !file.exists() {
        return Ok(Vec::new());
    }
    let mut modules: Vec<Module> = read_json(&file)?;
    modules.retain(|module| !module.path.is_empty());
    for module in &mut modules {
        module.path.truncate(module.path.trim_end_matches('/').len());
        if !is_safe_relative(&module.path) {
            return Err(SourceError::BadFile { file, why: format!("the module path {:?} leads outside", module.path) });
        }
    }
    Ok(modules)
}

/// The names among `names` (all that a repository holds) that we want, given the modules' folders.
pub(super) fn wanted<'a>(names: &'a [String], modules: &[Module]) -> Vec<&'a str> {
    let mut wanted = weights(names, "");
    wanted.extend(names.iter().map(String::as_str).filter(|name| is_wanted_text(name)));
    for Module { path, .. } in modules {
        wanted.extend(weights(names, path));
        let config = format!("{path}/config.json");
        wanted.extend(names.iter().map(String::as_str).filter(|name| *name == config));
    }
    wanted.sort_unstable();
    wanted.dedup();
    wanted
}

fn is_wanted_text(name: &str) -> bool {
    const EXACT: [&str; 12] = [
        "config.json",
        "config_sentence_transformers.json",
        "modules.json",
        "generation_config.json",
        "preprocessor_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.txt",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
        "chat_template.json",
    ];
    let shaped = |start: &str, end: &str| name.starts_with(start) && name.ends_with(end);
    !name.contains('/')
        && (EXACT.contains(&name) || shaped("tokenizer", ".json") || shaped("sentence_", "_config.json"))
}

/// The weights in `folder`, in the order transformers looks for them: one file, else one set of shards with its index,
/// else all there is. A repository that also holds `consolidated.safetensors` is thus fetched once, not twice.
fn weights<'a>(names: &'a [String], folder: &str) -> Vec<&'a str> {
    let here: Vec<(&str, &str)> =
        names.iter().filter_map(|name| Some((name.as_str(), in_folder(name, folder)?))).collect();
    let pick = |test: &dyn Fn(&str) -> bool| -> Vec<&'a str> {
        here.iter().filter(|(_, base)| test(base)).map(|(name, _)| *name).collect()
    };
    const INDEX: &str = "model.safetensors.index.json";
    let one = pick(&|base| base == "model.safetensors");
    if !one.is_empty() {
        one
    } else if here.iter().any(|(_, base)| *base == INDEX) {
        pick(&|base| base == INDEX || base.starts_with("model-") && base.ends_with(".safetensors"))
    } else {
        pick(&|base| base.ends_with(".safetensors") || base.ends_with(".safetensors.index.json"))
    }
}

/// The file's own name if it lies directly in `folder`.
fn in_folder<'a>(name: &'a str, folder: &str) -> Option<&'a str> {
    let base = if folder.is_empty() { name } else { name.strip_prefix(folder)?.strip_prefix('/')? };
    (!base.contains('/')).then_some(base)
}

/// Refuses what has no `config.json` or no safetensors, at the top or in a module that has weights.
pub(super) fn check(place: &str, names: &[String], modules: &[Module]) -> Result<(), SourceError> {
    if !names.iter().any(|name| name == "config.json") {
        return Err(SourceError::NoConfig { place: place.to_owned(), found: some_of(names) });
    }
    for folder in std::iter::once("").chain(modules.iter().map(|module| module.path.as_str())) {
        if weights(names, folder).iter().any(|name| name.ends_with(".safetensors")) {
            continue;
        }
        let pickle = |name: &&String| {
            in_folder(name, folder)
                .is_some_and(|base| [".bin", ".pt", ".pth", ".ckpt", ".pkl"].iter().any(|end| base.ends_with(end)))
        };
        if let Some(file) = names.iter().find(pickle) {
            return Err(SourceError::Pickle { place: place.to_owned(), file: file.clone() });
        }
        if folder.is_empty() {
            return Err(SourceError::NoWeights { place: place.to_owned(), found: some_of(names) });
        }
    }
    Ok(())
}

/// Refuses a directory from which no model could be loaded: as [`check`], and every shard that the index promises and
/// every module's own files must be there.
pub(super) fn inspect(dir: &Path) -> Result<(), SourceError> {
    let modules = modules(dir)?;
    let mut names = list(dir, "")?;
    for module in &modules {
        names.extend(list(dir, &module.path).unwrap_or_default());
    }
    check(&dir.display().to_string(), &names, &modules)?;
    let must = |file: String, why: &str| match names.contains(&file) {
        true => Ok(()),
        false => Err(SourceError::BadFile { file: dir.join(file), why: format!("missing, and {why}") }),
    };
    for index in weights(&names, "").iter().filter(|name| name.ends_with(".index.json")) {
        for shard in shards(&dir.join(index))? {
            must(shard, &format!("{index} lists it"))?;
        }
    }
    for Module { path, kind } in &modules {
        let config = format!("{path}/config.json");
        // Normalize has nothing to configure, and an empty folder does not survive git.
        if !kind.ends_with("Normalize") {
            must(config, "modules.json needs it")?;
        }
        if kind.ends_with("Dense") && weights(&names, path).is_empty() {
            must(format!("{path}/model.safetensors"), "modules.json needs it")?;
        }
    }
    Ok(())
}

/// The shard files that an index names.
fn shards(index: &Path) -> Result<Vec<String>, SourceError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let Index { weight_map } = read_json(index)?;
    let mut shards: Vec<String> = weight_map.into_values().collect();
    shards.sort_unstable();
    shards.dedup();
    Ok(shards)
}

/// The files directly in `dir/folder`, named from `dir`. A link that leads nowhere is no file.
fn list(dir: &Path, folder: &str) -> Result<Vec<String>, SourceError> {
    let at = dir.join(folder);
    let mut names = Vec::new();
    for entry in fs::read_dir(&at).map_err(disk("list", &at))? {
        let entry = entry.map_err(disk("list", &at))?;
        if let (true, Ok(name)) = (entry.path().is_file(), entry.file_name().into_string()) {
            names.push(if folder.is_empty() { name } else { format!("{folder}/{name}") });
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn read_json<T: DeserializeOwned>(file: &Path) -> Result<T, SourceError> {
    let mut text = Vec::new();
    File::open(file).and_then(|open| open.take(JSON_LIMIT).read_to_end(&mut text)).map_err(disk("read", file))?;
    serde_json::from_slice(&text).map_err(|error| SourceError::BadFile {
        file: file.to_owned(),
        why: format!("not the JSON it should be: {error}"),
    })
}

/// A few names, for a message.
pub(super) fn some_of(names: &[String]) -> String {
    match names {
        [] => "no files".to_owned(),
        few @ ([_] | [_, _] | [_, _, _] | [_, _, _, _]) => few.join(", "),
        many => format!("{} and {} more", many[..4].join(", "), many.len() - 4),
    }
}
