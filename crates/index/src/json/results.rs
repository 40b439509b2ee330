//! Results as JSON.

use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json, json};

use crate::document::{Kind, Unit};
use crate::index::{DocumentInfo, Failure, Passage, Status};
use crate::indexer::{Phase, Progress, Report};
use crate::models::ModelIdentity;
use crate::search::{Hit, Rank};

/// A hit. `line`, `page` and `row` are there only where the hit has one; `highlights` are ranges of
/// `snippet`; `bytes` is the passage's range in the UTF-8 text of the document.
pub fn hit(hit: &Hit) -> Json {
    let highlights = hit.snippet.highlights.iter();
    let mut all = json!({
        "score": hit.score,
        "path": hit.path,
        "title": hit.title,
        "heading": hit.heading,
        "snippet": hit.snippet.text,
        "highlights": highlights.filter_map(|range| in_characters(&hit.snippet.text, range)).collect::<Vec<_>>(),
        "text": hit.text,
        "ranks": ranks(hit),
        "metadata": hit.metadata,
        "chunk": hit.chunk,
        "document": hit.document,
        "bytes": [hit.range.start, hit.range.end],
    });
    let unit = match hit.unit {
        Unit::Line => Some("line"),
        Unit::Page => Some("page"),
        Unit::None => None,
    };
    if let (Some(unit), Some(place)) = (unit, hit.place) {
        all[unit] = place.into();
    }
    if let Some(row) = hit.row {
        all["row"] = row.into();
    }
    all
}

/// The places in the rankings that found the hit.
fn ranks(hit: &Hit) -> Map<String, Json> {
    let all = [
        ("dense", hit.ranks.dense),
        ("bm25", hit.ranks.bm25),
        ("sparse", hit.ranks.sparse),
        ("multi_vector", hit.ranks.multi_vector),
        ("reranker", hit.ranks.reranker),
    ];
    let found = |(name, rank): (&str, Option<Rank>)| {
        rank.map(|rank| (name.to_string(), json!({"rank": rank.position, "score": rank.score})))
    };
    all.into_iter().filter_map(found).collect()
}

/// A range in characters. `None` if it is not in the text.
fn in_characters(text: &str, range: &Range<usize>) -> Option<[usize; 2]> {
    let start = text.get(..range.start)?.chars().count();
    Some([start, start + text.get(range.clone())?.chars().count()])
}

/// A document without its text. `modified` is in seconds since 1970, and null for added documents.
pub fn document(info: &DocumentInfo) -> Json {
    json!({
        "id": info.id,
        "path": info.path,
        "row": info.row,
        "title": info.title,
        "kind": info.kind.name(),
        "metadata": info.metadata,
        "bytes": info.bytes,
        "chunks": info.chunks,
        "modified": info.modified_ns.map(|ns| ns as f64 / 1e9),
    })
}

/// A passage with the text around it; `passage` is its range in `text`.
pub fn passage(passage: &Passage) -> Json {
    let start = passage.range.start;
    let own = passage.passage.start.saturating_sub(start)..passage.passage.end.saturating_sub(start);
    let mut all = json!({
        "document": document(&passage.document),
        "heading": passage.heading,
        "text": passage.text,
        "passage": in_characters(&passage.text, &own),
        "bytes": [passage.range.start, passage.range.end],
    });
    if let Some(place) = passage.place {
        all[if passage.document.kind == Kind::Pdf { "page" } else { "line" }] = place.into();
    }
    all
}

/// The model of an index.
pub fn model(model: &ModelIdentity) -> Json {
    let ModelIdentity { name, revision, kind, dimensions, .. } = model;
    json!({"name": name, "revision": revision, "kind": kind, "dimensions": dimensions})
}

/// What an index has; `failed` lists the files that could not be read.
pub fn status(database: &Path, status: &Status, failures: &[Failure]) -> Json {
    let failed: Vec<Json> = failures.iter().map(|f| json!({"path": f.path, "reason": f.reason})).collect();
    json!({
        "database": database.to_string_lossy(),
        "bytes": status.bytes,
        "model": status.model.as_ref().map(model),
        "paths": status.roots.iter().map(|root| root.to_string_lossy()).collect::<Vec<_>>(),
        "files": status.files,
        "documents": status.documents,
        "chunks": status.chunks,
        "coded": status.coded,
        "updated": status.updated,
        "failed": failed,
        "damaged": status.damaged,
    })
}

/// What a run did.
pub fn report(report: &Report) -> Json {
    let files = |all: &[(PathBuf, String)]| -> Vec<Json> {
        all.iter().map(|(path, reason)| json!({"path": path.to_string_lossy(), "reason": reason})).collect()
    };
    json!({
        "indexed": report.indexed,
        "unchanged": report.unchanged,
        "renamed": report.renamed,
        "removed": report.removed,
        "failed": files(&report.failed),
        "skipped": files(&report.skipped),
        "notes": files(&report.notes),
        "chunks": report.chunks,
        "embedded": report.embedded,
        "seconds": report.elapsed.as_secs_f64(),
    })
}

/// How far a run is. `left` is in seconds, and null while it is too early to say.
pub fn progress(progress: &Progress) -> Json {
    let phase = match progress.phase {
        Phase::Walking => "walking",
        Phase::Embedding => "embedding",
        Phase::Finishing => "finishing",
    };
    json!({
        "phase": phase,
        "found": progress.found,
        "files": progress.files,
        "problems": progress.problems,
        "bytes": progress.bytes,
        "bytes_done": progress.bytes_done,
        "chunks": progress.chunks,
        "rate": progress.rate(),
        "current": progress.current.as_ref().map(|path| path.to_string_lossy()),
        "seconds": progress.elapsed.as_secs_f64(),
        "left": progress.left.map(|left| left.as_secs_f64()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Metadata;
    use crate::search::{Ranks, Snippet};

    #[test]
    fn offsets_are_in_characters() {
        let found = Hit {
            chunk: 3,
            document: 2,
            path: "/docs/a.md".into(),
            row: None,
            title: None,
            heading: Some("Top > Sub".into()),
            unit: Unit::Line,
            place: Some(7),
            range: 0..9,
            score: 0.5,
            ranks: Ranks { bm25: Some(Rank { position: 1, score: 7.0 }), ..Ranks::default() },
            text: "Über den Wolken".into(),
            snippet: Snippet { text: "Über den".into(), highlights: vec![6..9, 2..99], range: 0..9 },
            metadata: Metadata::new(),
        };
        let all = hit(&found);
        // The second highlight is not in the text.
        assert_eq!((&all["highlights"], &all["line"]), (&json!([[5, 8]]), &json!(7)));
        assert_eq!(all["ranks"], json!({"bm25": {"rank": 1, "score": 7.0}}));
        assert!(all.get("row").is_none() && all.get("page").is_none());

        let document = DocumentInfo {
            id: 2,
            path: "a.pdf".into(),
            row: None,
            title: None,
            kind: Kind::Pdf,
            metadata: Metadata::new(),
            bytes: 30,
            chunks: 3,
            modified_ns: Some(1_500_000_000),
        };
        let text = "äöü mid end".to_string();
        let around = Passage { document, heading: None, place: Some(4), text, range: 10..24, passage: 17..20 };
        let all = passage(&around);
        assert_eq!((&all["passage"], &all["page"]), (&json!([4, 7]), &json!(4)));
        assert_eq!(all["document"]["modified"], json!(1.5));
    }
}
