//! What a stored prefix depends on, as a hash.

use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Changes with the layout of the files.
const VERSION: &[u8] = b"sconce prompt cache 1\0";
/// The most files of a model.
const MAX_FILES: usize = 10_000;
/// How deep the files of a model may lie in its folder.
const MAX_DEPTH: usize = 3;

/// The hash of a prefix and of the model that computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// The key of the prefix that ends with `tokens` after the prefix of this key.
    pub(crate) fn then(&self, tokens: &[u32]) -> Key {
        let mut hash = Sha256::new();
        hash.update(self.0);
        tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        Key(hash.finalize().into())
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// In hexadecimal.
    pub(super) fn hex(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

/// The key of the empty prefix of the model in `root`. `numerics` names everything else that its
/// keys and values depend on: device, kernels, formats.
///
/// The content of weights would take long to hash. Path, size and time tell files apart, and in the
/// hub's cache the path is a hash of the content already.
pub(crate) fn hash_model(root: &Path, numerics: &str) -> io::Result<Key> {
    let mut hash = Sha256::new();
    hash.update(VERSION);
    for part in [env!("CARGO_PKG_VERSION"), std::env::consts::ARCH, numerics] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    for path in model_files(root)? {
        let path = fs::canonicalize(path)?;
        let about = fs::metadata(&path)?;
        let since = about.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = path.as_os_str().as_encoded_bytes();
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
        hash.update(about.len().to_le_bytes());
        hash.update(since.as_nanos().to_le_bytes());
    }
    Ok(Key(hash.finalize().into()))
}

/// The files of a model, in one order.
fn model_files(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    match root.is_dir() {
        true => collect(root, MAX_DEPTH, &mut files)?,
        false => {
            files.push(root.to_owned());
            files.extend(other_parts(root)?);
        }
    }
    files.sort();
    Ok(files)
}

fn collect(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        // Through links: the hub's cache consists of them.
        let Ok(about) = fs::metadata(&path) else { continue };
        if about.is_dir() && depth > 1 {
            collect(&path, depth - 1, files)?;
        } else if about.is_file() {
            files.push(path);
        }
        if files.len() > MAX_FILES {
            let what = format!("{} has more than {MAX_FILES} files, too many for a model", folder.display());
            return Err(io::Error::other(what));
        }
    }
    Ok(())
}

/// The other parts of a GGUF file in several parts: `NAME-00002-of-00003.gguf`.
fn other_parts(file: &Path) -> io::Result<Vec<PathBuf>> {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let base = name.rsplit_once("-of-").and_then(|(part, _)| part.rsplit_once('-')).map(|(base, _)| base);
    let (Some(base), Some(folder)) = (base, file.parent()) else { return Ok(Vec::new()) };
    // The folder of a bare file name is the empty path.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let is_part = |path: &PathBuf| {
        let other = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        other != name && other.starts_with(base) && other.contains("-of-") && other.ends_with(".gguf")
    };
    let mut parts = Vec::new();
    for entry in fs::read_dir(folder)? {
        parts.extend(Some(entry?.path()).filter(is_part));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_depend_on_files_numerics_and_every_token() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("config.json"), "{}").expect("a file");
        let key = |numerics| hash_model(dir.path(), numerics).expect("a key");
        let first = key("cpu f32");
        assert_eq!(key("cpu f32"), first);
        assert_ne!(key("cpu f16"), first);
        fs::write(dir.path().join("model.safetensors"), "w").expect("a file");
        let second = key("cpu f32");
        assert_ne!(second, first);
        fs::write(dir.path().join("model.safetensors"), "ww").expect("a file");
        assert_ne!(key("cpu f32"), second);
        assert_eq!(first.then(&[1, 2]), first.then(&[1, 2]));
        assert_ne!(first.then(&[1, 2]), first.then(&[2, 1]));
        assert_ne!(first.then(&[1]).then(&[2]), first.then(&[1, 2]), "chunks of another length");
        assert_eq!(first.hex().len(), 64);
    }

    #[test]
    fn all_parts_of_a_gguf_file_count() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = |name: &str| dir.path().join(name);
        for name in ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "other.gguf"] {
            fs::write(path(name), "x").expect("a file");
        }
        let names = |root: &str| model_files(&path(root)).expect("files").len();
        assert_eq!((names("m-00001-of-00002.gguf"), names("other.gguf")), (2, 1));
    }
}
