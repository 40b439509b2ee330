//! Joining chunks that are too short to mean something with a neighbour.

use super::{CountTokens, Piece};
use crate::document::Heading;

/// A chunk with fewer tokens joins a neighbour if it can.
const MIN_TOKENS: usize = 8;

/// Chunks, of which short ones are joined with the one before, or after if they begin with a
/// heading.
pub(super) fn join(
    pieces: Vec<Piece>,
    capacity: usize,
    text: &str,
    headings: &[Heading],
    counter: &dyn CountTokens,
) -> Vec<Piece> {
    let mut groups: Vec<Group> = Vec::new();
    for piece in pieces {
        let is_short = piece.weight() < MIN_TOKENS && !begins_with_heading(&piece, headings);
        match groups.last_mut() {
            Some(group) if (is_short || group.weight < MIN_TOKENS) && group.weight + piece.weight() <= capacity => {
                group.weight += piece.weight();
                group.members.push(piece);
            }
            _ => groups.push(Group { weight: piece.weight(), members: vec![piece] }),
        }
    }
    groups.into_iter().flat_map(|group| group.into_pieces(capacity, text, counter)).collect()
}

struct Group {
    weight: usize,
    members: Vec<Piece>,
}

impl Group {
    /// One piece; its members if together they have more tokens than they should.
    fn into_pieces(self, capacity: usize, text: &str, counter: &dyn CountTokens) -> Vec<Piece> {
        let (Some(first), Some(last)) = (self.members.first(), self.members.last()) else { return Vec::new() };
        if self.members.len() == 1 {
            return self.members;
        }
        let range = first.range.start..last.range.end;
        let tokens = counter.count(&text[range.clone()]);
        let estimate = self.members.iter().map(|piece| piece.estimate).sum();
        if tokens <= capacity { vec![Piece { range, tokens, estimate }] } else { self.members }
    }
}

impl Piece {
    fn weight(&self) -> usize {
        self.tokens.max(self.estimate)
    }
}

/// Up to three spaces may stand before a heading.
fn begins_with_heading(piece: &Piece, headings: &[Heading]) -> bool {
    let start = piece.range.start;
    let first = headings.partition_point(|heading| heading.offset + 3 < start);
    headings.get(first).is_some_and(|heading| heading.offset <= start + 3)
}
