//! The scan of vector codes on synthetic vectors: `cargo bench -p sconce-index --bench index_scan
//! [-- rows=1000000 dimensions=384 threads=2 queries=500 clusters=5000]`.
//!
//! Prints how long a segment takes to write and to open, and for each filter the median and the
//! 99th percentile of a scan and the recall of its candidates, after exact scoring, against an
//! exact search. Vectors are generated from their number, so the exact search needs no memory.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use sconce_index::codes::{ScanOptions, Segment, SegmentWriter, instruction_set, scan};
use sconce_index::{Filter, Metadata, Value};
use sconce_testkit::{Rng, mix};

type Failure = Box<dyn std::error::Error>;

/// The filters, with the percentage of rows that pass.
const FILTERS: [(&str, u64); 4] = [("percent<100", 100), ("percent<50", 50), ("percent<10", 10), ("percent<1", 1)];
/// Queries whose exact results are computed.
const EXACT: usize = 50;
const K: usize = 10;

fn main() -> Result<(), Failure> {
    let options: HashMap<String, usize> = std::env::args().filter_map(option).collect();
    let option = |name: &str, default: usize| options.get(name).copied().unwrap_or(default);
    let (rows, dimensions) = (option("rows", 1_000_000) as u64, option("dimensions", 384));
    let (threads, queries) = (option("threads", 2), option("queries", 500));
    let vectors = Vectors::new(dimensions, option("clusters", 5_000));
    println!("{rows} rows of {dimensions} dimensions, {threads} threads, {}", instruction_set());

    let queries: Vec<Vec<f32>> = (0..queries as u64).map(|i| vectors.get(u64::MAX - i)).collect();
    let mut exact = vec![[const { Vec::new() }; FILTERS.len()]; EXACT.min(queries.len())];
    let dir = tempfile::tempdir()?;
    let mut writer = SegmentWriter::create(dir.path(), dimensions)?;
    for row in 0..rows {
        let vector = vectors.get(row);
        for (query, best) in queries.iter().zip(&mut exact) {
            let score = dot(query, &vector);
            for ((_, percent), best) in FILTERS.iter().zip(best) {
                if row % 100 < *percent {
                    keep_best(best, (score, row));
                }
            }
        }
        writer.push(row as i64, &vector, &Metadata::from([("percent".into(), Value::Integer((row % 100) as i64))]))?;
    }
    let start = Instant::now();
    let info = writer.finish()?;
    println!("finishing the segment {:.2} s, {} MB", start.elapsed().as_secs_f64(), megabytes(dir.path(), &info.name)?);
    let start = Instant::now();
    let segments = [Arc::new(Segment::open(dir.path(), &info)?)];
    println!("opening it {:.2} ms", start.elapsed().as_secs_f64() * 1e3);

    println!("{:12} {:>10} {:>10} {:>10} {:>10}", "filter", "columns", "median", "p99", "recall@10");
    for (i, (filter, percent)) in FILTERS.into_iter().enumerate() {
        let filter = Filter::parse(filter)?;
        let start = Instant::now();
        let allowed = (percent < 100).then(|| vec![segments[0].rows_matching(&filter)]);
        let columns = start.elapsed().as_secs_f64() * 1e3;
        let options = ScanOptions { k: K, threads, allowed };
        let (mut times, mut found, mut expected) = (Vec::new(), 0, 0);
        // The first scans map the file's pages.
        for query in queries.iter().take(20) {
            scan(&segments, query, &options)?;
        }
        for (q, query) in queries.iter().enumerate() {
            let start = Instant::now();
            let candidates = scan(&segments, query, &options)?;
            times.push(start.elapsed());
            let Some(best) = exact.get(q).map(|best| &best[i]) else { continue };
            let mut rescored = Vec::new();
            for candidate in candidates {
                let row = candidate.chunk as u64;
                keep_best(&mut rescored, (dot(query, &vectors.get(row)), row));
            }
            found += best.iter().filter(|(_, row)| rescored.iter().any(|(_, found)| found == row)).count();
            expected += best.len();
        }
        times.sort_unstable();
        let (median, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
        let (median, p99) = (median.as_secs_f64() * 1e3, p99.as_secs_f64() * 1e3);
        let recall = found as f64 / expected.max(1) as f64;
        println!("{:>11}% {columns:>7.2} ms {median:>7.2} ms {p99:>7.2} ms {recall:>10.4}", percent);
    }
    if let Some(resident) = resident_megabytes() {
        println!("resident {resident} MB, the mapped file included");
    }
    Ok(())
}

fn option(argument: String) -> Option<(String, usize)> {
    let (name, value) = argument.split_once('=')?;
    Some((name.into(), value.parse().ok()?))
}

/// Keeps the best ten.
fn keep_best(best: &mut Vec<(f32, u64)>, entry: (f32, u64)) {
    if best.len() < K || best.last().is_some_and(|last| entry.0 > last.0) {
        let at = best.partition_point(|other| other.0 >= entry.0);
        best.insert(at, entry);
        best.truncate(K);
    }
}

/// Vectors of length 1 in clusters, as embeddings of texts are: a common direction, a topic, and
/// the text itself. The parts have falling weights by dimension, so that the vectors have fewer
/// effective dimensions than numbers.
struct Vectors {
    common: Vec<f32>,
    topics: Vec<Vec<f32>>,
    weights: Vec<f32>,
}

impl Vectors {
    fn new(dimensions: usize, topics: usize) -> Vectors {
        let mut rng = Rng::new(1);
        let weights: Vec<f32> = (0..dimensions).map(|d| 1.0 / (1.0 + 3.0 * d as f32 / dimensions as f32)).collect();
        let mut normals = || (0..dimensions).map(|_| normal(&mut rng)).collect::<Vec<f32>>();
        let common = normals();
        Vectors { common, topics: (0..topics).map(|_| normals()).collect(), weights }
    }

    fn get(&self, number: u64) -> Vec<f32> {
        let mut rng = Rng::new(mix(2, number));
        let topic = &self.topics[rng.below(self.topics.len())];
        let own =
            |((common, topic), weight): ((&f32, &f32), &f32)| (0.5 * common + topic + 0.8 * normal(&mut rng)) * weight;
        let mut vector: Vec<f32> = self.common.iter().zip(topic).zip(&self.weights).map(own).collect();
        let length = dot(&vector, &vector).sqrt();
        vector.iter_mut().for_each(|x| *x /= length);
        vector
    }
}

/// A number with nearly the normal distribution: the sum of four even ones.
fn normal(rng: &mut Rng) -> f32 {
    let bits = rng.next_u64();
    let sum: i32 = (0..4).map(|i| (bits >> (16 * i)) as u16 as i32).sum();
    (sum - 131_070) as f32 / 37_837.0
}

/// In eight sums, so that the compiler can use vectors.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; 8];
    let (a, rest_a) = a.as_chunks::<8>();
    let (b, rest_b) = b.as_chunks::<8>();
    for (a, b) in a.iter().zip(b) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    sums.iter().sum::<f32>() + rest_a.iter().zip(rest_b).map(|(a, b)| a * b).sum::<f32>()
}

fn megabytes(dir: &Path, name: &str) -> Result<u64, Failure> {
    Ok(std::fs::metadata(dir.join(name))?.len() >> 20)
}

/// The resident memory of this process (Linux only).
fn resident_megabytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? >> 10)
}
