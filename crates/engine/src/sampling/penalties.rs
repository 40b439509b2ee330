//! Repetition, frequency and presence penalties.

use super::{GenerationParams, Text};
use std::collections::HashMap;

/// Counts of each token in the last part of a text. The cost of an update depends only on the
/// number of new tokens.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenCounts {
    counts: HashMap<u32, Count>,
    /// Range of the counted positions.
    from: usize,
    to: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    all: u32,
    answer: u32,
}

impl TokenCounts {
    /// Counts the last `window` tokens of `text`, which must extend the text of the last call.
    pub(crate) fn update(&mut self, text: Text<'_>, window: Option<usize>) {
        let Text { tokens, prompt } = text;
        debug_assert!(self.to <= tokens.len());
        let begin = window.map_or(0, |w| tokens.len().saturating_sub(w));
        for (i, token) in tokens.iter().enumerate().take(begin.min(self.to)).skip(self.from) {
            if let Some(count) = self.counts.get_mut(token) {
                count.all -= 1;
                count.answer -= u32::from(i >= prompt);
                if count.all == 0 {
                    self.counts.remove(token);
                }
            }
        }
        for (i, token) in tokens.iter().enumerate().skip(begin.max(self.to)) {
            let count = self.counts.entry(*token).or_default();
            count.all += 1;
            count.answer += u32::from(i >= prompt);
        }
        (self.from, self.to) = (begin, tokens.len());
    }

    /// Applies the penalties to the logits of counted tokens. `before` receives their old values.
    pub(crate) fn penalize(&self, logits: &mut [f32], params: &GenerationParams, mut before: impl FnMut(u32, f32)) {
        let r = params.repetition_penalty;
        for (token, count) in &self.counts {
            // Some models have more input tokens than logits.
            let Some(logit) = logits.get_mut(*token as usize) else { continue };
            before(*token, *logit);
            *logit = if *logit > 0.0 { *logit / r } else { *logit * r };
            if count.answer > 0 {
                *logit -= params.frequency_penalty * count.answer as f32 + params.presence_penalty;
            }
            // A tiny r makes a large logit infinite, and infinity minus infinity is NaN.
            *logit = logit.min(f32::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incremental_token_counts_equal_a_recount() {
        let tokens: Vec<u32> = (0..200u32).map(|i| i.wrapping_mul(2654435761) >> 29).collect();
        let params = GenerationParams {
            repetition_penalty: 1.5,
            frequency_penalty: 0.25,
            presence_penalty: 1.0,
            ..GenerationParams::default()
        };
        for window in [None, Some(1), Some(7), Some(500)] {
            let mut counts = TokenCounts::default();
            for len in (0..200).filter(|l| l % 5 != 3) {
                counts.update(Text { tokens: &tokens[..len], prompt: 20 }, window);
                let mut logits = [2.0; 6];
                counts.penalize(&mut logits, &params, |_, was| assert_eq!(was, 2.0));
                let begin = len - window.unwrap_or(len).min(len);
                // Tokens 6 and 7 have no logit.
                for (id, logit) in logits.into_iter().enumerate() {
                    let places: Vec<usize> = (begin..len).filter(|i| tokens[*i] == id as u32).collect();
                    let answer = places.iter().filter(|i| **i >= 20).count() as f32;
                    let l = if places.is_empty() { 2.0 } else { 2.0 / 1.5 };
                    let expected = if answer > 0.0 { l - (0.25 * answer + 1.0) } else { l };
                    assert_eq!(logit, expected, "token {id} of {len}, window {window:?}");
                }
            }
        }
    }
}
