//! Overlap: the words before a chunk that it repeats.

use super::measure::WordCounts;
use super::{ChunkOptions, CountTokens, Piece};

/// The chunks, each extended by the last words of the one before.
pub(super) fn extend(
    mut pieces: Vec<Piece>,
    text: &str,
    options: &ChunkOptions,
    counter: &dyn CountTokens,
    words: &mut WordCounts,
) -> Vec<Piece> {
    if options.overlap == 0 {
        return pieces;
    }
    // From the last, so that each sees where the one before began.
    for i in (1..pieces.len()).rev() {
        let (floor, range) = (pieces[i - 1].range.start, pieces[i].range.clone());
        let (mut start, mut left) = (range.start, options.overlap);
        loop {
            let before = text[floor..start].trim_end();
            let word_at = before.char_indices().rev().take_while(|(_, c)| !c.is_whitespace()).last();
            // The chunk before must begin earlier, so its first word is never taken.
            let Some((at, _)) = word_at.filter(|(at, _)| *at > 0) else { break };
            let tokens = words.count(&before[at..], counter);
            if tokens > left {
                break;
            }
            left -= tokens;
            start = floor + at;
        }
        if start < range.start {
            let tokens = counter.count(&text[start..range.end]);
            if tokens <= options.tokens {
                pieces[i].range.start = start;
                pieces[i].tokens = tokens;
            }
        }
    }
    pieces
}
