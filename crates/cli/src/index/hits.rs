//! Hits of a search, for a person and for scripts.

use super::display::source_path;
use sconce_index::{Hit, Rank, Unit};
use serde_json::{Map, Value, json};
use std::ops::Range;
use std::path::Path;

/// Where a hit is: the path, and the line, page or row. Terminals and editors open `path:line`.
pub(crate) fn location_of(hit: &Hit, from: Option<&Path>) -> String {
    let path = source_path(Path::new(&hit.path), from);
    match (hit.row, hit.unit, hit.place) {
        (Some(row), ..) => format!("{path}, row {row}"),
        (None, Unit::Line, Some(line)) => format!("{path}:{line}"),
        (None, Unit::Page, Some(page)) => format!("{path}, page {page}"),
        _ => path,
    }
}

/// A hit in JSON. Offsets of highlights are in characters of the snippet.
pub(crate) fn hit_json(hit: &Hit) -> Value {
    let mut all = json!({
        "score": hit.score,
        "path": hit.path,
        "title": hit.title,
        "heading": hit.heading,
        "snippet": hit.snippet.text,
        "highlights": hit.snippet.highlights.iter().filter_map(|range| in_characters(&hit.snippet.text, range)).collect::<Vec<_>>(),
        "text": hit.text,
        "ranks": ranks(hit),
        "metadata": hit.metadata,
        "chunk": hit.chunk,
        "document": hit.document,
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
fn ranks(hit: &Hit) -> Map<String, Value> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_index::{Metadata, Ranks, Snippet};

    fn hit(unit: Unit, place: Option<u32>, row: Option<u64>) -> Hit {
        Hit {
            chunk: 3,
            document: 2,
            path: "/docs/a.md".into(),
            row,
            title: None,
            heading: Some("Top > Sub".into()),
            unit,
            place,
            range: 0..9,
            score: 0.5,
            ranks: Ranks { bm25: Some(Rank { position: 1, score: 7.0 }), ..Ranks::default() },
            text: "Über den Wolken".into(),
            snippet: Snippet { text: "Über den".into(), highlights: vec![6..9, 2..99], range: 0..9 },
            metadata: Metadata::new(),
        }
    }

    #[test]
    fn the_location_names_line_page_or_row() {
        let from = Some(Path::new("/docs"));
        for (unit, place, row, want) in [
            (Unit::Line, Some(7), None, "a.md:7"),
            (Unit::Page, Some(7), None, "a.md, page 7"),
            (Unit::Line, Some(7), Some(5), "a.md, row 5"),
            (Unit::None, None, None, "a.md"),
        ] {
            assert_eq!(location_of(&hit(unit, place, row), from), want);
        }
    }

    #[test]
    fn highlights_in_json_are_in_characters() {
        let all = hit_json(&hit(Unit::Line, Some(7), None));
        assert_eq!((&all["highlights"], &all["line"]), (&json!([[5, 8]]), &json!(7)));
        assert_eq!(all["ranks"], json!({"bm25": {"rank": 1, "score": 7.0}}));
        assert!(all.get("row").is_none() && all.get("page").is_none());
    }
}
