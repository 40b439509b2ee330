//! Places of files as users write them: paths, or `s3://bucket/prefix`.

use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::input::InputStore;
use crate::store::Store;
use std::path::PathBuf;
use std::sync::Arc;

/// A place of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A path on a disk.
    Disk(PathBuf),
    /// A bucket of an object store, and a prefix of keys without a slash at its end.
    Object {
        /// The bucket.
        bucket: String,
        /// The prefix, or a whole key; may be empty.
        prefix: String,
    },
}

impl Location {
    /// Reads a path or URL.
    pub fn parse(text: &str) -> Result<Location> {
        let Some((scheme, rest)) = text.split_once("://") else { return Ok(Location::Disk(text.into())) };
        if !scheme.eq_ignore_ascii_case("s3") {
            return Err(Error::Input(format!("{text}: only paths and s3://BUCKET/PREFIX are supported")));
        }
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(Error::Input(format!("{text}: the bucket is missing, as in s3://BUCKET/PREFIX")));
        }
        Ok(Location::Object { bucket: bucket.into(), prefix: prefix.trim_end_matches('/').into() })
    }
}

/// Opens an output folder.
pub fn open_output(text: &str) -> Result<Arc<dyn Store>> {
    match Location::parse(text)? {
        Location::Disk(path) => Ok(Arc::new(Disk::new(path)?)),
        #[cfg(feature = "object-store")]
        Location::Object { bucket, prefix } => Ok(Arc::new(crate::object::Object::open(&bucket, &prefix)?)),
        #[cfg(not(feature = "object-store"))]
        Location::Object { .. } => Err(unsupported(text)),
    }
}

/// Opens the place of these input files. All must be on disks, or all in object stores.
pub fn open_inputs(names: &[String]) -> Result<InputStore> {
    let objects: Vec<&String> = names.iter().filter(|name| name.contains("://")).collect();
    match objects.first() {
        None => Ok(InputStore::Disk),
        Some(object) if objects.len() < names.len() => {
            Err(Error::Input(format!("{object}: inputs on disks and in object stores cannot be mixed")))
        }
        #[cfg(feature = "object-store")]
        Some(_) => Ok(InputStore::Object(crate::object::Objects::new()?)),
        #[cfg(not(feature = "object-store"))]
        Some(object) => Err(unsupported(object)),
    }
}

#[cfg(not(feature = "object-store"))]
fn unsupported(text: &str) -> Error {
    Error::Input(format!(
        "{text}: this build has no object stores; use a release, or build with --features object-store"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_urls_are_told_apart() {
        assert_eq!(Location::parse("out/x").unwrap(), Location::Disk("out/x".into()));
        let object = |bucket: &str, prefix: &str| Location::Object { bucket: bucket.into(), prefix: prefix.into() };
        assert_eq!(Location::parse("s3://b/a/c/").unwrap(), object("b", "a/c"));
        assert_eq!(Location::parse("S3://b").unwrap(), object("b", ""));
        for wrong in ["gs://b/c", "s3://", "s3:///x", "https://host/x"] {
            assert!(Location::parse(wrong).unwrap_err().to_string().contains("s3://"), "{wrong}");
        }
        let mixed = ["a.jsonl".to_string(), "s3://b/c.jsonl".to_string()];
        assert!(open_inputs(&mixed).err().unwrap().to_string().contains("mixed"));
    }
}
