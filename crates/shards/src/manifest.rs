//! The manifest: what a run computes, from what, in which shards. It is written once, by the first
//! process, and never changed. Every other process must want the same.

use crate::error::{Error, Result};
use crate::store::{Created, MAX_READ_BYTES, Store};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use std::time::Duration;

/// Name of the manifest in the output folder.
pub(crate) const FILE: &str = "manifest.json";

/// Format of the manifest.
const FORMAT: u32 = 1;

/// Most shards of a run.
pub const MAX_SHARDS: usize = 1_000_000;

/// What a run computes, from what, in which shards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of this format.
    pub format: u32,
    /// What is computed.
    pub job: Job,
    /// Milliseconds after which a lease without a heartbeat may be taken over.
    pub lease_ms: u64,
    /// Input files, in order.
    pub inputs: Vec<InputFile>,
    /// Shards, in the order of the inputs' rows.
    pub shards: Vec<Shard>,
    /// The columns of the inputs that the outputs keep, in a form of the caller's.
    pub columns: Value,
}

/// A manifest of this or another format.
#[derive(Deserialize)]
struct AnyFormat {
    format: u32,
}

/// What is computed: everything but the input that decides about the bytes of an output.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Version of the program.
    pub version: String,
    /// Name of the command.
    pub task: String,
    /// The model.
    pub model: ModelPin,
    /// Options of the command that decide about the output.
    pub options: Map<String, Value>,
}

/// A model and the exact files that it was loaded from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelPin {
    /// The reference as the user wrote it.
    pub reference: String,
    /// Commit of a hub, or a hash of the files; `None` before the model is found.
    pub revision: Option<String>,
    /// Number format of weights and activations; `None` before the model is loaded.
    pub dtype: Option<String>,
}

/// An input file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InputFile {
    /// Its path or URL, as the first process was given it. Other processes may reach the same file
    /// by another path; its file name must be the same.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Rows.
    pub rows: u64,
    /// What identifies the content.
    pub digest: Digest,
}

/// What identifies the content of an input file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Digest {
    /// The shards have hashes of their parts, which are checked as they are read.
    Parts,
    /// SHA-256 of the footer of a Parquet file, which has the places and statistics of all columns.
    Footer(String),
    /// The ETag of an object.
    Etag(String),
}

/// A part of an input file and the output made from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shard {
    /// Number of the input file.
    pub input: usize,
    /// Number of the part's first row in the file, from 1; for JSONL its line number.
    pub first_row: u64,
    /// Rows. Blank lines are none.
    pub rows: u64,
    /// Where the rows are.
    pub part: Part,
}

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Bytes of a JSONL file, which begin and end between lines.
    Bytes {
        /// First byte.
        start: u64,
        /// The byte after the last one.
        end: u64,
        /// SHA-256 of these bytes, in hex.
        sha256: String,
    },
    /// Row groups of a Parquet file.
    RowGroups {
        /// First group.
        start: usize,
        /// The group after the last one.
        end: usize,
    },
}

/// Name of a shard: its number and the stem of its input's name, for file names.
fn shard_name(number: usize, input: &str) -> String {
    let file = file_name(input);
    let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c } else { '_' };
    let stem: String = stem.chars().map(plain).take(64).collect();
    format!("{number:05}-{stem}")
}

/// SHA-256 of a Parquet file's footer, in hex.
pub fn footer_digest(footer: &[u8]) -> Digest {
    Digest::Footer(hex(&Sha256::digest(footer)))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The last part of a path or URL.
fn file_name(name: &str) -> &str {
    name.rsplit(['/', '\\']).next().unwrap_or(name)
}

impl Manifest {
    /// A manifest of these shards.
    pub fn new(job: Job, lease: Duration, inputs: Vec<InputFile>, shards: Vec<Shard>) -> Manifest {
        let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        Manifest { format: FORMAT, job, lease_ms, inputs, shards, columns: Value::Null }
    }

    /// Reads the manifest of a run, if it has begun.
    pub fn read(store: &dyn Store) -> Result<Option<Manifest>> {
        let Some(content) = store.read(FILE)? else { return Ok(None) };
        let damaged = |why: String| Error::Damaged { at: store.display(FILE), why };
        let wrong = |e: serde_json::Error| damaged(format!("not a manifest: {e}"));
        let AnyFormat { format } = serde_json::from_slice(&content).map_err(wrong)?;
        if format != FORMAT {
            return Err(damaged(format!("its format is {format}, this program reads {FORMAT}")));
        }
        let manifest: Manifest = serde_json::from_slice(&content).map_err(wrong)?;
        manifest.check().map_err(damaged)?;
        Ok(Some(manifest))
    }

    /// Writes the manifest, unless another process has written one meanwhile. Returns the one that
    /// is there.
    pub fn begin(self, store: &dyn Store) -> Result<Manifest> {
        self.check().map_err(Error::Input)?;
        let content = serde_json::to_vec(&self).map_err(|e| Error::Input(e.to_string()))?;
        if content.len() as u64 > MAX_READ_BYTES {
            let (shards, most) = (self.shards.len(), MAX_READ_BYTES >> 20);
            return Err(Error::Input(format!(
                "the manifest of {shards} shards is larger than {most} MiB; use a larger --shard-rows"
            )));
        }
        match store.create(FILE, &content)? {
            Created::New => Ok(self),
            Created::Exists => {
                let other = Manifest::read(store)?.ok_or_else(|| Error::Damaged {
                    at: store.display(FILE),
                    why: "it was removed while the run began".into(),
                })?;
                other.check_job(&self.job, store)?;
                other.check_inputs(&self.inputs, store)?;
                if other.shards != self.shards || other.columns != self.columns {
                    let differences = vec!["shards of the same inputs: another --shard-rows or --keep".into()];
                    return Err(Error::Differs { at: store.display(""), differences });
                }
                Ok(other)
            }
        }
    }

    /// Time after which a lease without a heartbeat may be taken over.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    /// Rows of all inputs.
    pub fn rows(&self) -> u64 {
        self.shards.iter().map(|shard| shard.rows).sum()
    }

    /// Name of a shard, for its files.
    pub fn shard_name(&self, number: usize) -> String {
        let input = self.shards.get(number).and_then(|shard| self.inputs.get(shard.input));
        shard_name(number, input.map_or("", |input| &input.name))
    }

    /// Names of a shard's output and of its bad rows.
    pub(crate) fn output_names(&self, number: usize) -> (String, String) {
        let name = self.shard_name(number);
        (format!("{}/{name}.parquet", crate::record::DATA), format!("{}/{name}.jsonl", crate::record::BAD))
    }

    /// Refuses a job that would compute something else. What `wanted` does not know yet is not
    /// compared.
    pub fn check_job(&self, wanted: &Job, store: &dyn Store) -> Result<()> {
        let (there, here) = (fields(&self.job), fields(wanted));
        let missing = Value::Null;
        let mut names: Vec<&String> = there.keys().chain(here.keys()).collect();
        names.sort();
        names.dedup();
        let mut differences = Vec::new();
        for name in names {
            let (a, b) = (there.get(name).unwrap_or(&missing), here.get(name).unwrap_or(&missing));
            let is_unknown = b.is_null() && matches!(name.as_str(), "revision" | "dtype");
            if a != b && !is_unknown {
                differences.push(format!("{name}: there {}, here {}", shown(a), shown(b)));
            }
        }
        match differences.is_empty() {
            true => Ok(()),
            false => Err(Error::Differs { at: store.display(""), differences }),
        }
    }

    /// Refuses other inputs, as far as that can be told without reading them.
    pub fn check_inputs(&self, wanted: &[InputFile], store: &dyn Store) -> Result<()> {
        let mut differences = Vec::new();
        if self.inputs.len() != wanted.len() {
            differences.push(format!("input files: there {}, here {}", self.inputs.len(), wanted.len()));
        }
        for (a, b) in self.inputs.iter().zip(wanted) {
            if file_name(&a.name) != file_name(&b.name) {
                differences.push(format!("input: there {}, here {}", a.name, b.name));
            } else if a.size != b.size {
                differences.push(format!("{}: there {} bytes, here {}", b.name, a.size, b.size));
            } else if a.digest != b.digest {
                differences.push(format!("{}: another content of the same size", b.name));
            }
            if differences.len() == 5 {
                break;
            }
        }
        match differences.is_empty() {
            true => Ok(()),
            false => Err(Error::Differs { at: store.display(""), differences }),
        }
    }

    /// Checks what the program relies on.
    fn check(&self) -> Result<(), String> {
        if self.shards.len() > MAX_SHARDS {
            let why = format!("{} shards, more than {MAX_SHARDS}; use a larger --shard-rows", self.shards.len());
            return Err(why);
        }
        if self.lease_ms == 0 {
            return Err("a lease of no time".into());
        }
        let mut all_rows = 0u64;
        for (number, shard) in self.shards.iter().enumerate() {
            let wrong = |why: &str| format!("shard {number}: {why}");
            let input = self.inputs.get(shard.input).ok_or_else(|| wrong("its input is not listed"))?;
            if shard.first_row == 0 {
                return Err(wrong("rows are counted from 1"));
            }
            all_rows = shard
                .first_row
                .checked_add(shard.rows)
                .and_then(|_| all_rows.checked_add(shard.rows))
                .ok_or_else(|| wrong("too many rows"))?;
            match &shard.part {
                Part::Bytes { start, end, .. } if start > end || *end > input.size => {
                    return Err(wrong("its bytes are not in the file"));
                }
                Part::Bytes { sha256, .. } if sha256.len() != 64 || !sha256.bytes().all(|c| c.is_ascii_hexdigit()) => {
                    return Err(wrong("its hash is not a SHA-256"));
                }
                Part::RowGroups { start, end } if start > end => return Err(wrong("its row groups are not in order")),
                Part::Bytes { .. } | Part::RowGroups { .. } => {}
            }
        }
        Ok(())
    }
}

/// The fields of a job by the names that users know.
fn fields(job: &Job) -> Map<String, Value> {
    let ModelPin { reference, revision, dtype } = &job.model;
    let mut all = job.options.clone();
    all.insert("command".into(), job.task.as_str().into());
    all.insert("model".into(), reference.as_str().into());
    all.insert("revision".into(), revision.as_deref().into());
    all.insert("dtype".into(), dtype.as_deref().into());
    all.insert("version of sconce".into(), job.version.as_str().into());
    all
}

fn shown(value: &Value) -> String {
    if value.is_null() { "the default".into() } else { value.to_string() }
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
