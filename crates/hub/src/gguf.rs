//! Finds GGUF models in a listing: groups parts into models, and chooses one of several.
//!
//! A GGUF holds a complete model: weights, tokenizer, configuration and chat template. It is one
//! file, or parts named `NAME-00001-of-00003.gguf`. A repository often has one model for each
//! quantization, of which one is fetched.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::error::disk;
use super::modules::in_dir;
use super::{Choice, HubError, model_files};

/// Quantizations tried in this order if a repository has several models and the user named none:
/// the most popular one, then the one closest to the original weights.
const DEFAULT_QUANTIZATIONS: [&str; 2] = ["Q4_K_M", "Q8_0"];

/// Names listed in an error. Repositories have about thirty.
const MAX_LISTED: usize = 40;

/// Depth of the search for GGUF files in a snapshot. They are at the top or in a folder per
/// quantization.
const DEPTH: usize = 3;

/// A model: a file, or the parts of a split one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Model {
    /// Its name without part number and extension.
    stem: String,
    /// Number of parts, if it was split.
    split: Option<u32>,
    /// The parts found, by number.
    parts: BTreeMap<u32, String>,
}

impl Model {
    /// The file name for messages: the first part of a split model.
    pub(super) fn first(&self) -> &str {
        self.parts.values().next().map_or(&self.stem, |name| name)
    }

    /// Its parts in order; an error if one is missing.
    pub(super) fn all_parts(&self, place: &str) -> Result<Vec<String>, HubError> {
        let count = self.split.unwrap_or(1);
        match (1..=count).find(|part| !self.parts.contains_key(part)) {
            None => Ok(self.parts.values().cloned().collect()),
            Some(part) => {
                let file = part_name(&self.stem, part, count);
                Err(model_files::missing_file(place, &file, &format!("the model {} has {count} parts", self.stem)))
            }
        }
    }

    /// The quantization in its file name, else in its folder's name.
    fn tag(&self) -> Option<&str> {
        let (folder, base) = self.stem.rsplit_once('/').unwrap_or(("", &self.stem));
        tag_of(base).or_else(|| tag_of(folder))
    }

    /// Whether its name or its folder's ends in `tag`, known quantization or not.
    fn ends_in(&self, tag: &str) -> bool {
        let (folder, base) = self.stem.rsplit_once('/').unwrap_or(("", &self.stem));
        [base, folder].iter().any(|text| {
            let cut = text.len().checked_sub(tag.len()).filter(|cut| text.is_char_boundary(*cut));
            cut.is_some_and(|cut| {
                text[cut..].eq_ignore_ascii_case(tag) && (cut == 0 || text[..cut].ends_with(['-', '.', '/']))
            })
        })
    }
}

/// The suffix of `text` that names a quantization, with the `UD-` that some repositories put before
/// it.
fn tag_of(text: &str) -> Option<&str> {
    let starts = text.match_indices(['-', '.', '_', '/']).map(|(at, _)| at + 1);
    std::iter::once(0).chain(starts).map(|start| &text[start..]).find(|end| is_quantization(end))
}

/// `Q4_K_M`, `IQ2_XXS`, `TQ1_0`, `Q8_0`, `UD-Q4_K_XL`, and unquantized formats that are named
/// alike.
fn is_quantization(text: &str) -> bool {
    let text = text.to_ascii_uppercase();
    let text = text.strip_prefix("UD-").unwrap_or(&text);
    let digits = text.strip_prefix(['I', 'T']).unwrap_or(text).strip_prefix('Q');
    let is_numbered = digits.is_some_and(|rest| {
        rest.starts_with(|c: char| c.is_ascii_digit()) && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    });
    is_numbered || ["F16", "BF16", "F32", "FP16", "FP32", "MXFP4", "MXFP4_MOE", "NVFP4"].contains(&text)
}

/// `name` without its `.gguf`, if it has one.
fn strip_gguf(name: &str) -> Option<&str> {
    let cut = name.len().checked_sub(".gguf".len()).filter(|cut| name.is_char_boundary(*cut))?;
    name[cut..].eq_ignore_ascii_case(".gguf").then(|| &name[..cut])
}

/// Whether a model's GGUF could have this name.
pub(super) fn is_gguf(name: &str) -> bool {
    strip_gguf(name).is_some_and(|stem| !stem.is_empty() && !stem.ends_with('/'))
}

/// Why a GGUF is not a model by itself, judging by its name: a vision projector, or an importance
/// matrix.
fn other_use(name: &str) -> Option<&'static str> {
    let base = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    let stem = strip_gguf(&base).unwrap_or(&base);
    if stem.contains("mmproj") {
        Some("it is the projector of a vision model (mmproj), not a model")
    } else if stem.starts_with("imatrix") || stem.ends_with("imatrix") {
        Some("it holds an importance matrix for quantization (imatrix), not a model")
    } else {
        None
    }
}

/// Stem, number and count of a part: `NAME-00002-of-00003`.
fn part_of(stem: &str) -> Option<(&str, u32, u32)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (name, part) = rest.rsplit_once('-')?;
    let number = |text: &str| match text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit()) {
        true => text.parse::<u32>().ok(),
        false => None,
    };
    let (part, count) = (number(part)?, number(count)?);
    (1..=count).contains(&part).then_some((name, part, count))
}

fn part_name(stem: &str, part: u32, count: u32) -> String {
    format!("{stem}-{part:05}-of-{count:05}.gguf")
}

/// The models among `names`, sorted by name.
pub(super) fn models<T: AsRef<str>>(names: &[T]) -> Vec<Model> {
    let mut models: BTreeMap<(&str, Option<u32>), BTreeMap<u32, String>> = BTreeMap::new();
    for name in names.iter().map(AsRef::as_ref).filter(|name| is_gguf(name) && other_use(name).is_none()) {
        let stem = strip_gguf(name).unwrap_or(name);
        let (stem, part, split) = match part_of(stem) {
            Some((stem, part, count)) => (stem, part, Some(count)),
            None => (stem, 1, None),
        };
        models.entry((stem, split)).or_default().insert(part, name.to_owned());
    }
    let model = |((stem, split), parts): ((&str, Option<u32>), _)| Model { stem: stem.to_owned(), split, parts };
    models.into_iter().map(model).collect()
}

/// The parts of the chosen GGUF among `names`, all files of a repository. `None` if its safetensors
/// are the choice.
pub(super) fn choose(
    repo: &str,
    revision: &str,
    names: &[String],
    choice: &Choice,
) -> Result<Option<Vec<String>>, HubError> {
    let place = format!("{repo}@{revision}");
    let models = models(names);
    let tagged = |tag: &str| {
        let is_tag = |model: &&Model| model.tag().is_some_and(|its| its.eq_ignore_ascii_case(tag));
        let exact: Vec<&Model> = models.iter().filter(is_tag).collect();
        // `Q4_K_XL` also finds `UD-Q4_K_XL` if there is no exact match.
        if exact.is_empty() { models.iter().filter(|model| model.ends_in(tag)).collect() } else { exact }
    };
    let several = |models: &[&Model]| {
        let (found, tag) = describe(models);
        let next = match tag {
            Some(tag) => format!("choose one, as in {place}:{tag}"),
            None => format!("choose one, as in {repo}/{}@{revision}", models.first().map_or("FILE", |m| m.first())),
        };
        HubError::ManyGguf { place: place.clone(), found, next }
    };
    let none = |what: String| {
        let found = match &models[..] {
            [] => "it has no GGUF models at all".to_owned(),
            _ => format!("its GGUF models are {}", describe(&models.iter().collect::<Vec<_>>()).0),
        };
        HubError::NoGguf { place: place.clone(), what, found }
    };
    match choice {
        Choice::Usual if models.is_empty() || names.iter().any(|name| model_files::is_weights(name)) => Ok(None),
        Choice::Usual => {
            match DEFAULT_QUANTIZATIONS.iter().map(|tag| tagged(tag)).find(|found| !found.is_empty()).as_deref() {
                Some([one]) => one.all_parts(&place).map(Some),
                Some(found) => Err(several(found)),
                None if models.len() == 1 => models[0].all_parts(&place).map(Some),
                None => Err(several(&models.iter().collect::<Vec<_>>())),
            }
        }
        Choice::Quantization(tag) => match tagged(tag)[..] {
            [one] => one.all_parts(&place).map(Some),
            [] => Err(none(format!("GGUF of the quantization {tag}"))),
            ref found => Err(several(found)),
        },
        Choice::File(file) => {
            check_file(file, &place)?;
            match models.iter().find(|model| model.parts.values().any(|part| part == file)) {
                Some(model) => model.all_parts(&place).map(Some),
                None => Err(none(format!("file {file}"))),
            }
        }
    }
}

/// Refuses a file that is not a model by itself: another kind of GGUF, or a later part.
fn check_file(file: &str, place: &str) -> Result<(), HubError> {
    let refuse = |why: String| Err(HubError::BadFile { file: PathBuf::from(place).join(file), why });
    if let Some(why) = other_use(file) {
        return refuse(why.to_owned());
    }
    match strip_gguf(file).and_then(part_of) {
        Some((stem, part, count)) if part > 1 => {
            let first = part_name(stem, 1, count);
            refuse(format!("it is part {part} of {count}; give the first, {first}"))
        }
        _ => Ok(()),
    }
}

/// Names of models for a message: quantizations if they are unique, else files. In the first case
/// also one quantization as an example.
fn describe<'a>(models: &[&'a Model]) -> (String, Option<&'a str>) {
    let mut tags: Vec<Option<&str>> = models.iter().map(|model| model.tag()).collect();
    let first = tags.first().copied().flatten();
    tags.sort_unstable_by_key(|tag| tag.map(str::to_ascii_uppercase));
    let same = |pair: &[Option<&str>]| matches!(pair, [Some(a), Some(b)] if a.eq_ignore_ascii_case(b));
    let (names, tag): (Vec<&str>, _) = match tags.iter().all(Option::is_some) && !tags.windows(2).any(same) {
        true => (tags.into_iter().flatten().collect(), first),
        false => (models.iter().map(|model| model.first()).collect(), None),
    };
    let mut text = names.iter().take(MAX_LISTED).copied().collect::<Vec<_>>().join(", ");
    if names.len() > MAX_LISTED {
        text.push_str(&format!(" and {} more", names.len() - MAX_LISTED));
    }
    (text, tag)
}

/// The parts of the model at `path`: that file and the parts in its directory.
pub(super) fn parts_at(path: &Path) -> Result<Vec<PathBuf>, HubError> {
    let refuse = |why: &str| HubError::BadFile { file: path.to_owned(), why: why.to_owned() };
    let dir = parent(path);
    let base = path.file_name().and_then(|base| base.to_str()).ok_or_else(|| refuse("its name is not UTF-8"))?;
    let place = dir.display().to_string();
    check_file(base, &place)?;
    if !path.is_file() {
        return Err(refuse("there is no such file"));
    }
    // A single file needs no listing of its directory, which may hold a million downloads.
    let names = match strip_gguf(base).and_then(part_of) {
        Some(_) => model_files::list_folder(dir, "")?,
        None => vec![base.to_owned()],
    };
    let model = models(&names).into_iter().find(|model| model.parts.values().any(|part| part == base));
    let parts = model.ok_or_else(|| refuse("its name does not end in .gguf"))?.all_parts(&place)?;
    Ok(parts.into_iter().map(|part| dir.join(part)).collect())
}

/// The only model directly in `dir`. `None` if there is none, or if there are other weights, which
/// take precedence.
pub(super) fn only_in(dir: &Path) -> Result<Option<Vec<PathBuf>>, HubError> {
    let names = model_files::list_folder(dir, "")?;
    let models = models(&names);
    let place = dir.display().to_string();
    match &models[..] {
        [] => Ok(None),
        _ if names.iter().any(|name| model_files::is_weights(name)) => Ok(None),
        [one] => Ok(Some(one.all_parts(&place)?.into_iter().map(|part| dir.join(part)).collect())),
        many => {
            let found = many.iter().take(MAX_LISTED).map(Model::first).collect::<Vec<_>>().join(", ");
            let next = "give the file of one instead of the directory".to_owned();
            Err(HubError::ManyGguf { place, found, next })
        }
    }
}

/// The directory that holds `path`.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// Every GGUF below `dir`, and the other weights, as relative paths.
pub(super) fn list(dir: &Path) -> Result<Vec<String>, HubError> {
    fn walk(dir: &Path, folder: &str, depth: usize, names: &mut Vec<String>) -> Result<(), HubError> {
        names.extend(model_files::list_folder(dir, folder)?.into_iter().filter(|name| affects_choice(name)));
        let at = dir.join(folder);
        for entry in fs::read_dir(&at).map_err(disk("list", &at))? {
            let entry = entry.map_err(disk("list", &at))?;
            // Links are not followed: they could lead back here.
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if let (true, Ok(name)) = (is_folder && depth > 0, entry.file_name().into_string()) {
                walk(dir, &in_dir(folder, &name), depth - 1, names)?;
            }
        }
        Ok(())
    }
    let mut names = Vec::new();
    walk(dir, "", DEPTH, &mut names)?;
    names.sort_unstable();
    Ok(names)
}

/// Whether the choice between a repository's models depends on this file.
pub(super) fn affects_choice(name: &str) -> bool {
    is_gguf(name) || model_files::is_weights(name)
}
