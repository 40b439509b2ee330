//! Counters over all texts of a command and the summary at its end: truncated texts, blank texts,
//! and what ran.

use crate::commands::run_line;
use crate::input::Text;
use crate::report::Report;
use indicatif::ProgressBar;
use sconce_engine::{Embeddings, Loaded, Outputs, Ranking};
use std::time::Instant;

/// Results of a window, as the summary needs them.
pub(crate) trait WindowResult {
    /// Total tokens.
    fn tokens(&self) -> usize;
    /// Whether text `i` of the window was truncated.
    fn is_truncated(&self, i: usize) -> bool;
}

/// Counters of a command.
pub(crate) struct Summary {
    started: Instant,
    pub(crate) texts: usize,
    pub(crate) tokens: usize,
    truncated: usize,
    first_truncated: Option<String>,
    blank: usize,
}

impl Summary {
    /// Starts the timer.
    pub(crate) fn start() -> Summary {
        Summary { started: Instant::now(), texts: 0, tokens: 0, truncated: 0, first_truncated: None, blank: 0 }
    }

    pub(crate) fn count(&mut self, answer: &impl WindowResult, window: &[Text]) {
        let truncated = || window.iter().enumerate().filter(|(i, _)| answer.is_truncated(*i)).map(|(_, text)| text);
        if self.first_truncated.is_none() {
            self.first_truncated = truncated().next().map(|text| text.origin.clone());
        }
        self.truncated += truncated().count();
        self.blank += window.iter().filter(|t| t.text.trim().is_empty()).count();
        self.tokens += answer.tokens();
        self.texts += window.len();
    }

    /// Texts per second.
    pub(crate) fn rate(&self) -> f64 {
        self.texts as f64 / self.started.elapsed().as_secs_f64()
    }

    pub(crate) fn show(&self, bar: &ProgressBar, window: &[Text]) {
        bar.inc(window.iter().map(|t| t.bytes).sum());
        let rate = self.rate();
        bar.set_message(format!("{} texts, {rate:.0}/s", self.texts));
    }

    /// Reports truncated texts, blank texts and what ran. `way_out` is a flag that reads long texts
    /// whole.
    pub(crate) fn report(&self, report: &Report, model: &dyn Loaded, way_out: Option<&str>) {
        let Summary { texts, tokens, truncated, blank, .. } = self;
        if let Some(origin) = &self.first_truncated {
            let most = model.plan().max_tokens;
            let way_out = way_out.map_or_else(String::new, |flag| format!("; {flag} reads them whole, in windows"));
            report.warn(&format!(
                "{truncated} of {texts} texts are longer than {most} tokens and were cut (the first: {origin}){way_out}"
            ));
        }
        if *blank > 0 {
            report.warn(&format!("{blank} of {texts} texts are blank; they were processed as empty texts"));
        }
        let (s, seconds) = (if *texts == 1 { "" } else { "s" }, self.started.elapsed().as_secs_f64());
        report.info(&format!("{texts} text{s}, {tokens} tokens in {seconds:.2} s on {}", run_line(model)));
    }
}

impl WindowResult for Embeddings {
    fn tokens(&self) -> usize {
        self.tokens.iter().sum()
    }
    fn is_truncated(&self, i: usize) -> bool {
        self.truncated.contains(&i)
    }
}

impl<T> WindowResult for Outputs<T> {
    fn tokens(&self) -> usize {
        self.tokens.iter().sum()
    }
    fn is_truncated(&self, i: usize) -> bool {
        self.truncated.contains(&i)
    }
}

impl WindowResult for Ranking {
    fn tokens(&self) -> usize {
        self.tokens
    }
    fn is_truncated(&self, i: usize) -> bool {
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
            number: None,
            bytes: text.len() as u64,
        };
        texts.iter().enumerate().map(text).collect()
    }

    #[test]
    fn summary_sums_windows_and_names_first_truncated_text() {
        let mut summary = Summary::start();
        let answer = |tokens: &[usize], truncated: &[usize]| Embeddings {
            tokens: tokens.to_vec(),
            truncated: truncated.to_vec(),
            ..Embeddings::default()
        };
        summary.count(&answer(&[3, 4], &[]), &window(&["a", " \t"], 1));
        summary.count(&answer(&[5, 9, 9], &[1, 2]), &window(&["", "long", "longer"], 3));
        summary.count(&answer(&[9], &[0]), &window(&["long"], 6));
        assert_eq!((summary.texts, summary.tokens, summary.truncated, summary.blank), (6, 39, 3, 2));
        assert_eq!(summary.first_truncated.as_deref(), Some("f:4"));
    }
}
