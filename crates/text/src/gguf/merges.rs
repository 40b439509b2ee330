//! BPE merges, from the file or derived from scores.

use super::tokens::{Role, Tokens};
use std::collections::HashSet;

/// Every split of a piece is tried as a merge. SentencePiece makes no piece longer than 16
/// characters by default; Gemma's longest token has 93 bytes.
const LONGEST_MERGED: usize = 256;
/// Llama 2's 32,000 pieces have 61,249 merges, and Gemma's file lists 514,906.
const MAX_MERGES: usize = 1 << 22;

/// `tokenizer.ggml.merges`: two tokens an entry, highest priority first. Of duplicate entries the
/// first counts.
pub(super) fn from_file(lines: &[&str], tokens: &Tokens<'_>) -> Result<Vec<(String, String)>, String> {
    if lines.len() > MAX_MERGES {
        return Err(format!("tokenizer.ggml.merges has {} entries; the limit is {MAX_MERGES}", lines.len()));
    }
    let mut seen = HashSet::with_capacity(lines.len());
    let mut merges = Vec::with_capacity(lines.len());
    let mut joined = String::new();
    for (n, line) in lines.iter().enumerate() {
        let wrong = |why: String| format!("tokenizer.ggml.merges, entry {n}, {line:?}: {why}");
        // Only the first token may begin with a space.
        let space = line.bytes().skip(1).position(|b| b == b' ').map(|at| at + 1);
        let (left, right) = match space.and_then(|at| line.split_at_checked(at)) {
            Some((left, right)) if right.len() > 1 => (left, &right[1..]),
            _ => return Err(wrong("not two tokens".into())),
        };
        joined.clear();
        joined.extend([left, right]);
        let mut ids = [0; 3];
        for (id, text) in ids.iter_mut().zip([left, right, &joined]) {
            *id = tokens.id(text).ok_or_else(|| wrong(format!("there is no token {text:?}")))?;
        }
        // Text never merges into a control token.
        let is_text = ids.iter().all(|id| !matches!(tokens.role(*id), Role::Control | Role::Unknown));
        if is_text && seen.insert((ids[0], ids[1])) {
            merges.push((left.to_string(), right.to_string()));
        }
    }
    Ok(merges)
}

/// Derives merges from scores. SentencePiece stores no merges: it merges any two adjacent pieces
/// that concatenate to a third, best score first; of equal scores, the leftmost pair. The
/// `tokenizers` crate has a rank for each merge and does not compare positions. Vocabularies have
/// equal scores for runs of one character (Gemma's runs of spaces and line ends all have 0), and
/// there ranking the longest merge first gives the same result.
pub(super) fn by_score(scores: &[f32], tokens: &Tokens<'_>) -> Result<Vec<(String, String)>, String> {
    struct Merge {
        score: f32,
        token: u32,
        cut: u16,
        chars: u16,
    }
    let mut merges = Vec::new();
    for (id, &score) in (0..).zip(scores) {
        let text = tokens.text(id);
        if !tokens.is_text(id) {
            continue;
        }
        if text.len() > LONGEST_MERGED {
            // A user-defined token of that length is matched whole.
            if tokens.role(id) == Role::UserDefined {
                continue;
            }
            return Err(format!(
                "tokenizer.ggml.tokens: token {id} has {} bytes, too long to be merged from others",
                text.len()
            ));
        }
        let chars = text.chars().count() as u16;
        let usable = |part: &str| tokens.id(part).is_some_and(|id| tokens.is_text(id));
        for (cut, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(cut);
            if usable(left) && usable(right) {
                merges.push(Merge { score, token: id, cut: cut as u16, chars });
            }
        }
        if merges.len() > MAX_MERGES {
            return Err(format!("tokenizer.ggml.tokens: more than {MAX_MERGES} merges follow from the scores"));
        }
    }
    merges.sort_unstable_by(|a, b| {
        let best = b.score.total_cmp(&a.score).then(b.chars.cmp(&a.chars));
        best.then(b.cut.cmp(&a.cut)).then(a.token.cmp(&b.token))
    });
    let pair = |merge: Merge| {
        let (left, right) = tokens.text(merge.token).split_at(usize::from(merge.cut));
        (left.to_string(), right.to_string())
    };
    Ok(merges.into_iter().map(pair).collect())
}
