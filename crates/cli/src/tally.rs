//! What is counted while texts go through a model, and told at the end: what was cut, what was blank, and what ran.

use crate::commands::ran_line;
use crate::input::Text;
use crate::report::Report;
use indicatif::ProgressBar;
use sconce_engine::{Embeddings, Loaded, Outputs, Ranking};
use std::time::Instant;

/// What came of a window, as far as the closing lines tell it.
pub(crate) trait Answered {
    /// Tokens in all.
    fn tokens(&self) -> usize;
    /// Whether text `i` of the window was cut.
    fn is_cut(&self, i: usize) -> bool;
}

/// What was done.
pub(crate) struct Tally {
    start: Instant,
    pub(crate) texts: usize,
    pub(crate) tokens: usize,
    cut: usize,
    first_cut: Option<String>,
    blank: usize,
}

impl Tally {
    /// Nothing yet; time runs from now on.
    pub(crate) fn begun() -> Tally {
        Tally { start: Instant::now(), texts: 0, tokens: 0, cut: 0, first_cut: None, blank: 0 }
    }

    pub(crate) fn count(&mut self, answer: &impl Answered, window: &[Text]) {
        let cut = || window.iter().enumerate().filter(|(i, _)| answer.is_cut(*i)).map(|(_, text)| text);
        if self.first_cut.is_none() {
            self.first_cut = cut().next().map(|text| text.origin.clone());
        }
        self.cut += cut().count();
        self.blank += window.iter().filter(|t| t.text.trim().is_empty()).count();
        self.tokens += answer.tokens();
        self.texts += window.len();
    }

    pub(crate) fn show(&self, bar: &ProgressBar, window: &[Text]) {
        bar.inc(window.iter().map(|t| t.bytes).sum());
        let rate = self.texts as f64 / self.start.elapsed().as_secs_f64();
        bar.set_message(format!("{} texts, {rate:.0}/s", self.texts));
    }

    /// Says what was cut, what was blank, and what ran.
    pub(crate) fn close(&self, report: &Report, model: &dyn Loaded) {
        let Tally { texts, tokens, cut, blank, .. } = self;
        if let Some(origin) = &self.first_cut {
            let most = model.plan().max_tokens;
            report.warn(&format!(
                "{cut} of {texts} texts are longer than {most} tokens and were cut (the first: {origin})"
            ));
        }
        if *blank > 0 {
            report.warn(&format!("{blank} of {texts} texts are blank; the answer is that to an empty text"));
        }
        let (s, seconds) = (if *texts == 1 { "" } else { "s" }, self.start.elapsed().as_secs_f64());
        report.say(&format!("{texts} text{s}, {tokens} tokens in {seconds:.2} s on {}", ran_line(model)));
    }
}

impl Answered for Embeddings {
    fn tokens(&self) -> usize {
        self.tokens.iter().sum()
    }
    fn is_cut(&self, i: usize) -> bool {
        self.truncated.contains(&i)
    }
}

impl<T> Answered for Outputs<T> {
    fn tokens(&self) -> usize {
        self.tokens.iter().sum()
    }
    fn is_cut(&self, i: usize) -> bool {
        self.truncated.contains(&i)
    }
}

impl Answered for Ranking {
    fn tokens(&self) -> usize {
        self.tokens
    }
    fn is_cut(&self, i: usize) -> bool {
        self.truncated.contains(&i)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(texts: &[&str], first: usize) -> Vec<Text> {
        let text = |(i, text): (usize, &&str)| Text {
            text: (*text).into(),
            object: None,
            origin: format!("f:{}", first + i),
            bytes: text.len() as u64,
        };
        texts.iter().enumerate().map(text).collect()
    }

    #[test]
    fn windows_add_up_and_the_first_text_that_was_cut_is_named() {
        let mut tally = Tally::begun();
        let answer = |tokens: &[usize], truncated: &[usize]| Embeddings {
            tokens: tokens.to_vec(),
            truncated: truncated.to_vec(),
            ..Embeddings::default()
        };
        tally.count(&answer(&[3, 4], &[]), &window(&["a", " \t"], 1));
        tally.count(&answer(&[5, 9, 9], &[1, 2]), &window(&["", "long", "longer"], 3));
        tally.count(&answer(&[9], &[0]), &window(&["long"], 6));
        assert_eq!((tally.texts, tally.tokens, tally.cut, tally.blank), (6, 39, 3, 2));
        assert_eq!(tally.first_cut.as_deref(), Some("f:4"));
    }
}
