//! The scan: binary codes of all rows, then int8 codes of the best of them.
//!
//! Threads take chunks of rows in order until none is left, so that a thread that starts late or
//! loses its processor delays nobody. The result does not depend on which thread takes what.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::bitmap::Ones;
use super::kernels::{BLOCK, BitQuery, Int8Query, Isa, Line, bit_bytes, dot, prefetch, score_block};
use super::quantize::{is_in_range, quantize};
use super::top::{Key, Top, keep_best};
use super::{Bitmap, Segment};
use crate::error::{Error, Result};

/// How many rows the binary scan passes to the int8 scan. benches/index_scan.rs prints the recall.
const SHORTLIST: usize = 8_192;
/// The int8 scan takes so few rows alone: it costs no more than the binary scan, and loses less.
const FEW: usize = 32_768;
/// How many rows the int8 scan passes to the caller, per row that the caller wants, and at least.
const CANDIDATES_PER_RESULT: usize = 10;
const CANDIDATES: usize = 100;
/// Blocks of binary codes that a thread takes at once: 16,384 rows.
const BLOCKS_AT_ONCE: usize = 256;
/// How many blocks ahead of its work a thread asks the memory for binary codes. The processor
/// guesses most of them, but stops at the end of each page.
const BLOCKS_AHEAD: usize = 2;
/// Rows of int8 codes that a thread takes at once.
const ROWS_AT_ONCE: usize = 512;
/// How many rows ahead of its work a thread asks the memory for int8 codes.
const ROWS_AHEAD: usize = 8;

/// What a scan looks for.
#[derive(Debug, Clone, Default)]
pub struct ScanOptions {
    /// How many results the caller wants in the end. The scan returns ten times as many
    /// candidates, at least 100.
    pub k: usize,
    /// How many threads to use; 0 is 1.
    pub threads: usize,
    /// For each segment the rows that may be found; `None`: all of them.
    pub allowed: Option<Vec<Bitmap>>,
}

/// A chunk that may be among the results.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The chunk's id.
    pub chunk: i64,
    /// The product with the query, from int8 codes.
    pub score: f32,
    /// How far the product may be from `score`, for vectors of length 1: more than six standard
    /// deviations of what rounding to codes does. About 0.006 for embeddings of text.
    pub error: f32,
}

/// The candidates for a query, the best first.
pub fn scan(segments: &[Arc<Segment>], query: &[f32], options: &ScanOptions) -> Result<Vec<Candidate>> {
    let rows = Rows::new(segments, query, options)?;
    let count = options.k.saturating_mul(CANDIDATES_PER_RESULT).max(CANDIDATES).min(rows.count);
    let shortlist = SHORTLIST.max(count.saturating_mul(4));
    let positions = match rows.count <= FEW.max(shortlist) {
        true => rows.positions(),
        false => rows.shortlist(query, shortlist, options.threads),
    };
    let mut codes = Vec::new();
    let scale = quantize(query, &mut codes);
    let query = Int8Query::new(codes, scale);
    let mut best = rows.score_int8(&query, &positions, options.threads);
    keep_best(&mut best, count);
    best.sort_unstable_by(|a, b| b.cmp(a));
    Ok(best.into_iter().map(|key| rows.candidate(key, query.scale)).collect())
}

/// The rows of all segments. A row's *position* counts the rows of the segments before.
struct Rows<'a> {
    segments: &'a [Arc<Segment>],
    allowed: Option<&'a [Bitmap]>,
    /// Where each segment begins.
    starts: Vec<u32>,
    /// How many rows may be found.
    count: usize,
    isa: Isa,
}

/// Blocks of one segment.
struct Blocks {
    segment: usize,
    range: Range<usize>,
}

impl<'a> Rows<'a> {
    fn new(segments: &'a [Arc<Segment>], query: &[f32], options: &'a ScanOptions) -> Result<Rows<'a>> {
        if !is_in_range(query) {
            return Err(Error::Input("the query's vector has a value that is not a usual number".into()));
        }
        if let Some(segment) = segments.iter().find(|segment| segment.dimensions() != query.len()) {
            let (has, expected) = (query.len(), segment.dimensions());
            return Err(Error::Input(format!("the query's vector has {has} dimensions, the index has {expected}")));
        }
        let allowed = options.allowed.as_deref();
        let fit = |allowed: &[Bitmap]| {
            allowed.len() == segments.len() && allowed.iter().zip(segments).all(|(a, s)| a.rows() == s.rows())
        };
        if !allowed.is_none_or(fit) {
            return Err(Error::Input("the sets of allowed rows are not those of the segments".into()));
        }
        let mut all = 0u32;
        let mut starts = Vec::with_capacity(segments.len());
        for segment in segments {
            starts.push(all);
            let end = u32::try_from(segment.rows()).ok().and_then(|rows| all.checked_add(rows));
            all = end.ok_or_else(|| Error::Input(format!("an index takes at most {} chunks", u32::MAX)))?;
        }
        let count = allowed.map_or(all as usize, |allowed| allowed.iter().map(Bitmap::count).sum());
        Ok(Rows { segments, allowed, starts, count, isa: Isa::best() })
    }

    /// The positions of all rows that may be found.
    fn positions(&self) -> Vec<u32> {
        let of_segment = |(i, start): (usize, &u32)| -> Vec<u32> {
            match self.allowed {
                Some(allowed) => allowed[i].iter().map(|row| start + row as u32).collect(),
                None => (*start..start + self.segments[i].rows() as u32).collect(),
            }
        };
        self.starts.iter().enumerate().flat_map(of_segment).collect()
    }

    /// The positions of the best rows by binary codes, ascending.
    fn shortlist(&self, query: &[f32], count: usize, threads: usize) -> Vec<u32> {
        let tables = BitQuery::new(query);
        let bases: Vec<f32> = self.segments.iter().map(|segment| product(query, segment.mean())).collect();
        let work: Vec<Blocks> = self.segments.iter().enumerate().flat_map(|(i, s)| blocks(i, s.rows())).collect();
        let next = AtomicUsize::new(0);
        let found = run(threads.min(work.len()), || {
            let mut top = Top::new(count);
            while let Some(blocks) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.score_blocks(blocks, &tables, bases[blocks.segment], &mut top);
            }
            top.into_keys()
        });
        let mut keys = found.concat();
        keep_best(&mut keys, count);
        let mut positions: Vec<u32> = keys.into_iter().map(Key::position).collect();
        positions.sort_unstable();
        positions
    }

    fn score_blocks(&self, blocks: &Blocks, tables: &BitQuery, base: f32, top: &mut Top) {
        let segment = &self.segments[blocks.segment];
        let (rows, start) = (segment.rows(), self.starts[blocks.segment]);
        let size = bit_bytes(segment.dimensions()) * BLOCK;
        let codes = segment.bits()[blocks.range.start * size..blocks.range.end * size].chunks_exact(size);
        let factors = &segment.factors()[blocks.range.clone()];
        let mut scores = [0.0; BLOCK];
        for ((block, codes), factors) in blocks.range.clone().zip(codes).zip(factors) {
            let allowed = match self.allowed {
                Some(allowed) => allowed[blocks.segment].word(block),
                None if rows - block * BLOCK >= BLOCK => u64::MAX,
                None => (1 << (rows % BLOCK)) - 1,
            };
            if allowed == 0 {
                continue;
            }
            if let Some(later) = segment.bits().get((block + BLOCKS_AHEAD) * size..(block + BLOCKS_AHEAD + 1) * size) {
                prefetch(bytemuck::cast_slice(later));
            }
            let line = Line { base, threshold: top.threshold() };
            let above = score_block(self.isa, codes, tables, (factors, line), &mut scores);
            for i in Ones(above & allowed) {
                top.push(scores[i], start + (block * BLOCK + i) as u32);
            }
        }
    }

    /// The scores by int8 codes of rows whose positions ascend.
    fn score_int8(&self, query: &Int8Query, positions: &[u32], threads: usize) -> Vec<Key> {
        let work: Vec<&[u32]> = positions.chunks(ROWS_AT_ONCE).collect();
        let next = AtomicUsize::new(0);
        // A thread pays only if it has more to do than to start.
        let found = run(threads.min(work.len() / 4), || {
            let mut keys = Vec::with_capacity(positions.len());
            while let Some(positions) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.score_positions(positions, query, &mut keys);
            }
            keys
        });
        found.concat()
    }

    fn score_positions(&self, positions: &[u32], query: &Int8Query, keys: &mut Vec<Key>) {
        let row = |position: &u32| {
            let (segment, row) = self.place(*position);
            segment.int8_row(row)
        };
        let rows: Vec<(&[i8], f32)> = positions.iter().map(row).collect();
        rows.iter().take(ROWS_AHEAD).for_each(|(codes, _)| prefetch(codes));
        for (i, ((codes, scale), position)) in rows.iter().zip(positions).enumerate() {
            if let Some((codes, _)) = rows.get(i + ROWS_AHEAD) {
                prefetch(codes);
            }
            let score = dot(self.isa, codes, query) as f32 * (scale * query.scale);
            // Only the scale of a damaged file can make it NaN.
            if !score.is_nan() {
                keys.push(Key::new(score, *position));
            }
        }
    }

    /// The segment and the row in it of a position.
    fn place(&self, position: u32) -> (&'a Segment, usize) {
        let segment = self.starts.partition_point(|start| *start <= position) - 1;
        (&self.segments[segment], (position - self.starts[segment]) as usize)
    }

    fn candidate(&self, key: Key, query_scale: f32) -> Candidate {
        let (segment, row) = self.place(key.position());
        // Rounding is off by a half of a scale at most, and by 1 / √12 of it in the mean of squares.
        let error = 2.0 * (segment.int8_row(row).1 + query_scale);
        Candidate { chunk: segment.chunks()[row], score: key.score(), error }
    }
}

fn blocks(segment: usize, rows: usize) -> impl Iterator<Item = Blocks> {
    let end = rows.div_ceil(BLOCK);
    (0..end).step_by(BLOCKS_AT_ONCE).map(move |start| Blocks { segment, range: start..end.min(start + BLOCKS_AT_ONCE) })
}

fn product(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The results of `work` on some threads, the calling one among them. Where a thread cannot be
/// started, the others do its work.
fn run<T: Send>(threads: usize, work: impl Fn() -> T + Sync) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let start = |_| thread::Builder::new().name("scan".into()).spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..threads).filter_map(start).collect();
        let mut results = vec![work()];
        for other in others {
            results.push(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        results
    })
}
