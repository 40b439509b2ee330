//! What commands over texts have in common: windows of them through a model, a bar, and at the end what was cut and what ran.

use crate::Failure;
use crate::commands::ran_line;
use crate::input::{Input, Text};
use crate::report::Report;
use sconce_engine::{
    Classified, Embeddings, Error, Loaded, MultiEmbeddings, Ranking, SparseEmbeddings, Tagged, Threes,
};
use std::iter::Peekable;
use std::time::Instant;

/// Texts that are tokenized, sorted and packed together: enough to fill batches well, few enough to keep a bar moving.
const WINDOW: usize = 512;

/// Texts about to be read.
pub(crate) struct Texts<'a> {
    texts: Peekable<Box<dyn Iterator<Item = Result<Text, Failure>> + 'a>>,
    bytes: Option<u64>,
}

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

impl<'a> Texts<'a> {
    /// Opens the input. One that cannot be read at all should not wait for a model to load.
    pub(crate) fn open(input: &'a Input) -> Result<Texts<'a>, Failure> {
        let mut texts = input.texts()?.peekable();
        if let Some(Err(_)) = texts.peek() {
            texts.next().transpose()?;
        }
        Ok(Texts { texts, bytes: input.bytes() })
    }

    /// Window by window: `ask` the model, and `keep` what it answers.
    pub(crate) fn each<A: Answered>(
        mut self,
        report: &Report,
        mut ask: impl FnMut(&[Text]) -> Result<A, Failure>,
        mut keep: impl FnMut(A, Vec<Text>) -> Result<(), Failure>,
    ) -> Result<Tally, Failure> {
        let template = match self.bytes {
            Some(_) => "{msg} [{bar:30}] {percent}% {eta}",
            None => "{msg} {spinner}",
        };
        let bar = report.bar(template, self.bytes);
        let mut tally = Tally { start: Instant::now(), texts: 0, tokens: 0, cut: 0, first_cut: None, blank: 0 };
        loop {
            let window = self.texts.by_ref().take(WINDOW).collect::<Result<Vec<Text>, _>>()?;
            if window.is_empty() {
                break;
            }
            let answer = ask(&window).map_err(|e| placed(e, &window))?;
            tally.count(&answer, &window);
            bar.inc(window.iter().map(|t| t.bytes).sum());
            let rate = tally.texts as f64 / tally.start.elapsed().as_secs_f64();
            bar.set_message(format!("{} texts, {rate:.0}/s", tally.texts));
            keep(answer, window)?;
        }
        bar.finish_and_clear();
        Ok(tally)
    }
}

impl Tally {
    fn count(&mut self, answer: &impl Answered, window: &[Text]) {
        let cut = || window.iter().enumerate().filter(|(i, _)| answer.is_cut(*i)).map(|(_, text)| text);
        if self.first_cut.is_none() {
            self.first_cut = cut().next().map(|text| text.origin.clone());
        }
        self.cut += cut().count();
        self.blank += window.iter().filter(|t| t.text.trim().is_empty()).count();
        self.tokens += answer.tokens();
        self.texts += window.len();
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

/// The words of each text.
pub(crate) fn words(window: &[Text]) -> Vec<&str> {
    window.iter().map(|t| t.text.as_str()).collect()
}

/// An error of one text names where that text came from.
fn placed(e: Failure, window: &[Text]) -> Failure {
    match e.downcast::<Error>().map(|e| *e) {
        Ok(Error::Text { text, why } | Error::TooLong { text, why }) if text < window.len() => {
            format!("{}: {why}", window[text].origin).into()
        }
        Ok(e) => e.into(),
        Err(e) => e,
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

impl Answered for SparseEmbeddings {
    fn tokens(&self) -> usize {
        self.tokens.iter().sum()
    }
    fn is_cut(&self, i: usize) -> bool {
        self.truncated.contains(&i)
    }
}

impl Answered for MultiEmbeddings {
    fn tokens(&self) -> usize {
        self.tokens.iter().sum()
    }
    fn is_cut(&self, i: usize) -> bool {
        self.truncated.contains(&i)
    }
}

impl Answered for Threes {
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

impl Answered for Vec<Classified> {
    fn tokens(&self) -> usize {
        self.iter().map(|c| c.tokens).sum()
    }
    fn is_cut(&self, i: usize) -> bool {
        self[i].truncated
    }
}

impl Answered for Vec<Tagged> {
    fn tokens(&self) -> usize {
        self.iter().map(|t| t.tokens).sum()
    }
    fn is_cut(&self, i: usize) -> bool {
        self[i].truncated
    }
}
