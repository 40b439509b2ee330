//! A model without weights, and an index in a temporary folder.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rusqlite::types::ValueRef;
use sconce_index::read::{Parser, ParserCommand};
use sconce_index::{
    Control, Embedder, Embedding, EmbeddingKind, Error, Hit, Index, Mode, ModelIdentity, OpenOptions, Query, Report,
    Result, Tools, Update,
};
use sconce_testkit::Rng;

pub(crate) const DIMENSIONS: usize = 64;

/// Embeds a text as the sum of a random vector per word.
pub(crate) struct Fake {
    identity: ModelIdentity,
    /// How many passages were embedded.
    pub embedded: AtomicU64,
    /// How long a batch takes at least.
    pub delay: Duration,
}

impl Fake {
    pub(crate) fn new(kind: EmbeddingKind) -> Fake {
        let identity = ModelIdentity {
            name: "fake".into(),
            revision: "1".into(),
            kind,
            dimensions: if kind == EmbeddingKind::Sparse { 0 } else { DIMENSIONS },
            passage_prompt: String::new(),
            query_prompt: String::new(),
        };
        Fake { identity, embedded: AtomicU64::new(0), delay: Duration::ZERO }
    }

    pub(crate) fn dense() -> Fake {
        Fake::new(EmbeddingKind::Dense)
    }

    pub(crate) fn revision(mut self, revision: &str) -> Fake {
        self.identity.revision = revision.into();
        self
    }

    pub(crate) fn slow(mut self, delay: Duration) -> Fake {
        self.delay = delay;
        self
    }

    pub(crate) fn embed(&self, text: &str) -> Embedding {
        let words = words(text);
        match self.identity.kind {
            EmbeddingKind::Dense => {
                let mut sum = vec![0.0; DIMENSIONS];
                for word in &words {
                    sum.iter_mut().zip(word_vector(word)).for_each(|(sum, value)| *sum += value);
                }
                Embedding::Dense(unit(sum))
            }
            EmbeddingKind::Sparse => {
                let mut weights: BTreeMap<u32, f32> = BTreeMap::new();
                words.iter().for_each(|word| *weights.entry(hash(word) as u32 % 30_000).or_default() += 1.0);
                Embedding::Sparse(weights.into_iter().map(|(id, count)| (id, 1.0 + count.ln())).collect())
            }
            EmbeddingKind::MultiVector => {
                let values: Vec<f32> = words.iter().flat_map(|word| unit(word_vector(word))).collect();
                Embedding::MultiVector { rows: words.len(), values }
            }
        }
    }
}

pub(crate) fn words(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

fn hash(word: &str) -> u64 {
    word.bytes().fold(17, |hash, byte| sconce_testkit::mix(hash, u64::from(byte)))
}

fn word_vector(word: &str) -> Vec<f32> {
    let mut rng = Rng::new(hash(word));
    (0..DIMENSIONS).map(|_| rng.unit_f32()).collect()
}

fn unit(values: Vec<f32>) -> Vec<f32> {
    let length = values.iter().map(|value| value * value).sum::<f32>().sqrt().max(1e-9);
    values.into_iter().map(|value| value / length).collect()
}

impl Embedder for Fake {
    fn identity(&self) -> &ModelIdentity {
        &self.identity
    }
    fn count_tokens(&self, text: &str) -> usize {
        words(text).len()
    }
    fn max_tokens(&self) -> usize {
        100
    }
    fn embed_passages(&self, texts: &[&str]) -> Result<Vec<Embedding>> {
        if texts.iter().any(|text| text.contains("poison")) {
            return Err(Error::Input("text 1: poison".into()));
        }
        std::thread::sleep(self.delay);
        self.embedded.fetch_add(texts.len() as u64, Ordering::Relaxed);
        Ok(texts.iter().map(|text| self.embed(text)).collect())
    }
    fn embed_query(&self, text: &str) -> Result<Embedding> {
        Ok(self.embed(text))
    }
}

/// A folder with documents, and an index beside it.
pub(crate) struct Corpus {
    pub dir: tempfile::TempDir,
}

impl Corpus {
    pub(crate) fn new(files: &[(&str, &str)]) -> Corpus {
        let corpus = Corpus { dir: tempfile::tempdir().unwrap() };
        files.iter().for_each(|(name, text)| corpus.write(name, text));
        corpus
    }

    /// A corpus of many files of random words.
    pub(crate) fn random(files: usize, words: usize) -> Corpus {
        let corpus = Corpus::new(&[]);
        for i in 0..files {
            corpus.write(&format!("folder{}/file{i}.txt", i % 7), &random_text(i as u64, words));
        }
        corpus
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.dir.path().join("test.sconce")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(crate) fn open(&self) -> Index {
        Index::open(&self.database(), &OpenOptions { create: true, read_only: false }).unwrap()
    }

    pub(crate) fn update(&self) -> Update {
        std::fs::create_dir_all(self.root()).unwrap();
        Update::new(vec![self.root()])
    }

    pub(crate) fn index(&self, embedder: &Fake) -> Report {
        run(&self.open(), &self.update(), embedder).unwrap()
    }
}

pub(crate) fn random_text(seed: u64, count: usize) -> String {
    let mut rng = Rng::new(seed ^ 0x5eed);
    let mut text = String::new();
    for i in 0..count {
        text.push_str(&format!("w{}", rng.below(500)));
        text.push_str(if i % 60 == 59 { "\n\n" } else { " " });
    }
    text
}

/// Plain text needs no child process.
pub(crate) fn parser() -> Parser {
    Parser::new(ParserCommand { program: "no-parser".into(), arguments: Vec::new() })
}

pub(crate) fn run(index: &Index, update: &Update, embedder: &Fake) -> Result<Report> {
    let cancel = AtomicBool::new(false);
    let control = Control { progress: &mut |_| {}, cancel: &cancel };
    index.update(update, &Tools { embedder, parser: &parser() }, control)
}

pub(crate) fn search(index: &Index, mode: Mode, text: &str, embedder: &Fake) -> Vec<Hit> {
    index.search(&Query { mode, ..Query::new(text) }, Some(embedder), None).unwrap()
}

pub(crate) fn names(hits: &[Hit]) -> Vec<String> {
    let name = |hit: &Hit| Path::new(&hit.path).file_name().unwrap().to_string_lossy().into_owned();
    hits.iter().map(name).collect()
}

/// Everything that searches can see, without ids: equal for equal indexes.
pub(crate) fn content(database: &Path) -> Vec<String> {
    let connection = rusqlite::Connection::open(database).unwrap();
    let mut rows = Vec::new();
    let sql =
        "SELECT f.path, f.state, f.hash, d.row, d.text, d.metadata, c.ordinal, c.start, c.stop, c.heading, c.hash,
               (SELECT vector FROM dense WHERE chunk = c.id), (SELECT vector FROM sparse WHERE chunk = c.id),
               (SELECT vectors FROM multi WHERE chunk = c.id),
               (SELECT count(*) FROM sparse_terms WHERE chunk = c.id),
               (SELECT count(*) FROM full_text WHERE rowid = c.id)
               FROM files f LEFT JOIN documents d ON d.file = f.id LEFT JOIN chunks c ON c.document = d.id";
    let mut find = connection.prepare(sql).unwrap();
    let mut found = find.query([]).unwrap();
    while let Some(row) = found.next().unwrap() {
        rows.push((0..16).map(|i| short(row.get_ref(i).unwrap())).collect::<String>());
    }
    rows.sort();
    for table in ["dense", "sparse", "multi", "chunks", "documents", "pending"] {
        let count = format!("SELECT count(*) FROM {table}");
        rows.push(format!("{table} {}", connection.query_row(&count, [], |row| row.get::<_, i64>(0)).unwrap()));
    }
    let postings: i64 = connection.query_row("SELECT count(*) FROM sparse_terms", [], |row| row.get(0)).unwrap();
    rows.push(format!("postings {postings}"));
    let orphans: i64 = connection
        .query_row("SELECT count(*) FROM deleted WHERE chunk IN (SELECT id FROM chunks)", [], |row| row.get(0))
        .unwrap();
    assert_eq!(orphans, 0, "chunks that exist count as deleted");
    rows
}

/// A value as a text; long ones as their hash, because each chunk's row has its document's text.
fn short(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) if bytes.len() > 64 => {
            let mut hasher = DefaultHasher::new();
            bytes.hash(&mut hasher);
            format!("{} bytes, {:x}|", bytes.len(), hasher.finish())
        }
        other => format!("{other:?}|"),
    }
}
