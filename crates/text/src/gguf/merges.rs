//! Which two tokens become which third, and which first.

use super::tokens::{Role, Tokens};
use std::collections::HashSet;

/// A merge is tried at every place of a piece. SentencePiece makes none longer than 16 characters unless told to; Gemma's longest
/// token has 93 bytes.
const LONGEST_MERGED: usize = 256;
/// Llama 2's 32,000 pieces have 61,249, and Gemma's file lists 514,906.
const MOST: usize = 1 << 22;

/// The file's own: two tokens a line, the first line first. Of lines that are there twice the first counts.
pub(super) fn told(lines: &[&str], tokens: &Tokens<'_>) -> Result<Vec<(String, String)>, String> {
    if lines.len() > MOST {
        return Err(format!("tokenizer.ggml.merges has {} entries; {MOST} are the most", lines.len()));
    }
    let mut seen = HashSet::with_capacity(lines.len());
    let mut merges = Vec::with_capacity(lines.len());
    let mut joined = String::new();
    for (n, line) in lines.iter().enumerate() {
        let wrong = |why: String| format!("tokenizer.ggml.merges, entry {n}, {line:?}: {why}");
        // A token may be a space, but only the first.
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
        // Nothing that a text says adds up to a control token.
        let textual = ids.iter().all(|id| !matches!(tokens.role(*id), Role::Control | Role::Unknown));
        if textual && seen.insert((ids[0], ids[1])) {
            merges.push((left.to_string(), right.to_string()));
        }
    }
    Ok(merges)
}

/// SentencePiece keeps scores, not merges: any two pieces that make a third, best score first, and of the same score the leftmost.
/// The library ranks merges, not places; that the longest comes first has the same effect on runs of one character, which is where
/// vocabularies have equal scores (Gemma's runs of spaces and line ends all have 0).
pub(super) fn by_score(scores: &[f32], tokens: &Tokens<'_>) -> Result<Vec<(String, String)>, String> {
    struct Way {
        score: f32,
        token: u32,
        cut: u16,
        chars: u16,
    }
    let mut ways = Vec::new();
    for (id, &score) in (0..).zip(scores) {
        let text = tokens.text(id);
        if !tokens.textual(id) {
            continue;
        }
        if text.len() > LONGEST_MERGED {
            // Such a token of the user's own is found whole.
            if tokens.role(id) == Role::UserDefined {
                continue;
            }
            return Err(format!(
                "tokenizer.ggml.tokens: token {id} has {} bytes, too long to be merged from others",
                text.len()
            ));
        }
        let chars = text.chars().count() as u16;
        let usable = |part: &str| tokens.id(part).is_some_and(|id| tokens.textual(id));
        for (cut, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(cut);
            if usable(left) && usable(right) {
                ways.push(Way { score, token: id, cut: cut as u16, chars });
            }
        }
        if ways.len() > MOST {
            return Err(format!("tokenizer.ggml.tokens: more than {MOST} ways lead from one token to another"));
        }
    }
    ways.sort_unstable_by(|a, b| {
        let best = b.score.total_cmp(&a.score).then(b.chars.cmp(&a.chars));
        best.then(b.cut.cmp(&a.cut)).then(a.token.cmp(&b.token))
    });
    let pair = |way: Way| {
        let (left, right) = tokens.text(way.token).split_at(usize::from(way.cut));
        (left.to_string(), right.to_string())
    };
    Ok(ways.into_iter().map(pair).collect())
}
