//! The files of a model: one, or the parts that `gguf-split` made of it, which name each other by number.
#![allow(unsafe_code, reason = "mapping a file")]

use super::header::{self, Header, Value};
use crate::FileError;
use memmap2::Mmap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// No model has been cut into as many, and a lying count must not make us look for a million files.
const MOST: u64 = 9999;

/// One file.
pub(super) struct Part {
    pub(super) path: PathBuf,
    pub(super) bytes: Mmap,
    pub(super) header: Header,
}

/// Every part of the model at `paths`, in the order of their numbers: the files given, or where only the first is, those
/// beside it that it calls for.
pub(super) fn open(paths: &[PathBuf]) -> Result<Vec<Part>, FileError> {
    let Some(first) = paths.first() else {
        return Err(FileError::new(Path::new(""), "no GGUF file was given"));
    };
    let mut parts = vec![map(first)?];
    let count = parts[0].split("split.count")?.unwrap_or(1);
    if count <= 1 && paths.len() == 1 {
        return Ok(parts);
    }
    if count > MOST {
        return Err(FileError::new(first, format!("says that it is one of {count} parts; {MOST} are supported")));
    }
    if paths.len() > 1 {
        for path in &paths[1..] {
            parts.push(map(path)?);
        }
    } else {
        for number in 1..count {
            parts.push(map(&beside(first, number, count)?)?);
        }
    }
    parts.sort_by_key(|part| part.split("split.no").ok().flatten());
    agree(&parts, count)?;
    Ok(parts)
}

/// The name of part `number`, counted from 0, beside the first: `model-00002-of-00003.gguf`.
fn beside(first: &Path, number: u64, count: u64) -> Result<PathBuf, FileError> {
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

/// That the parts, in order, are each one of the same whole.
fn agree(parts: &[Part], count: u64) -> Result<(), FileError> {
    let mut tensors = 0u64;
    for (place, part) in parts.iter().enumerate() {
        let fail = |what: String| Err(FileError::new(&part.path, what));
        match (part.split("split.no")?, part.split("split.count")?) {
            (Some(number), Some(of)) if of == count => {
                if number != place as u64 {
                    let missing = place + 1;
                    return fail(format!(
                        "is part {} of {of}, but part {missing} is not there or there twice",
                        number.saturating_add(1)
                    ));
                }
            }
            (_, Some(of)) => return fail(format!("is one of {of} parts, the others are of {count}")),
            (_, None) => return fail("is not a part, and was given as one of several".into()),
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
    // SAFETY: the map is only read. Somebody who truncates the file while we run can make reads fail with SIGBUS; that
    // is the price of not copying gigabytes, and what every engine that maps its weights accepts.
    let map = unsafe { Mmap::map(&file) }.map_err(|e| FileError::new(path, e))?;
    part(path, map)
}

/// The file whose bytes these are.
pub(super) fn part(path: &Path, bytes: Mmap) -> Result<Part, FileError> {
    let header = header::parse(&bytes).map_err(|what| FileError::new(path, what))?;
    Ok(Part { path: path.to_path_buf(), bytes, header })
}

impl Part {
    /// A number about the parts.
    fn split(&self, key: &str) -> Result<Option<u64>, FileError> {
        match self.header.values.get(key) {
            None => Ok(None),
            Some(Value::Unsigned(n)) => Ok(Some(*n)),
            Some(Value::Signed(n)) if *n >= 0 => Ok(Some(n.unsigned_abs())),
            Some(_) => Err(FileError::new(&self.path, format!("has a `{key}` that is not a whole number"))),
        }
    }
}
