//! Hits of a search, for a person.

use super::display::source_path;
use sconce_index::{Hit, Unit};
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

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_index::{Metadata, Rank, Ranks, Snippet};

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
}
