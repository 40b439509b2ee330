//! Stream printer: prints an answer while it is generated; Ctrl-C ends it.

use crate::Failure;
use crate::report::Report;
use sconce_engine::{Event, Finish, NextEvent, SampledToken, Stream};
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Polling interval for Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(30);

/// Whether Ctrl-C was pressed.
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on Ctrl-C ends an answer instead of the program.
    pub(crate) fn install() -> Result<Interrupt, Failure> {
        let pressed = Arc::new(AtomicBool::new(false));
        let handler_flag = pressed.clone();
        ctrlc::set_handler(move || handler_flag.store(true, Ordering::SeqCst))?;
        Ok(Interrupt(pressed))
    }

    /// Whether it was pressed since the last call.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ending {
    Finished(Finish),
    Interrupted,
}

/// The `finish_reason` of OpenAI's API.
pub(crate) fn finish_reason(finish: &Finish) -> &'static str {
    match finish {
        Finish::End | Finish::Stop(_) => "stop",
        Finish::Length => "length",
    }
}

/// A printed answer and its timings.
pub(crate) struct PrintedAnswer {
    pub(crate) text: String,
    pub(crate) sampled: Vec<SampledToken>,
    pub(crate) ending: Ending,
    pub(crate) prompt_tokens: usize,
    /// Time to the first text, and the tokens that came with it.
    pub(crate) first: Option<(Duration, usize)>,
    pub(crate) took: Duration,
}

/// Prints the only answer of a stream while it is generated.
pub(crate) fn print_stream(
    stream: Stream,
    interrupt: &Interrupt,
    to: &mut dyn Write,
) -> Result<PrintedAnswer, Failure> {
    follow_stream(stream, interrupt, &mut |text, _| {
        to.write_all(text.as_bytes())?;
        to.flush()
    })
}

/// Passes new text and its tokens to `show` while the only answer of a stream is generated.
pub(crate) fn follow_stream(
    mut stream: Stream,
    interrupt: &Interrupt,
    show: &mut dyn FnMut(&str, &[SampledToken]) -> std::io::Result<()>,
) -> Result<PrintedAnswer, Failure> {
    let start = Instant::now();
    let prompt_tokens = stream.prompt_tokens();
    let (mut text, mut sampled, mut first) = (String::new(), Vec::new(), None);
    let ending = loop {
        if interrupt.take() {
            break Ending::Interrupted;
        }
        match stream.within(POLL_INTERVAL) {
            NextEvent::Nothing => {}
            NextEvent::Done => break Ending::Interrupted,
            NextEvent::Event(event) => match event? {
                Event::Begun { .. } => {}
                Event::End { finish, .. } => break Ending::Finished(finish),
                Event::Text { text: new, sampled: chosen, .. } => {
                    // Echoed text precedes all computation, so it does not count as the first
                    // token.
                    if !chosen.is_empty() {
                        first.get_or_insert_with(|| (start.elapsed(), chosen.len()));
                    }
                    show(&new, &chosen)?;
                    text.push_str(&new);
                    sampled.extend(chosen);
                }
            },
        }
    };
    Ok(PrintedAnswer { text, sampled, ending, prompt_tokens, first, took: start.elapsed() })
}

impl PrintedAnswer {
    /// Reports prompt and answer tokens per second, dimmed on a terminal.
    pub(crate) fn report_speed(&self, report: &Report) {
        let line = speed_line(self.prompt_tokens, self.sampled.len(), self.first, self.took);
        let how = match &self.ending {
            Ending::Interrupted => ", interrupted",
            Ending::Finished(Finish::Length) => ", cut at the token limit",
            Ending::Finished(_) => "",
        };
        let is_terminal = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let (dim, plain) = if is_terminal { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
        report.info(&format!("{dim}{line}{how}{plain}"));
    }
}

/// The first tokens of an answer count as prefill, the others as decoding. If the tokens form no
/// text before the last one, they all arrive at once.
fn speed_line(prompt: usize, answer: usize, first: Option<(Duration, usize)>, took: Duration) -> String {
    let rate = |tokens: usize, time: Duration| match time.as_secs_f64() {
        s if s > 0.0 && tokens > 0 => format!(" at {:.1}/s", tokens as f64 / s),
        _ => String::new(),
    };
    let Some((first, with_it)) = first else { return format!("prompt of {prompt} tokens, no answer") };
    let (read, wrote) = (rate(prompt, first), rate(answer.saturating_sub(with_it), took.saturating_sub(first)));
    format!("prompt of {prompt} tokens{read}, answer of {answer}{wrote}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_line_excludes_first_token_from_decode_speed() {
        let line = speed_line(100, 11, Some((Duration::from_secs(2), 1)), Duration::from_secs(7));
        assert_eq!(line, "prompt of 100 tokens at 50.0/s, answer of 11 at 2.0/s");
        assert_eq!(speed_line(5, 0, None, Duration::from_secs(1)), "prompt of 5 tokens, no answer");
        let all = speed_line(4, 9, Some((Duration::from_secs(1), 9)), Duration::from_millis(1001));
        assert_eq!(all, "prompt of 4 tokens at 4.0/s, answer of 9");
    }
}
