//! The inputs that are timed: fixed shapes and texts of mixed lengths, as tokens, the same for
//! every engine.

use crate::Failure;
use crate::commands::bench::{SHAPES, text_of};
use sconce_engine::{Embedder, Loaded};
use serde_json::{Value, json};

/// Number of texts of mixed lengths, and the batch size of peers, which pad to the longest text.
/// Ours are packed.
const MIXED_LENGTHS: usize = 256;
const PEER_BATCH: usize = 32;

const WHO: [&str; 8] = [
    "the old captain",
    "a small company from Lisbon",
    "our neighbour",
    "every second student",
    "the committee",
    "a stray dog",
    "the youngest player of the team",
    "nobody in the village",
];
const DOES: [&str; 8] = [
    "has bought",
    "was looking for",
    "will never sell",
    "wrote about",
    "is repairing",
    "asked for",
    "found",
    "describes",
];
const WHAT: [&str; 8] = [
    "a bowl of noodles",
    "the broken bicycle",
    "an unusually large house",
    "several difficult questions",
    "a letter from 1987",
    "the results of the experiment",
    "most of the photographs",
    "a map of the harbour",
];
const WHERE: [&str; 8] = [
    "near the river",
    "on a Tuesday morning",
    "after the storm",
    "behind the museum",
    "for less than twenty euros",
    "in front of four hundred people",
    "before breakfast",
    "at the end of a long street",
];

/// Texts to embed in one call.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) texts: Vec<Vec<u32>>,
}

impl Row {
    /// The row for peers: batches, longest texts first.
    pub(super) fn job(&self) -> Value {
        let mut texts: Vec<&Vec<u32>> = self.texts.iter().collect();
        texts.sort_by_key(|ids| std::cmp::Reverse(ids.len()));
        json!({"name": self.name, "batches": texts.chunks(PEER_BATCH).collect::<Vec<_>>()})
    }

    pub(super) fn tokens(&self) -> usize {
        self.texts.iter().map(Vec::len).sum()
    }
}

/// All rows.
pub(super) fn all(embedder: &Embedder) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for (texts, tokens) in SHAPES {
        let tokens = tokens.min(embedder.plan().max_tokens);
        let ids = ids(embedder, &text_of(embedder, tokens)?)?;
        rows.push(Row { name: format!("{texts} × {}", ids.len()), texts: vec![ids; texts] });
    }
    let texts = (0..MIXED_LENGTHS).map(|i| ids(embedder, &text(i))).collect::<Result<Vec<_>, _>>()?;
    rows.push(Row { name: format!("{MIXED_LENGTHS} texts"), texts });
    Ok(rows)
}

/// Texts whose vectors are compared.
pub(super) fn check(embedder: &Embedder) -> Result<Vec<Vec<u32>>, Failure> {
    (0..8).map(|i| ids(embedder, &text(31 * i))).collect()
}

fn ids(embedder: &Embedder, text: &str) -> Result<Vec<u32>, Failure> {
    let mut ids: Vec<u32> = embedder.tokenize(text, true)?.into_iter().map(|token| token.id).collect();
    ids.truncate(embedder.plan().max_tokens);
    Ok(ids)
}

/// One to nine sentences, fewer more often; deterministic.
fn text(i: usize) -> String {
    let mut state = i as u64 + 1;
    let mut next = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    next(1);
    let sentences = 1 + next(3) * next(5);
    let sentence = |_| {
        let (who, does, what) = (WHO[next(8)], DOES[next(8)], WHAT[next(8)]);
        let more = if next(2) == 0 { String::new() } else { format!(" {}", WHERE[next(8)]) };
        format!("{who} {does} {what}{more}.")
    };
    (0..sentences).map(sentence).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_deterministic_with_many_lengths() {
        let words = |i| text(i).split(' ').count();
        let (least, most) = ((0..MIXED_LENGTHS).map(words).min(), (0..MIXED_LENGTHS).map(words).max());
        assert!(least < Some(12) && most > Some(60), "{least:?} to {most:?} words");
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
    }

    #[test]
    fn jobs_batch_texts_of_similar_length() {
        let row = Row { name: "r".into(), texts: (1..=70).map(|n| vec![0; n]).collect() };
        let job = row.job();
        let lengths = |batch: usize| -> Vec<usize> {
            job["batches"][batch].as_array().unwrap().iter().map(|ids| ids.as_array().unwrap().len()).collect()
        };
        assert_eq!((lengths(0).len(), lengths(0)[0], lengths(2)), (32, 70, (1..=6).rev().collect()));
        assert_eq!(row.tokens(), 70 * 71 / 2);
    }
}
