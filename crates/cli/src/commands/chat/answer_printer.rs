//! Prints an answer while it is generated: its text, and before it the thought of a model that
//! reasons, dimmed on a terminal.

use sconce_engine::{AnswerParser, AnswerPart, Llm, SampledToken, Thoughts};
use std::io::{self, Write};

/// Whether the thought is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThoughtStyle {
    /// Dimmed, before the answer.
    Dimmed,
    /// As it is, before the answer: a terminal without colours.
    Plain,
    /// Not at all: the output is for a program.
    Hidden,
}

impl ThoughtStyle {
    /// For standard output.
    pub(super) fn of_terminal(is_terminal: bool, has_colors: bool) -> ThoughtStyle {
        match (is_terminal, has_colors) {
            (true, true) => ThoughtStyle::Dimmed,
            (true, false) => ThoughtStyle::Plain,
            (false, _) => ThoughtStyle::Hidden,
        }
    }
}

/// The printer of one answer.
pub(super) struct AnswerPrinter<'a> {
    to: &'a mut dyn Write,
    style: ThoughtStyle,
    parser: AnswerParser,
    /// Markers of thoughts that are control tokens.
    markers: Vec<(u32, &'static str)>,
    /// The thought so far.
    pub(super) thought: String,
    /// The text so far.
    pub(super) text: String,
    /// Whether the end of the thought is still to be printed.
    is_thinking: bool,
}

impl<'a> AnswerPrinter<'a> {
    /// For the answer to `prompt` of a model that reasons as `thoughts` says.
    pub(super) fn new(
        llm: &Llm,
        thoughts: Option<Thoughts>,
        prompt: &str,
        (to, style): (&'a mut dyn Write, ThoughtStyle),
    ) -> AnswerPrinter<'a> {
        let (mut parser, mut markers) = (AnswerParser::default(), Vec::new());
        if let Some(Thoughts { syntax, .. }) = thoughts {
            parser = parser.with_thoughts(syntax, syntax.is_opened_by(prompt));
            markers = llm.markers(&syntax.marks());
        }
        AnswerPrinter::with_parser(parser, markers, (to, style))
    }

    fn with_parser(
        parser: AnswerParser,
        markers: Vec<(u32, &'static str)>,
        (to, style): (&'a mut dyn Write, ThoughtStyle),
    ) -> AnswerPrinter<'a> {
        let (thought, text) = (String::new(), String::new());
        AnswerPrinter { to, style, parser, markers, thought, text, is_thinking: false }
    }

    /// Prints new text of the answer.
    pub(super) fn push(&mut self, llm: &Llm, text: &str, sampled: &[SampledToken]) -> io::Result<()> {
        let text = llm.with_markers(text.to_owned(), sampled, &self.markers);
        let parts = self.parser.push(&text);
        self.print(parts)
    }

    /// Prints the rest.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        let parts = self.parser.finish();
        self.print(parts)?;
        self.end_thought("")?;
        self.to.flush()
    }

    fn print(&mut self, parts: Vec<AnswerPart>) -> io::Result<()> {
        for part in parts {
            match part {
                AnswerPart::Reasoning(thought) => {
                    if self.style == ThoughtStyle::Dimmed && !self.is_thinking {
                        write!(self.to, "\x1b[2m")?;
                    }
                    self.is_thinking = true;
                    if self.style != ThoughtStyle::Hidden {
                        write!(self.to, "{thought}")?;
                    }
                    self.thought.push_str(&thought);
                }
                AnswerPart::Text(text) => {
                    self.end_thought("\n\n")?;
                    write!(self.to, "{text}")?;
                    self.text.push_str(&text);
                }
                // Without tools an answer has no calls.
                AnswerPart::Call { .. } | AnswerPart::Arguments { .. } => {}
            }
        }
        self.to.flush()
    }

    fn end_thought(&mut self, then: &str) -> io::Result<()> {
        if !std::mem::take(&mut self.is_thinking) {
            return Ok(());
        }
        match self.style {
            ThoughtStyle::Dimmed => write!(self.to, "\x1b[0m{then}"),
            ThoughtStyle::Plain => write!(self.to, "{then}"),
            ThoughtStyle::Hidden => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_engine::ReasoningSyntax;

    fn printed(style: ThoughtStyle, pieces: &[&str]) -> (String, String, String) {
        let mut to = Vec::new();
        let parser = AnswerParser::default().with_thoughts(ReasoningSyntax::all()[0], false);
        let mut printer = AnswerPrinter::with_parser(parser, Vec::new(), (&mut to, style));
        for piece in pieces {
            let parts = printer.parser.push(piece);
            printer.print(parts).unwrap();
        }
        printer.finish().unwrap();
        let (thought, text) = (printer.thought, printer.text);
        (String::from_utf8(to).unwrap(), thought, text)
    }

    #[test]
    fn thought_is_dimmed_or_hidden() {
        let answer = ["<think>\nHm, ", "well.\n</think>\n", "\nYes."];
        let parts = ("Hm, well.".to_owned(), "Yes.".to_owned());
        for (style, text) in [
            (ThoughtStyle::Dimmed, "\x1b[2mHm, well.\x1b[0m\n\nYes."),
            (ThoughtStyle::Plain, "Hm, well.\n\nYes."),
            (ThoughtStyle::Hidden, "Yes."),
        ] {
            assert_eq!(printed(style, &answer), (text.into(), parts.0.clone(), parts.1.clone()), "{style:?}");
        }
        // An interrupted thought leaves the terminal as it was.
        assert_eq!(printed(ThoughtStyle::Dimmed, &["<think>Hm"]).0, "\x1b[2mHm\x1b[0m");
        assert_eq!(printed(ThoughtStyle::Dimmed, &["Yes."]).0, "Yes.");
    }
}
