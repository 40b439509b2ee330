//! What identifies the content of a model's files, so that results of the same model can be told
//! from those of another.

use crate::error::{HubError, disk};
use crate::{Files, Origin};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

impl Files {
    /// The commit of files from the hub; of others a hash of names, sizes and samples of the
    /// content. Reading all of a large model would take longer than loading it.
    pub fn revision(&self) -> Result<String, HubError> {
        if let Origin::HubCache { commit, .. } | Origin::Hub { commit, .. } = &self.origin {
            return Ok(commit.clone());
        }
        let mut names = Vec::new();
        match &self.gguf {
            Some(parts) => {
                for part in parts {
                    let name = part.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    names.push((name, part.clone()));
                }
            }
            None => list(&self.dir, "", 0, &mut names)?,
        }
        names.sort();
        let mut hash = Sha256::new();
        for (name, path) in names {
            hash.update(format!("{name}\n"));
            add_samples(&path, &mut hash).map_err(disk("read", &path))?;
        }
        Ok(hash.finalize().as_slice()[..16].iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// Adds a file's size and its content to a hash, or blocks spread over it.
fn add_samples(path: &Path, hash: &mut Sha256) -> std::io::Result<()> {
    const BLOCK: u64 = 4 << 10;
    const BLOCKS: u64 = 256;
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    hash.update(format!("{size}\n"));
    let mut block = Vec::new();
    if size <= BLOCKS * BLOCK {
        (&mut file).take(BLOCKS * BLOCK).read_to_end(&mut block)?;
        hash.update(&block);
        return Ok(());
    }
    for i in 0..BLOCKS {
        // From the first block to the last one.
        file.seek(SeekFrom::Start((size - BLOCK) / (BLOCKS - 1) * i))?;
        block.clear();
        (&mut file).take(BLOCK).read_to_end(&mut block)?;
        hash.update(&block);
    }
    Ok(())
}

/// The names and paths of the files that decide about embeddings: weights, configuration,
/// tokenizer. Other files, such as a README, may change.
fn list(dir: &Path, prefix: &str, depth: usize, names: &mut Vec<(String, PathBuf)>) -> Result<(), HubError> {
    const ENDINGS: [&str; 6] = [".safetensors", ".bin", ".json", ".model", ".onnx", ".txt"];
    for entry in std::fs::read_dir(dir).map_err(disk("read", dir))? {
        let entry = entry.map_err(disk("read", dir))?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        // Follows links: the hub's cache keeps files elsewhere.
        let metadata = std::fs::metadata(entry.path()).map_err(disk("read", &entry.path()))?;
        if metadata.is_dir() && depth < 2 {
            list(&entry.path(), &format!("{name}/"), depth + 1, names)?;
        } else if metadata.is_file() && ENDINGS.iter().any(|ending| name.ends_with(ending)) && names.len() < 10_000 {
            names.push((name, entry.path()));
        }
    }
    Ok(())
}
