//! A model as somebody asks for it.

use sconce_engine::{LoadOptions, Task};
use std::path::Path;

/// Which model, what it is called, and how it is loaded.
#[derive(Clone, Debug)]
pub struct ModelSpec {
    /// Where it comes from: a directory, a `.gguf` file, a hub id, `pip:NAME`, a short name.
    pub reference: String,
    /// Its name in requests.
    pub id: String,
    /// Other names that it answers to.
    pub aliases: Vec<String>,
    /// What it is to do; `None`: what its files are made for.
    pub task: Option<Task>,
    /// How it is loaded.
    pub load: LoadOptions,
}

impl ModelSpec {
    /// `MODEL` or `NAME=MODEL`. Without a name, a hub id is its own, and a path is called by its last part.
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

    /// Whether it answers to `name`.
    pub fn is_called(&self, name: &str) -> bool {
        self.id == name || self.aliases.iter().any(|alias| alias == name)
    }
}
