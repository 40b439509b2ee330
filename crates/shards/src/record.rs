//! What is recorded about a finished shard.

use crate::error::{Error, Result};
use crate::lease::Holder;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Folders of a run's files.
pub(crate) const DATA: &str = "data";
pub(crate) const BAD: &str = "bad";
pub(crate) const DONE: &str = "done";
pub(crate) const REFUSED: &str = "refused";
/// Outputs and small files that are being written.
pub(crate) const TEMPORARY: &str = "tmp";

/// A shard's output, complete in a local file, and what it holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// The local file.
    pub file: PathBuf,
    /// Its bytes.
    pub bytes: u64,
    /// SHA-256 of its content, in hex.
    pub sha256: String,
    /// Rows with a result.
    pub rows: u64,
    /// Rows without one.
    pub bad: u64,
    /// Tokens of all rows.
    pub tokens: u64,
    /// Rows whose text was truncated.
    pub truncated: u64,
    /// The side file with the rows that have no result, and the reasons; empty if there are none.
    pub bad_rows: String,
}

/// The record that makes a shard done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DoneRecord {
    /// Rows with a result.
    pub rows: u64,
    /// Rows without one; the side file has the reasons.
    pub bad: u64,
    /// Tokens of all rows.
    pub tokens: u64,
    /// Rows whose text was truncated.
    pub truncated: u64,
    /// Bytes of the output.
    pub bytes: u64,
    /// SHA-256 of the output, in hex.
    pub sha256: String,
    /// Generation of the lease under which it was published.
    pub generation: u32,
    /// How many processes have begun to compute it.
    pub attempts: u32,
    /// Who published it.
    pub holder: Holder,
}

/// Name of a shard's record.
pub(crate) fn done_name(shard: usize) -> String {
    format!("{DONE}/{shard:05}.json")
}

/// Shard of a file in the folder of records.
pub(crate) fn parse_done(name: &str) -> Option<usize> {
    name.strip_suffix(".json")?.parse().ok()
}

pub(crate) fn to_json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|e| Error::Input(e.to_string()))
}
