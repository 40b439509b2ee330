//! Searches of an index with given vectors, through its public interface: `cargo bench -p
//! sconce-index --bench index_search -- build FOLDER DATABASE`, then `… -- search FOLDER DATABASE
//! [threads=2] [warm=100]`.
//!
//! FOLDER has sentences.txt, vectors.npy, buckets.npy and queries.npy (benches/index/million.py).
//! `build` adds each sentence as a document; no model runs, its vector is that of the file. `search`
//! opens the index for reading only, and searches with the vector of each query, without a filter
//! and with filters that pass 1, 10 and 50 of 100 sentences. Both print one line of JSON, which
//! benches/index/peers.py reads: it knows the exact results.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use sconce_index::{
    Embedder, Embedding, EmbeddingKind, Error, Filter, Index, Kind, Layout, Metadata, Mode, ModelIdentity, NewDocument,
    OpenOptions, Query, Value,
};
use serde_json::{Value as Json, json};

type Failure = Box<dyn std::error::Error>;

/// The filters, with the percentage of sentences that pass.
const FILTERS: [(&str, u64); 4] = [("bucket<100", 100), ("bucket<50", 50), ("bucket<10", 10), ("bucket<1", 1)];
/// Documents that are added together.
const BATCH: usize = 5_000;
const K: usize = 10;

fn main() -> Result<(), Failure> {
    // Cargo passes `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let (names, options): (Vec<&String>, Vec<&String>) = arguments.iter().partition(|argument| !argument.contains('='));
    let option = |name: &str, default: usize| {
        let given = options.iter().filter_map(|option| option.split_once('=')).find(|(given, _)| *given == name);
        given.map_or(Ok(default), |(_, value)| value.parse())
    };
    let report = match names.iter().map(|name| name.as_str()).collect::<Vec<_>>()[..] {
        ["build", folder, database] => build(Path::new(folder), Path::new(database))?,
        ["search", folder, database] => {
            search(Path::new(folder), Path::new(database), (option("threads", 2)?, option("warm", 100)?))?
        }
        // `cargo bench` without arguments runs all benches.
        _ => {
            eprintln!("usage: index_search build|search FOLDER DATABASE [threads=2] [warm=100]");
            return Ok(());
        }
    };
    println!("{report}");
    Ok(())
}

fn build(folder: &Path, database: &Path) -> Result<Json, Failure> {
    let index = Index::open(database, &OpenOptions { create: true, read_only: false })?;
    let mut vectors = Npy::open(&folder.join("vectors.npy"), "<f4")?;
    let mut buckets = Npy::open(&folder.join("buckets.npy"), "|u1")?;
    let mut sentences = BufReader::new(File::open(folder.join("sentences.txt"))?).lines();
    let embedder = Given::new(vectors.columns);
    let begun = Instant::now();
    let mut row = 0;
    while row < vectors.rows {
        let count = BATCH.min(vectors.rows - row);
        let texts = sentences.by_ref().take(count).collect::<Result<Vec<String>, _>>()?;
        if texts.len() < count {
            return Err(format!("sentences.txt ends after {} of {} lines", row + texts.len(), vectors.rows).into());
        }
        let buckets = buckets.bytes(count)?;
        embedder.set(&texts, vectors.floats(count)?);
        let document = |(i, text): (usize, String)| NewDocument {
            key: (row + i).to_string(),
            title: None,
            kind: Kind::Text,
            text,
            metadata: Metadata::from([("bucket".into(), Value::Integer(buckets[i].into()))]),
            layout: Layout::default(),
        };
        index.add(&texts.into_iter().enumerate().map(document).collect::<Vec<_>>(), &embedder)?;
        row += count;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let status = index.status()?;
    Ok(json!({
        "seconds": seconds,
        "chunks": status.chunks,
        "coded": status.coded,
        "bytes": status.bytes,
        "memory": memory(),
    }))
}

fn search(folder: &Path, database: &Path, (threads, warm): (usize, usize)) -> Result<Json, Failure> {
    let mut queries = Npy::open(&folder.join("queries.npy"), "<f4")?;
    let dimensions = queries.columns;
    let values = queries.floats(queries.rows)?;
    let queries: Vec<&[f32]> = values.chunks_exact(dimensions).collect();
    let begun = Instant::now();
    let index = Index::open(database, &OpenOptions { create: false, read_only: true })?;
    let query = |vector: &[f32], filter: Option<Filter>| Query {
        vector: Some(Embedding::Dense(vector.to_vec())),
        mode: Mode::Dense,
        limit: K,
        filter,
        threads: Some(threads),
        ..Query::new("")
    };
    // The first search opens the files of codes.
    index.search(&query(queries[0], None), None, None)?;
    let open = begun.elapsed().as_secs_f64();
    let mut filters = Vec::new();
    for (name, percent) in FILTERS {
        let filter = (percent < 100).then(|| Filter::parse(name)).transpose()?;
        for vector in queries.iter().take(warm) {
            index.search(&query(vector, filter.clone()), None, None)?;
        }
        let (mut milliseconds, mut found) = (Vec::new(), Vec::new());
        for vector in &queries {
            let query = query(vector, filter.clone());
            let begun = Instant::now();
            let hits = index.search(&query, None, None)?;
            milliseconds.push(begun.elapsed().as_secs_f64() * 1e3);
            found.push(hits.iter().map(|hit| hit.path.parse::<u64>()).collect::<Result<Vec<u64>, _>>()?);
        }
        filters.push(json!({"percent": percent, "milliseconds": milliseconds, "found": found}));
    }
    Ok(json!({"open": open, "filters": filters, "memory": memory()}))
}

/// An embedder that has the embeddings already.
struct Given {
    identity: ModelIdentity,
    batch: Mutex<Batch>,
}

#[derive(Default)]
struct Batch {
    texts: Vec<String>,
    vectors: Vec<f32>,
    /// The first text that was not asked for yet.
    next: usize,
}

impl Given {
    fn new(dimensions: usize) -> Given {
        let identity = ModelIdentity {
            name: "given".into(),
            revision: "1".into(),
            kind: EmbeddingKind::Dense,
            dimensions,
            passage_prompt: String::new(),
            query_prompt: String::new(),
        };
        Given { identity, batch: Mutex::default() }
    }

    fn set(&self, texts: &[String], vectors: Vec<f32>) {
        *self.batch.lock().expect("no panic") = Batch { texts: texts.to_vec(), vectors, next: 0 };
    }
}

impl Embedder for Given {
    fn identity(&self) -> &ModelIdentity {
        &self.identity
    }

    fn count_tokens(&self, text: &str) -> usize {
        text.split_whitespace().count()
    }

    fn max_tokens(&self) -> usize {
        256
    }

    /// The passages are asked for in the order of the documents: each is one chunk.
    fn embed_passages(&self, texts: &[&str]) -> sconce_index::Result<Vec<Embedding>> {
        let mut batch = self.batch.lock().expect("no panic");
        let mut embeddings = Vec::with_capacity(texts.len());
        for text in texts {
            let row = batch.next;
            if batch.texts.get(row).is_none_or(|expected| expected.trim() != text.trim()) {
                return Err(Error::Model(format!("expected the text of row {row} of the batch, got `{text}`")));
            }
            let start = row * self.identity.dimensions;
            embeddings.push(Embedding::Dense(batch.vectors[start..start + self.identity.dimensions].to_vec()));
            batch.next += 1;
        }
        Ok(embeddings)
    }

    fn embed_query(&self, _: &str) -> sconce_index::Result<Embedding> {
        Err(Error::Model("queries have their vectors".into()))
    }
}

/// A NumPy file of one or two dimensions, read row by row.
struct Npy {
    file: BufReader<File>,
    rows: usize,
    columns: usize,
}

impl Npy {
    fn open(path: &Path, dtype: &str) -> Result<Npy, Failure> {
        let wrong = |why: &str| format!("{}: {why}", path.display());
        let file = File::open(path).map_err(|e| wrong(&e.to_string()))?;
        let mut file = BufReader::with_capacity(1 << 20, file);
        let mut start = [0; 10];
        file.read_exact(&mut start)?;
        let mut header = vec![0; usize::from(u16::from_le_bytes([start[8], start[9]]))];
        file.read_exact(&mut header)?;
        let header = String::from_utf8_lossy(&header);
        if !start.starts_with(b"\x93NUMPY\x01") || !header.contains(dtype) || header.contains("'fortran_order': True") {
            return Err(wrong(&format!("expected a NumPy file of {dtype}, has {header}")).into());
        }
        let shape = header.split(['(', ')']).nth(1).ok_or_else(|| wrong("no shape"))?;
        let shape: Vec<usize> = shape.split(',').filter_map(|size| size.trim().parse().ok()).collect();
        match shape[..] {
            [rows] => Ok(Npy { file, rows, columns: 1 }),
            [rows, columns] => Ok(Npy { file, rows, columns }),
            _ => Err(wrong("expected one or two dimensions").into()),
        }
    }

    fn bytes(&mut self, rows: usize) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; rows * self.columns];
        self.file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn floats(&mut self, rows: usize) -> std::io::Result<Vec<f32>> {
        let mut bytes = vec![0; rows * self.columns * 4];
        self.file.read_exact(&mut bytes)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|number| f32::from_le_bytes(*number)).collect())
    }
}

/// The memory of this process in megabytes (Linux only): resident now, of that not backed by a file,
/// and the most it ever was.
fn memory() -> Json {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| -> Option<u64> {
        let line = status.lines().find(|line| line.starts_with(name))?;
        Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? >> 10)
    };
    json!({"resident": field("VmRSS:"), "anonymous": field("RssAnon:"), "peak": field("VmHWM:")})
}
