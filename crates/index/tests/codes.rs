//! Segments of vector codes: what a scan finds, filters on columns, merging, and damaged files.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::sample::select;
use sconce_index::codes::{
    Bitmap, MAX_DIMENSIONS, ScanOptions, Segment, SegmentInfo, SegmentWriter, merge, needs_merge, remove_stale, scan,
};
use sconce_index::{Compare, Filter, Metadata, Test, Value};
use sconce_testkit::{DamagedFile, Rng, check, mutations};
use sha2::{Digest, Sha256};

const DIMENSIONS: usize = 48;

/// Vectors of length 1 around 40 centres.
fn vectors(count: usize, seed: u64) -> Vec<Vec<f32>> {
    let mut rng = Rng::new(9);
    let centres: Vec<Vec<f32>> = (0..40).map(|_| (0..DIMENSIONS).map(|_| rng.unit_f32() + 0.3).collect()).collect();
    let mut rng = Rng::new(seed);
    let vector = |_| {
        let centre = &centres[rng.below(centres.len())];
        let vector: Vec<f32> = centre.iter().map(|x| x + rng.unit_f32() * 0.4).collect();
        let length = dot(&vector, &vector).sqrt();
        vector.iter().map(|x| x / length).collect()
    };
    (0..count).map(vector).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The metadata that [`write`] gives a chunk.
fn metadata(chunk: i64) -> Metadata {
    let mut metadata = Metadata::from([
        ("percent".into(), Value::Integer(chunk % 100)),
        ("path".into(), Value::Text(format!("docs/{}.md", chunk / 7))),
    ]);
    if chunk % 50 == 0 {
        metadata.insert("rare".into(), Value::Bool(chunk % 100 == 0));
    }
    metadata
}

/// A segment of vectors whose chunks have the ids from `first` on.
fn write(dir: &Path, first: i64, vectors: &[Vec<f32>]) -> SegmentInfo {
    let mut writer = SegmentWriter::create(dir, vectors[0].len()).unwrap();
    for (chunk, vector) in (first..).zip(vectors) {
        writer.push(chunk, vector, &metadata(chunk)).unwrap();
    }
    writer.finish().unwrap()
}

fn open(dir: &Path, info: &SegmentInfo) -> Arc<Segment> {
    Arc::new(Segment::open(dir, info).unwrap())
}

/// The ids of the exact best chunks among those that `accepts` accepts.
fn exact(vectors: &[Vec<f32>], query: &[f32], k: usize, accepts: impl Fn(i64) -> bool) -> Vec<i64> {
    let mut scores: Vec<(f32, i64)> = (0..).zip(vectors).map(|(chunk, vector)| (dot(query, vector), chunk)).collect();
    scores.retain(|(_, chunk)| accepts(*chunk));
    scores.sort_by(|a, b| b.0.total_cmp(&a.0));
    scores.into_iter().take(k).map(|(_, chunk)| chunk).collect()
}

#[test]
fn scans_find_the_nearest_with_and_without_filters() {
    let dir = tempfile::tempdir().unwrap();
    let all = vectors(70_000, 1);
    let whole = vec![open(dir.path(), &write(dir.path(), 0, &all))];
    let parts: Vec<_> = [0..65, 65..30_000, 30_000..70_000]
        .into_iter()
        .map(|range| open(dir.path(), &write(dir.path(), range.start as i64, &all[range])))
        .collect();
    let filters = [(None, 100), (Some("percent<1"), 1), (Some("percent<10"), 10), (Some("percent<60"), 60)];
    let (mut found, mut expected) = (0, 0);
    for query in vectors(20, 2) {
        for (filter, percent) in filters {
            let filter = filter.map(|filter| Filter::parse(filter).unwrap());
            let best = exact(&all, &query, 10, |chunk| chunk % 100 < percent);
            for segments in [&whole, &parts] {
                let allowed = filter.as_ref().map(|f| segments.iter().map(|s| s.rows_matching(f)).collect::<Vec<_>>());
                let options = |threads| ScanOptions { k: 10, threads, allowed: allowed.clone() };
                let candidates = scan(segments, &query, &options(1)).unwrap();
                assert_eq!(candidates.len(), 100);
                for threads in [0, 2, 3] {
                    assert_eq!(scan(segments, &query, &options(threads)).unwrap(), candidates);
                }
                assert!(candidates.is_sorted_by(|a, b| a.score >= b.score));
                for candidate in &candidates {
                    assert!(candidate.chunk % 100 < percent);
                    let error = candidate.score - dot(&query, &all[candidate.chunk as usize]);
                    assert!(error.abs() <= candidate.error && candidate.error < 0.02, "{error} {}", candidate.error);
                }
                let has = |chunk: &&i64| candidates.iter().any(|candidate| candidate.chunk == **chunk);
                found += best.iter().filter(has).count();
                expected += best.len();
            }
        }
    }
    assert!(found as f64 >= 0.995 * expected as f64, "{found} of {expected}");
}

#[test]
fn a_scan_of_few_or_no_rows_returns_what_there_is() {
    let dir = tempfile::tempdir().unwrap();
    let all = vectors(70, 3);
    let segments = [open(dir.path(), &write(dir.path(), 0, &all))];
    let options = |allowed| ScanOptions { k: 100, threads: 2, allowed };
    assert_eq!(scan(&[], &all[0], &options(None)).unwrap(), []);
    assert_eq!(scan(&segments, &all[0], &options(Some(vec![Bitmap::none(70)]))).unwrap(), []);
    let found = scan(&segments, &all[5], &options(None)).unwrap();
    assert_eq!((found.len(), found[0].chunk), (70, 5));
    let mut one = Bitmap::none(70);
    one.set(69, true);
    assert_eq!(scan(&segments, &all[5], &options(Some(vec![one]))).unwrap()[0].chunk, 69);
    assert_eq!(scan(&segments, &[0.0; DIMENSIONS], &options(None)).unwrap().len(), 70);
}

#[test]
fn wrong_queries_and_vectors_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let segments = [open(dir.path(), &write(dir.path(), 0, &vectors(10, 4)))];
    let options = ScanOptions::default();
    assert!(scan(&segments, &[1.0; DIMENSIONS + 1], &options).is_err());
    assert!(scan(&segments, &[f32::NAN; DIMENSIONS], &options).is_err());
    for allowed in [vec![], vec![Bitmap::all(11)], vec![Bitmap::all(10); 2]] {
        let options = ScanOptions { allowed: Some(allowed), ..ScanOptions::default() };
        assert!(scan(&segments, &[1.0; DIMENSIONS], &options).is_err());
    }
    assert!(SegmentWriter::create(dir.path(), 0).is_err());
    assert!(SegmentWriter::create(dir.path(), MAX_DIMENSIONS + 1).is_err());
    let none = Metadata::new();
    let mut writer = SegmentWriter::create(dir.path(), 2).unwrap();
    assert!(writer.push(1, &[1.0], &none).is_err());
    assert!(writer.push(1, &[1.0, f32::INFINITY], &none).is_err());
    writer.push(1, &[1.0, 2.0], &none).unwrap();
    assert!(writer.push(1, &[1.0, 2.0], &none).is_err());
    assert_eq!(writer.rows(), 1);
    drop(writer);
    assert!(SegmentWriter::create(dir.path(), 2).unwrap().finish().is_err());
    let left = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 1, "unfinished segments leave no files");
}

#[test]
fn extreme_vectors_neither_panic_nor_lose_rows() {
    let dir = tempfile::tempdir().unwrap();
    for dimensions in [1, 3, 63, 64, 65, 1030] {
        let mut rows = vec![vec![0.0; dimensions], vec![1e12; dimensions], vec![-f32::MIN_POSITIVE; dimensions]];
        rows.extend((0..40_000 / dimensions).map(|i| vec![(i as f32).sin(); dimensions]));
        let segments = [open(dir.path(), &write(dir.path(), -3, &rows))];
        let mut writer = SegmentWriter::create(dir.path(), dimensions).unwrap();
        assert!(writer.push(1, &vec![f32::MAX; dimensions], &Metadata::new()).is_err());
        for query in [&rows[1], &rows[2], &rows[5]] {
            let found = scan(&segments, query, &ScanOptions { k: 10, threads: 2, allowed: None }).unwrap();
            assert_eq!(found.len(), 100.min(rows.len()), "{dimensions}");
        }
    }
}

#[test]
fn merging_drops_deleted_chunks_and_changes_no_score() {
    let dir = tempfile::tempdir().unwrap();
    let all = vectors(1_000, 5);
    let infos = [write(dir.path(), 0, &all[..400]), write(dir.path(), 400, &all[400..])];
    let parts: Vec<_> = infos.iter().map(|info| open(dir.path(), info)).collect();
    let deleted: Vec<i64> = (0..1_000).filter(|chunk| chunk % 3 == 0).rev().collect();
    let reversed: Vec<_> = parts.iter().rev().cloned().collect();
    let info = merge(dir.path(), &reversed, &deleted).unwrap().unwrap();
    assert_eq!((info.rows, info.first, info.last), (666, 1, 998));
    let merged = [open(dir.path(), &info)];
    let kept: Vec<i64> = (0..1_000).filter(|chunk| chunk % 3 != 0).collect();
    assert_eq!(merged[0].chunks(), kept);
    for chunk in [1, 50, 500, 998] {
        let row = merged[0].row(chunk).unwrap();
        assert_eq!(merged[0].metadata(row), metadata(chunk));
    }
    assert_eq!((merged[0].row(0), merged[0].metadata(666)), (None, Metadata::new()));
    let allowed = parts.iter().map(|segment| segment.rows_without(&deleted)).collect();
    let before = ScanOptions { k: 10, threads: 1, allowed: Some(allowed) };
    let after = ScanOptions { k: 10, threads: 1, allowed: None };
    for query in vectors(5, 6) {
        assert_eq!(scan(&merged, &query, &after).unwrap(), scan(&parts, &query, &before).unwrap());
    }
    let every: Vec<i64> = (0..1_000).collect();
    assert_eq!(merge(dir.path(), &parts, &every).unwrap(), None);
    assert_eq!(merge(dir.path(), &[], &[]).unwrap(), None);
    assert!(merge(dir.path(), &[parts[0].clone(), parts[0].clone()], &[]).is_err(), "the same ids twice");

    // A reader that has a segment open keeps it.
    fs::write(dir.path().join("1-2.partial"), "").unwrap();
    fs::write(dir.path().join("notes.txt"), "").unwrap();
    remove_stale(dir.path(), std::slice::from_ref(&info)).unwrap();
    let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(scan(&parts, &all[1], &before).unwrap()[0].chunk, 1);
    remove_stale(&dir.path().join("missing"), &[]).unwrap();
}

#[test]
fn many_segments_or_many_deleted_rows_ask_for_a_merge() {
    let info = |rows| SegmentInfo { name: String::new(), rows, first: 0, last: 0, checksum: String::new() };
    assert!(!needs_merge(&[], 0) && !needs_merge(&vec![info(100); 8], 80));
    assert!(needs_merge(&vec![info(100); 9], 0) && needs_merge(&vec![info(100); 8], 81));
}

fn value() -> impl Strategy<Value = Value> {
    let text = |text: &str| Value::Text(text.into());
    let whole = [-1, 0, 1, 2, i64::MAX, i64::MIN, (1 << 53) + 1].map(Value::Integer);
    let floats = [-1.0, -0.0, 0.0, 0.5, 2.0, 9_007_199_254_740_992.0, 1e300, f64::INFINITY, f64::NAN].map(Value::Float);
    let others = [Value::Null, Value::Bool(false), Value::Bool(true)];
    let texts = ["", "1", "a", "a/b", "a/bc", "b", "ä", "a*"].map(text);
    select([&whole[..], &floats, &others, &texts].concat())
}

fn key() -> impl Strategy<Value = String> {
    select(vec!["a", "b", "c", "rare", "none"]).prop_map(String::from)
}

fn filter() -> impl Strategy<Value = Filter> {
    let values = || prop::collection::vec(value(), 0..4);
    let pattern = || select(vec!["*", "a*", "a/?", "?", "", "*b", "ä", "a/b*"]).prop_map(String::from);
    let test = prop_oneof![
        value().prop_map(Test::Eq),
        value().prop_map(Test::Ne),
        value().prop_map(Test::Gt),
        value().prop_map(Test::Gte),
        value().prop_map(Test::Lt),
        value().prop_map(Test::Lte),
        values().prop_map(Test::In),
        values().prop_map(Test::Nin),
        pattern().prop_map(Test::Glob),
    ];
    let leaf = (key(), test).prop_map(|(key, test)| Filter::Compare(Compare { key, test }));
    leaf.prop_recursive(2, 8, 3, |inner| {
        let list = prop::collection::vec(inner, 0..3);
        prop_oneof![list.clone().prop_map(Filter::And), list.prop_map(Filter::Or)]
    })
}

/// Metadata in which `rare` is missing from most rows and the other keys from few.
fn row() -> impl Strategy<Value = Metadata> {
    let rare = prop_oneof![9 => Just(None), 1 => value().prop_map(Some)];
    let often = || prop_oneof![1 => Just(None), 5 => value().prop_map(Some)];
    (often(), often(), often(), rare).prop_map(|(a, b, c, rare)| {
        let entries = [("a", a), ("b", b), ("c", c), ("rare", rare)];
        entries.into_iter().filter_map(|(key, value)| Some((key.into(), value?))).collect()
    })
}

#[test]
fn columns_pass_the_rows_that_the_filter_matches() {
    let dir = tempfile::tempdir().unwrap();
    let inputs = (prop::collection::vec(row(), 1..150), prop::collection::vec(filter(), 20));
    check(60, &inputs, |(rows, filters)| {
        let mut writer = SegmentWriter::create(dir.path(), 1).unwrap();
        for (chunk, metadata) in (0..).zip(&rows) {
            writer.push(chunk, &[1.0], metadata).unwrap();
        }
        let segment = Segment::open(dir.path(), &writer.finish().unwrap()).unwrap();
        for filter in filters {
            let found: Vec<usize> = segment.rows_matching(&filter).iter().collect();
            let expected = (0..rows.len()).filter(|row| filter.matches(&rows[*row]));
            assert_eq!(found, expected.collect::<Vec<_>>(), "{filter:?}");
            // Merging reads the metadata back.
            let read = (0..rows.len()).filter(|row| filter.matches(&segment.metadata(*row)));
            assert_eq!(found, read.collect::<Vec<_>>(), "{filter:?}");
        }
    });
}

/// Reads everything that a segment has. Whether it makes sense does not matter.
fn use_all(segment: Segment) {
    let rows = segment.rows();
    let filters = ["percent<10", "percent!=5", "path=docs/3.md", "path:docs/1*", "rare=true"];
    let filters = filters.map(|filter| Filter::parse(filter).unwrap());
    let allowed: Vec<Bitmap> = filters.iter().map(|filter| segment.rows_matching(filter)).collect();
    (0..rows).step_by(97).for_each(|row| drop(segment.metadata(row)));
    segment.rows_without(&[0, 5, -1]);
    let _ = segment.verify();
    let query = vec![0.5; segment.dimensions()];
    let segment = Arc::new(segment);
    let all = Bitmap::all(rows);
    for allowed in allowed.into_iter().chain([all]) {
        let options = ScanOptions { k: 10, threads: 1, allowed: Some(vec![allowed]) };
        let _ = scan(std::slice::from_ref(&segment), &query, &options);
    }
}

/// The information that makes a damaged footer valid, where the file still has one.
fn signed(path: &Path, info: &SegmentInfo) -> Option<SegmentInfo> {
    let bytes = fs::read(path).ok()?;
    let (rest, _) = bytes.split_last_chunk::<8>()?;
    let (rest, length) = rest.split_last_chunk::<8>()?;
    let start = rest.len().checked_sub(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    let footer = &rest[start..];
    let json: serde_json::Value = serde_json::from_slice(footer).ok()?;
    let hash = Sha256::digest(footer);
    Some(SegmentInfo {
        rows: json["rows"].as_u64()?,
        first: json["first"].as_i64()?,
        last: json["last"].as_i64()?,
        checksum: hash.iter().map(|byte| format!("{byte:02x}")).collect(),
        ..info.clone()
    })
}

#[test]
fn damaged_segments_are_refused_or_scanned_without_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    // More rows than the int8 scan takes alone, so that the binary scan reads damage too.
    let rows: Vec<Vec<f32>> = vectors(34_000, 7).into_iter().map(|v| v[..3].to_vec()).collect();
    let info = write(dir.path(), 0, &rows);
    let path = dir.path().join(&info.name);
    let whole = fs::read(&path).unwrap();
    let opened = Cell::new(0);
    let changes = mutations(1..=3, b"0129,-\"", &[b"0", b"9999999999", b"-1", b"null"]);
    // Mutations of the whole file, and of its end, where the footer is.
    check(60, &(changes, any::<bool>()), |(changes, end)| {
        let damaged = if end {
            let mut bytes = whole.clone();
            let mut footer = bytes.split_off(bytes.len() - 2_000);
            let reach = footer.len();
            changes.iter().for_each(|change| change.apply(&mut footer, reach));
            bytes.extend(&footer);
            let restored_later = DamagedFile::new(&path, &[], 0);
            fs::write(&path, bytes).unwrap();
            restored_later
        } else {
            DamagedFile::new(&path, &changes, usize::MAX)
        };
        let infos = [Some(info.clone()), signed(&path, &info)];
        for info in infos.into_iter().flatten() {
            if let Ok(segment) = Segment::open(dir.path(), &info) {
                opened.set(opened.get() + 1);
                use_all(segment);
            }
        }
        drop(damaged);
    });
    assert!(opened.get() > 20, "{} of the damaged files were opened", opened.get());
    assert!(open(dir.path(), &info).verify().is_ok());
}

#[test]
fn torn_and_foreign_files_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let info = write(dir.path(), 0, &vectors(200, 8));
    let path = dir.path().join(&info.name);
    let whole = fs::read(&path).unwrap();
    for length in (0..whole.len()).step_by(997).chain([1, 8, 16, whole.len() - 1]) {
        fs::write(&path, &whole[..length]).unwrap();
        assert!(Segment::open(dir.path(), &info).is_err(), "{length} of {}", whole.len());
    }
    fs::write(&path, &whole).unwrap();
    Segment::open(dir.path(), &info).unwrap().verify().unwrap();
    for name in ["", "..", "../other", "missing.codes"] {
        assert!(Segment::open(dir.path(), &SegmentInfo { name: name.into(), ..info.clone() }).is_err(), "{name}");
    }
    assert!(Segment::open(dir.path(), &SegmentInfo { rows: 201, ..info.clone() }).is_err());
    assert!(Segment::open(dir.path(), &SegmentInfo { checksum: "00".into(), ..info.clone() }).is_err());

    // Opening a FIFO would block until somebody writes to it.
    #[cfg(unix)]
    {
        let made = std::process::Command::new("mkfifo").arg(dir.path().join("fifo.codes")).status();
        assert!(made.unwrap().success());
        std::os::unix::fs::symlink(&path, dir.path().join("link.codes")).unwrap();
        for name in ["fifo.codes", "link.codes"] {
            assert!(Segment::open(dir.path(), &SegmentInfo { name: name.into(), ..info.clone() }).is_err(), "{name}");
        }
    }

    // A changed byte in a section does not prevent opening, and `verify` and `merge` find it.
    let mut changed = whole.clone();
    changed[100] ^= 4;
    fs::write(&path, &changed).unwrap();
    let segment = open(dir.path(), &info);
    assert!(segment.verify().is_err());
    assert!(merge(dir.path(), &[segment], &[]).is_err());
}
