//! Groups token labels into entities, by the rules of transformers' token-classification pipeline.

use std::str::FromStr;

/// Aggregation strategy: how tokens become entities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Every token by itself.
    None,
    /// Neighbours with the same label.
    #[default]
    Simple,
    /// As `Simple`, by words; a word has the label of its first token.
    First,
    /// A word has the label with the highest mean score.
    Average,
    /// A word has the label of its token with the highest score.
    Max,
}

impl FromStr for Strategy {
    type Err = crate::Error;

    fn from_str(s: &str) -> crate::Result<Strategy> {
        match s {
            "none" => Ok(Strategy::None),
            "simple" => Ok(Strategy::Simple),
            "first" => Ok(Strategy::First),
            "average" => Ok(Strategy::Average),
            "max" => Ok(Strategy::Max),
            other => {
                let what =
                    format!("unknown aggregation strategy `{other}`; use one of none, simple, first, average, max");
                Err(crate::Error::Input(what))
            }
        }
    }
}

/// A token with its scores.
#[derive(Clone, Debug)]
pub struct Scored<'a> {
    /// One probability per label.
    pub scores: &'a [f32],
    /// The token as the vocabulary writes it; for the unknown token, the text it covers.
    pub token: String,
    /// Its first character in the text.
    pub start: usize,
    /// The character after its last.
    pub end: usize,
    /// Added by the tokenizer.
    pub special: bool,
    /// Continues the word before it.
    pub subword: bool,
}

/// A labelled span of the text.
#[derive(Clone, Debug, PartialEq)]
pub struct Entity {
    /// The label; without its `B-` or `I-` prefix if tokens were grouped.
    pub label: String,
    /// The score; the mean over several tokens.
    pub score: f32,
    /// Index of the token, if the strategy does not group.
    pub index: Option<usize>,
    /// The tokens as the decoder joins them. The original spelling is at `start..end` of the text.
    pub word: String,
    /// Its first character in the text.
    pub start: usize,
    /// The character after its last.
    pub end: usize,
}

/// Label names and how to join tokens.
pub struct Labels<'a> {
    /// Names of the labels, in the order of the scores.
    pub names: &'a [String],
    /// Labels to leave out, usually `O`.
    pub ignore: &'a [String],
    /// Joins tokens into text.
    pub join: &'a dyn Fn(Vec<String>) -> String,
}

/// The entities among the tokens of one text.
pub fn aggregate(tokens: &[Scored], strategy: Strategy, labels: &Labels) -> Vec<Entity> {
    let own: Vec<(usize, &Scored)> = tokens.iter().enumerate().filter(|(_, t)| !t.special).collect();
    let each = |&(index, token): &(usize, &Scored)| {
        let (label, score) = labels.best(token.scores);
        let (word, start, end) = (token.token.clone(), token.start, token.end);
        Entity { label, score, index: Some(index), word, start, end }
    };
    let entities = match strategy {
        Strategy::None => own.iter().map(each).collect(),
        Strategy::Simple => labels.group(own.iter().map(each).collect()),
        _ => {
            let words = own.chunk_by(|_, (_, next)| next.subword);
            labels.group(words.map(|word| labels.word(word, strategy)).collect())
        }
    };
    entities.into_iter().filter(|e| !labels.ignore.contains(&e.label)).collect()
}

/// The entities of overlapping windows of one text, by the rules of the pipeline's `stride`: of
/// entities that overlap, the longest stays, or the one with the highest score of the longest.
pub fn merge_windows(mut entities: Vec<Entity>) -> Vec<Entity> {
    entities.sort_by_key(|e| e.start);
    let mut merged: Vec<Entity> = Vec::with_capacity(entities.len());
    for entity in entities {
        match merged.last_mut().filter(|last| (last.start..last.end).contains(&entity.start)) {
            Some(last) => {
                let [length, kept] = [&entity, &*last].map(|e| e.end.saturating_sub(e.start));
                if length > kept || length == kept && entity.score > last.score {
                    *last = entity;
                }
            }
            None => merged.push(entity),
        }
    }
    merged
}

impl Labels<'_> {
    fn best(&self, scores: &[f32]) -> (String, f32) {
        let mut best = 0;
        for (i, score) in scores.iter().enumerate() {
            // The first of equal scores wins; NaN is reported, not hidden.
            if *score > scores[best] || score.is_nan() && !scores[best].is_nan() {
                best = i;
            }
        }
        let name = self.names.get(best).cloned().unwrap_or_else(|| format!("LABEL_{best}"));
        (name, scores.get(best).copied().unwrap_or(f32::NAN))
    }

    /// One word of at least one token.
    fn word(&self, tokens: &[(usize, &Scored)], strategy: Strategy) -> Entity {
        let first = tokens[0].1;
        let (label, score) = match strategy {
            Strategy::Average => {
                let mean = |i| mean(tokens.iter().filter_map(|(_, t)| t.scores.get(i).copied()));
                self.best(&(0..first.scores.len()).map(mean).collect::<Vec<f32>>())
            }
            Strategy::Max => {
                let highest = |t: &Scored| t.scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let surest = tokens.iter().fold(first, |a, (_, b)| if highest(b) > highest(a) { b } else { a });
                self.best(surest.scores)
            }
            _ => self.best(first.scores),
        };
        let word = (self.join)(tokens.iter().map(|(_, t)| t.token.clone()).collect());
        Entity { label, score, index: None, word, start: first.start, end: tokens[tokens.len() - 1].1.end }
    }

    /// Adjacent tokens of one tag form an entity, until the next that begins with `B-`.
    fn group(&self, entities: Vec<Entity>) -> Vec<Entity> {
        let together =
            |last: &Entity, next: &Entity| tag(&last.label) == tag(&next.label) && !next.label.starts_with("B-");
        entities.chunk_by(together).map(|group| self.one(group)).collect()
    }

    fn one(&self, group: &[Entity]) -> Entity {
        let (first, last) = (&group[0], &group[group.len() - 1]);
        Entity {
            label: first.label.split_once('-').map_or(&*first.label, |(_, rest)| rest).to_string(),
            score: mean(group.iter().map(|e| e.score)),
            index: None,
            word: (self.join)(group.iter().map(|e| e.word.clone()).collect()),
            start: first.start,
            end: last.end,
        }
    }
}

fn tag(label: &str) -> &str {
    label.strip_prefix("B-").or_else(|| label.strip_prefix("I-")).unwrap_or(label)
}

/// Mean of the values that are not NaN.
fn mean(values: impl Iterator<Item = f32>) -> f32 {
    let (sum, n) = values.filter(|v| !v.is_nan()).fold((0.0f64, 0u32), |(sum, n), v| (sum + f64::from(v), n + 1));
    (sum / f64::from(n)) as f32
}
