//! Results of a window without the texts that the model refuses, which are bad rows of a shard.

use super::reader::{BadRows, without_origin};
use crate::Failure;
use crate::input::Text;
use crate::summary::WindowResult;
use sconce_engine::Error;

/// Results of the texts of a window that the model did not refuse.
pub(super) struct PartialResults<A> {
    /// `None` if the model refused all texts.
    answer: Option<A>,
    /// Indices of refused texts in the window, in order, and the reasons.
    refused: Vec<(usize, String)>,
}

impl<A: WindowResult> WindowResult for PartialResults<A> {
    fn tokens(&self) -> usize {
        self.answer.as_ref().map_or(0, WindowResult::tokens)
    }

    fn is_truncated(&self, i: usize) -> bool {
        let before = self.refused.partition_point(|(refused, _)| *refused < i);
        let is_refused = self.refused.get(before).is_some_and(|(refused, _)| *refused == i);
        !is_refused && self.answer.as_ref().is_some_and(|answer| answer.is_truncated(i - before))
    }
}

impl<A> PartialResults<A> {
    /// The results and the texts that they are of. The others are bad rows.
    pub(super) fn split(self, mut window: Vec<Text>, bad: &BadRows) -> (Option<A>, Vec<Text>) {
        for (index, why) in self.refused.into_iter().rev() {
            let text = window.remove(index);
            bad.add(text.number.unwrap_or(0), &why);
        }
        (self.answer, window)
    }
}

/// Runs the model on a window. Texts that it refuses are left out, and the others run again: only
/// reading them, before the model runs, can be refused for a single text.
pub(super) fn run_without_refused<A>(
    window: &[Text],
    run: impl Fn(&[Text]) -> Result<A, Failure>,
) -> Result<PartialResults<A>, Failure> {
    let mut refused: Vec<(usize, String)> = Vec::new();
    let first = match run(window) {
        Ok(answer) => return Ok(PartialResults { answer: Some(answer), refused }),
        Err(e) => e,
    };
    // The texts that are left, and their indices in the window.
    let mut left: Vec<(usize, Text)> = window.iter().cloned().enumerate().collect();
    let mut failure = first;
    loop {
        let (text, why) = match failure.downcast::<Error>().map(|e| *e) {
            Ok(Error::Text { text, why } | Error::TooLong { text, why }) if text < left.len() => (text, why),
            Ok(e) => return Err(e.into()),
            Err(e) => return Err(e),
        };
        let (index, text) = left.remove(text);
        let place = refused.partition_point(|(before, _)| *before < index);
        refused.insert(place, (index, without_origin(&why, &text.origin).to_string()));
        if left.is_empty() {
            return Ok(PartialResults { answer: None, refused });
        }
        let texts: Vec<Text> = left.iter().map(|(_, text)| text.clone()).collect();
        match run(&texts) {
            Ok(answer) => return Ok(PartialResults { answer: Some(answer), refused }),
            Err(e) => failure = e,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_engine::Embeddings;

    fn window(texts: &[&str]) -> Vec<Text> {
        let text = |(i, text): (usize, &&str)| Text {
            text: (*text).into(),
            object: None,
            origin: format!("f:{i}"),
            number: Some(i as u64 + 1),
            bytes: 1,
        };
        texts.iter().enumerate().map(text).collect()
    }

    /// A model that refuses texts with an `x`, and truncates those with a `t`.
    fn run(texts: &[Text]) -> Result<Embeddings, Failure> {
        if let Some(text) = texts.iter().position(|text| text.text.contains('x')) {
            return Err(Error::TooLong { text, why: "too long".into() }.into());
        }
        let truncated = texts.iter().enumerate().filter_map(|(i, text)| text.text.contains('t').then_some(i));
        let tokens = vec![1; texts.len()];
        Ok(Embeddings { tokens, truncated: truncated.collect(), ..Embeddings::default() })
    }

    #[test]
    fn refused_texts_are_bad_rows_and_the_others_have_results() {
        let texts = window(&["a", "x1", "t", "x2", "b", "t"]);
        let partial = run_without_refused(&texts, run).unwrap();
        let truncated: Vec<bool> = (0..6).map(|i| partial.is_truncated(i)).collect();
        assert_eq!(truncated, [false, false, true, false, false, true]);
        assert_eq!(partial.tokens(), 4);
        let bad = BadRows::default();
        let (answer, left) = partial.split(texts, &bad);
        assert_eq!(left.iter().map(|text| text.text.as_str()).collect::<Vec<_>>(), ["a", "t", "b", "t"]);
        assert_eq!(answer.unwrap().tokens.len(), 4);
        assert_eq!(bad.lines(), "{\"row\":2,\"reason\":\"too long\"}\n{\"row\":4,\"reason\":\"too long\"}\n");

        let texts = window(&["x", "xx"]);
        let (answer, left) = run_without_refused(&texts, run).unwrap().split(texts, &BadRows::default());
        assert!(answer.is_none() && left.is_empty());
        let fails = |_: &[Text]| -> Result<Embeddings, Failure> { Err("the device is gone".into()) };
        assert!(run_without_refused(&window(&["a"]), fails).is_err());
    }
}
