//! Records: small JSON files, replaced as a whole.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

/// The largest record.
const MAX_BYTES: u64 = 1 << 20;

/// Whether a record must survive a loss of power, or only the end of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Survives a loss of power.
    Power,
    /// Survives the end of the process, however it ends. Much faster.
    #[cfg_attr(not(feature = "index"), allow(dead_code, reason = "only vector stores choose"))]
    Process,
}

/// Writes a record. It is there as a whole, or as it was before.
pub(crate) fn write<T: Serialize>(path: &Path, record: &T, durability: Durability) -> io::Result<()> {
    let json = serde_json::to_vec(record)?;
    if json.len() as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("a record of {} bytes is larger than {MAX_BYTES}", json.len())));
    }
    // One thread writes a record at a time: its owner holds a lock.
    let temporary = path.with_extension("tmp");
    let mut file = File::create(&temporary)?;
    file.write_all(&json)?;
    if durability == Durability::Power {
        file.sync_all()?;
    }
    drop(file);
    std::fs::rename(&temporary, path)
}

/// Reads a record.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let mut json = Vec::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut json)?;
    if json.len() as u64 > MAX_BYTES {
        return Err(io::Error::other("the record is too large"));
    }
    Ok(serde_json::from_slice(&json)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_replaced_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        write(&path, &vec![1, 2], Durability::Process).unwrap();
        write(&path, &vec![3], Durability::Power).unwrap();
        assert_eq!(read::<Vec<u32>>(&path).unwrap(), [3]);
        assert!(write(&path, &"x".repeat(MAX_BYTES as usize), Durability::Process).is_err());
        assert_eq!(read::<Vec<u32>>(&path).unwrap(), [3]);
        std::fs::write(&path, vec![b' '; MAX_BYTES as usize + 1]).unwrap();
        assert!(read::<Vec<u32>>(&path).unwrap_err().to_string().contains("too large"));
    }
}
