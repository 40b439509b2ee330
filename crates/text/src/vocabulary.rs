//! Vocabularies in the form that the `tokenizers` crate takes, and the ids of added tokens.

use super::special::Token;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};

/// Every split of a piece is tried as a merge.
const LONGEST_MERGED: usize = 256;

/// A vocabulary: a map to ids, or a list in the order of ids with scores.
pub(crate) enum Vocabulary {
    Map(HashMap<String, u32>),
    List(Vec<(String, f64)>),
}

/// SentencePiece's BPE stores scores, not merges. Any two pieces that concatenate to a third are a
/// merge, best score first.
pub(crate) fn merges<'a>(
    vocab: &HashMap<String, u32>,
    list: &'a [(String, f64)],
) -> Result<Vec<(&'a str, &'a str)>, String> {
    let mut merges = Vec::new();
    let mut seen = HashSet::new();
    for (text, _) in list {
        if text.len() > LONGEST_MERGED {
            return Err(format!("a piece has {} bytes, too long to be merged from others", text.len()));
        }
        if !seen.insert(text) {
            continue;
        }
        // Of duplicate pieces the last counts.
        let score = vocab.get(text).map_or(0.0, |&id| list[id as usize].1);
        let cuts = text.char_indices().skip(1).map(|(at, _)| text.split_at(at));
        let mut ways: Vec<_> = cuts.filter_map(|(l, r)| Some((*vocab.get(l)?, *vocab.get(r)?, l, r))).collect();
        ways.sort_by_key(|&(l, r, ..)| (l, r));
        merges.extend(ways.into_iter().map(|(_, _, l, r)| (score, l.chars().count(), r.chars().count(), l, r)));
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)).then(b.2.cmp(&a.2)));
    Ok(merges.into_iter().map(|(.., l, r)| (l, r)).collect())
}

impl Vocabulary {
    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        match self {
            Vocabulary::Map(map) => map.get(text).copied(),
            Vocabulary::List(list) => list.iter().rposition(|(t, _)| t == text).and_then(|i| u32::try_from(i).ok()),
        }
    }

    /// Assigns every added token its id: the vocabulary's, else the file's, else the next free one.
    /// The library numbers added tokens from the size of the vocabulary and ignores any other id,
    /// so a token that needs another id goes into the vocabulary.
    pub(crate) fn place(&mut self, tokens: &[Token]) -> Result<Vec<Value>, String> {
        let ids: HashMap<&str, u32> = match &*self {
            Vocabulary::Map(map) => map.iter().map(|(t, i)| (t.as_str(), *i)).collect(),
            Vocabulary::List(list) => list.iter().map(|(t, _)| t.as_str()).zip(0..).collect(),
        };
        let size = ids.len().max(if let Vocabulary::List(list) = &*self { list.len() } else { 0 });
        let mut taken: HashSet<u32> = ids.values().copied().collect();
        let above = ids.values().max().map_or(0, |&id| u64::from(id) + 1);
        let too_many = || "its token ids do not fit 32 bits".to_string();
        let mut next = u32::try_from(above.max(size as u64)).map_err(|_| too_many())?;
        let counted = next;
        let mut placed = Vec::with_capacity(tokens.len());
        let mut new = Vec::new();
        for token in tokens.iter().filter(|t| !t.text.is_empty()) {
            let known = ids.get(token.text.as_str()).copied();
            let id = known.or(token.id).unwrap_or(next);
            if known.is_none() {
                if !taken.insert(id) {
                    return Err(format!("added token {:?} has the id {id} of another token", token.text));
                }
                next = next.max(id.checked_add(1).ok_or_else(too_many)?);
                new.push((token.text.clone(), id));
            }
            placed.push((id, token));
        }
        let moved = new.iter().zip(size as u64..).find(|((_, id), library)| u64::from(*id) != *library);
        match (&mut *self, moved) {
            (_, None) => {}
            (Vocabulary::List(_), Some(((text, id), _))) => {
                return Err(format!("added token {text:?} has the id {id}, but the ids before it end at {counted}"));
            }
            // Add all of them: the library would number the others from the larger vocabulary size.
            (Vocabulary::Map(map), Some(_)) => map.extend(new),
        }
        placed.sort_by_key(|(id, _)| *id);
        Ok(placed.into_iter().map(|(id, token)| token.json(id)).collect())
    }

    pub(crate) fn json(self) -> Value {
        match self {
            Vocabulary::Map(map) => json!(map),
            Vocabulary::List(list) => json!(list),
        }
    }
}
