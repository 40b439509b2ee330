//! Lines or pages of a document.

use std::ops::{Range, RangeInclusive};

use rusqlite::OptionalExtension;

use super::Reader;
use crate::document::{Layout, Unit};
use crate::error::Result;
use crate::index::Excerpt;

impl Reader<'_> {
    /// Lines or pages of a document, at most `max_bytes` of text; `None`: there is no such document.
    pub(crate) fn excerpt(
        &self,
        document: i64,
        places: RangeInclusive<u32>,
        max_bytes: usize,
    ) -> Result<Option<Excerpt>> {
        let Some(info) = self.document(document)? else { return Ok(None) };
        let mut find = self.connection.prepare_cached("SELECT text, layout FROM documents WHERE id = ?1")?;
        let row = find.query_row([document], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)));
        let Some((mut text, layout)) = row.optional()? else { return Ok(None) };
        let layout: Layout = serde_json::from_str(&layout).unwrap_or_default();
        let cut = cut(&text, &layout, &places, max_bytes);
        text.truncate(cut.range.end);
        let unit = match layout.unit {
            Unit::Page if !layout.starts.is_empty() => Unit::Page,
            _ => Unit::Line,
        };
        let text = text.split_off(cut.range.start);
        Ok(Some(Excerpt {
            document: info,
            unit,
            place: cut.place,
            last: cut.last,
            next: cut.next,
            is_cut: cut.is_cut,
            text,
        }))
    }
}

/// A part of a text.
#[derive(Debug, PartialEq)]
struct Cut {
    range: Range<usize>,
    /// The place where the range begins.
    place: Option<u32>,
    /// The place where what follows the range begins.
    next: Option<u32>,
    /// The last place of the text.
    last: u32,
    /// The range ends inside of a place.
    is_cut: bool,
}

/// The range of places in a text, as many whole ones as fit into `max_bytes`. A place that is
/// larger than that is cut off.
fn cut(text: &str, layout: &Layout, places: &RangeInclusive<u32>, max_bytes: usize) -> Cut {
    let starts: Box<dyn Iterator<Item = (usize, u32)>> = match layout.starts.is_empty() {
        true => {
            let lines = text.match_indices('\n').map(|(at, _)| at + 1).filter(|at| *at < text.len());
            Box::new(std::iter::once(0).chain(lines).zip(1..))
        }
        // The database may be damaged.
        false => Box::new(layout.starts.iter().map(|(at, number)| (text.floor_char_boundary(*at), *number))),
    };
    let (mut begin, mut end, mut last) = (None::<(usize, u32)>, None::<(usize, u32)>, 0);
    // The last place that fits, and the one after the first.
    let (mut fits, mut second) = (None::<(usize, u32)>, None::<u32>);
    for (at, number) in starts {
        let is_new = number > last;
        last = last.max(number);
        match begin {
            None if places.contains(&number) => begin = Some((at, number)),
            Some((from, first)) if is_new && end.is_none() && at >= from => {
                if number > first && second.is_none() {
                    second = Some(number);
                }
                if number > *places.end() {
                    end = Some((at, number));
                } else if at - from <= max_bytes {
                    fits = Some((at, number));
                }
            }
            _ => {}
        }
    }
    let Some((from, place)) = begin else { return Cut { range: 0..0, place: None, next: None, last, is_cut: false } };
    let (to, next) = end.map_or((text.len(), None), |(at, number)| (at, Some(number)));
    if to - from <= max_bytes {
        return Cut { range: from..to, place: Some(place), next, last, is_cut: false };
    }
    let (to, next, is_cut) = match fits {
        Some((at, number)) if at > from => (at, Some(number), false),
        _ => (text.floor_char_boundary(from.saturating_add(max_bytes)), second, true),
    };
    Cut { range: from..to, place: Some(place), next, last, is_cut }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut_of(text: &str, layout: &Layout, places: RangeInclusive<u32>, max_bytes: usize) -> (String, Cut) {
        let cut = cut(text, layout, &places, max_bytes);
        (text[cut.range.clone()].to_owned(), cut)
    }

    #[test]
    fn lines_are_counted() {
        let (text, layout) = ("one\ntwo\nthree\n", Layout::default());
        for (places, max, want, next) in [
            (1..=1, 99, "one\n", Some(2)),
            (2..=3, 99, "two\nthree\n", None),
            (1..=99, 99, text, None),
            (2..=99, 5, "two\n", Some(3)),
            // A line that does not fit is cut off, and the next call goes on behind it.
            (1..=3, 2, "on", Some(2)),
            (3..=3, 2, "th", None),
            (9..=9, 99, "", None),
            (0..=0, 99, "", None),
        ] {
            let (got, cut) = cut_of(text, &layout, places.clone(), max);
            assert_eq!((got.as_str(), cut.next, cut.last), (want, next, 3), "{places:?} {max}");
            assert_eq!(cut.is_cut, max == 2, "{places:?} {max}");
        }
        assert_eq!(
            cut_of("", &layout, 1..=9, 9).1,
            Cut { range: 0..0, place: Some(1), next: None, last: 1, is_cut: false }
        );
    }

    #[test]
    fn pages_have_their_numbers() {
        let layout = Layout { unit: Unit::Page, starts: vec![(0, 1), (4, 2), (6, 2), (8, 5)], headings: vec![] };
        let text = "one two five!";
        let (got, cut) = cut_of(text, &layout, 2..=4, 99);
        assert_eq!((got.as_str(), cut.place, cut.next, cut.last), (&text[4..8], Some(2), Some(5), 5));
        assert_eq!(cut_of(text, &layout, 3..=9, 99).1.place, Some(5));
        assert_eq!(
            cut_of(text, &layout, 1..=9, 5).1,
            Cut { range: 0..4, place: Some(1), next: Some(2), last: 5, is_cut: false }
        );
    }

    #[test]
    fn damaged_layouts_do_not_panic() {
        let text = "ä\nö\nü";
        for starts in [vec![(1, 1), (99, 2)], vec![(5, 1), (0, 2)], vec![(usize::MAX, 1)], vec![(0, 7), (0, 1)]] {
            let layout = Layout { unit: Unit::Line, starts, headings: vec![] };
            for max in 0..9 {
                for first in 0..4 {
                    cut_of(text, &layout, first..=first + 2, max);
                }
            }
        }
    }
}
