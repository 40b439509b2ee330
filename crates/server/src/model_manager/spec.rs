//! Specification of a model to serve.

use sconce_engine::{LoadOptions, Task};
use std::path::Path;

/// Where a model comes from, its names in requests, and its load options.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    /// A directory, a `.gguf` file, a hub id, `pip:NAME`, or a short name.
    pub reference: String,
    /// The model's name in requests.
    pub id: String,
    /// Other names that requests may use.
    pub aliases: Vec<String>,
    /// The task to load it for; `None` detects the task from its files.
    pub task: Option<Task>,
    /// Load options.
    pub load: LoadOptions,
}

impl ModelSpec {
    /// Parses `MODEL` or `NAME=MODEL`. Without a name, the id is the hub id or the last component
    /// of the path.
    pub fn new(given: &str, load: LoadOptions) -> ModelSpec {
        let word = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let (name, reference) = match given.split_once('=') {
            Some((name, rest)) if !name.is_empty() && name.chars().all(word) && !Path::new(given).exists() => {
                (Some(name), rest)
            }
            _ => (None, given),
        };
        let path = Path::new(reference);
        let last = path.file_name().and_then(|n| n.to_str()).filter(|_| path.exists());
        let id = name.or(last.map(|l| l.strip_suffix(".gguf").unwrap_or(l))).unwrap_or(reference);
        ModelSpec {
            reference: reference.to_owned(),
            id: id.to_owned(),
            aliases: vec![reference.to_owned()],
            task: None,
            load,
        }
    }

    /// Whether `name` is the id or an alias.
    pub fn is_called(&self, name: &str) -> bool {
        self.id == name || self.aliases.iter().any(|alias| alias == name)
    }
}
