//! The files of a GGUF model: one, or the numbered parts that `gguf-split` made.
#![allow(unsafe_code, reason = "mapping a file")]

use super::header::{self, Header, Value};
use crate::FileError;
use memmap2::Mmap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// More parts than any model has; an untrusted count must not make us look for a million files.
const MAX_PARTS: u64 = 9999;

/// A GGUF file.
pub(super) struct Part {
    pub(super) path: PathBuf,
    pub(super) bytes: Mmap,
    pub(super) header: Header,
}

/// Opens every part of the model at `paths`, ordered by number. If only the first part is given,
/// finds the others in its directory.
pub(super) fn open(paths: &[PathBuf]) -> Result<Vec<Part>, FileError> {
    let Some(first) = paths.first() else {
        return Err(FileError::new(Path::new(""), "no GGUF file was given"));
    };
    let mut parts = vec![map(first)?];
    let count = parts[0].split("split.count")?.unwrap_or(1);
    if count <= 1 && paths.len() == 1 {
        return Ok(parts);
    }
    if count > MAX_PARTS {
        return Err(FileError::new(
            first,
            format!("says that it is one of {count} parts; at most {MAX_PARTS} are supported"),
        ));
    }
    if paths.len() > 1 {
        for path in &paths[1..] {
            parts.push(map(path)?);
        }
    } else {
        for number in 1..count {
            parts.push(map(&sibling(first, number, count)?)?);
        }
    }
    parts.sort_by_key(|part| part.split("split.no").ok().flatten());
    check_parts(&parts, count)?;
    Ok(parts)
}

/// The path of part `number`, counted from 0, next to the first: `model-00002-of-00003.gguf`.
fn sibling(first: &Path, number: u64, count: u64) -> Result<PathBuf, FileError> {
    let name = first.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let stem = name.strip_suffix(&format!("-00001-of-{count:05}.gguf")).ok_or_else(|| {
        let what = format!(
            "is one of {count} parts, but its name does not end in -00001-of-{count:05}.gguf as the first's does; \
                            give the first part under its own name, or all of them"
        );
        FileError::new(first, what)
    })?;
    Ok(first.with_file_name(format!("{stem}-{:05}-of-{count:05}.gguf", number + 1)))
}

/// Checks that the parts, in order, belong to one model and are complete.
fn check_parts(parts: &[Part], count: u64) -> Result<(), FileError> {
    let mut tensors = 0u64;
    for (place, part) in parts.iter().enumerate() {
        let fail = |what: String| Err(FileError::new(&part.path, what));
        match (part.split("split.no")?, part.split("split.count")?) {
            (Some(number), Some(of)) if of == count => {
                if number != place as u64 {
                    let missing = place + 1;
                    return fail(format!(
                        "is part {} of {of}, but part {missing} is missing or given twice",
                        number.saturating_add(1)
                    ));
                }
            }
            (_, Some(of)) => return fail(format!("is one of {of} parts, the others are of {count}")),
            (_, None) => return fail("is not a part of a split model, but was given with other files".into()),
        }
        tensors += part.header.tensors.len() as u64;
    }
    if parts.len() as u64 != count {
        return Err(FileError::new(&parts[0].path, format!("is one of {count} parts; {} were given", parts.len())));
    }
    match parts[0].split("split.tensors.count")? {
        Some(whole) if whole != tensors => {
            let what =
                format!("says that all parts hold {whole} tensors; they hold {tensors}, so one is from another model");
            Err(FileError::new(&parts[0].path, what))
        }
        _ => Ok(()),
    }
}

fn map(path: &Path) -> Result<Part, FileError> {
    let file = File::open(path).map_err(|e| FileError::new(path, e))?;
    // SAFETY: the map is only read. Truncating the file while we run can make reads fail with
    // SIGBUS; every engine that maps its weights accepts that to avoid copying gigabytes.
    let map = unsafe { Mmap::map(&file) }.map_err(|e| FileError::new(path, e))?;
    part(path, map)
}

/// Parses a mapped file.
pub(super) fn part(path: &Path, bytes: Mmap) -> Result<Part, FileError> {
    let header = header::parse(&bytes).map_err(|what| FileError::new(path, what))?;
    Ok(Part { path: path.to_path_buf(), bytes, header })
}

impl Part {
    /// The value of a `split.*` key.
    fn split(&self, key: &str) -> Result<Option<u64>, FileError> {
        match self.header.values.get(key) {
            None => Ok(None),
            Some(Value::Unsigned(n)) => Ok(Some(*n)),
            Some(Value::Signed(n)) if *n >= 0 => Ok(Some(n.unsigned_abs())),
            Some(_) => Err(FileError::new(&self.path, format!("has a `{key}` that is not a whole number"))),
        }
    }
}
