//! What commands over texts have in common: windows of them through a model, and what it answers in their order.

use crate::Failure;
use crate::commands::with_ran;
use crate::input::{Input, Text};
use crate::output::{Answers, Output, Seen, Writer};
use crate::report::Report;
use crate::tally::{Answered, Tally};
use sconce_engine::{Error, Loaded, Outputs, RequestContext};
use serde_json::Value;
use std::collections::VecDeque;
use std::iter::Peekable;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// Texts that are tokenized, sorted and packed together: enough to fill batches well, few enough to keep a bar moving.
const WINDOW: usize = 512;

/// Windows that are not yet kept: one that is being written, one that the model computes, and one that waits for it, tokenized.
const AHEAD: usize = 3;

/// Texts about to be read.
pub(crate) struct Texts {
    texts: Reading,
    bytes: Option<u64>,
}

const BUG: &str = "this is a bug of ours; please report it";

type Reading = Peekable<Box<dyn Iterator<Item = Result<Text, Failure>> + Send>>;

/// How a model is asked of windows.
pub(crate) struct Asking<'a, F> {
    /// Who asks: cancelled where something fails, so that what is under way is not waited for.
    pub(crate) caller: &'a RequestContext,
    /// What is asked. Of several windows at once, on threads of their own.
    pub(crate) ask: F,
}

/// Where the answers to texts go, and what is said of the model that gave them.
pub(crate) struct Answering<'a> {
    pub(crate) output: &'a Output,
    pub(crate) answers: Answers,
    pub(crate) model: &'a dyn Loaded,
    /// What JSON output says besides.
    pub(crate) about: Value,
}

/// What the thread hears that keeps answers.
enum News<A> {
    /// The next window was read, or could not be; none: there are no more.
    Read(Option<Result<Vec<Text>, Failure>>),
    /// The model's answer to a window, by its number.
    Answered(usize, Vec<Text>, Result<A, Failure>),
}

/// A window that is not yet kept.
enum Open<A> {
    /// With the model.
    Asked,
    Answered(Vec<Text>, A),
    Failed(Failure),
}

impl Texts {
    /// Opens the input. One that cannot be read at all should not wait for a model to load.
    pub(crate) fn open(input: &Input) -> Result<Texts, Failure> {
        let mut texts = input.texts()?.peekable();
        if let Some(Err(_)) = texts.peek() {
            texts.next().transpose()?;
        }
        Ok(Texts { texts, bytes: input.bytes() })
    }

    /// Window by window: asks the model, and has `keep` take what it answers, in the order of the texts.
    ///
    /// While one window is written the model computes the next, and yet another is read and tokenized: a machine is idle at no time
    /// of a long file, and no more than a few windows are in memory however slow either end is.
    pub(crate) fn each<A: Answered + Send + 'static>(
        self,
        report: &Report,
        asking: Asking<'_, impl Fn(&[Text]) -> Result<A, Failure> + Sync>,
        mut keep: impl FnMut(A, Vec<Text>) -> Result<(), Failure>,
    ) -> Result<Tally, Failure> {
        let template = match self.bytes {
            Some(_) => "{msg} [{bar:30}] {percent}% {eta}",
            None => "{msg} {spinner}",
        };
        let bar = report.bar(template, self.bytes);
        let mut tally = Tally::begun();
        let Asking { caller, ask } = &asking;
        let done = thread::scope(|scope| {
            let (tell, news) = channel();
            let told = tell.clone();
            let start = |number: usize, window: Vec<Text>| {
                let tell = told.clone();
                scope.spawn(move || {
                    // What it died of was told already.
                    let answer = catch_unwind(AssertUnwindSafe(|| ask(&window)));
                    let answer = answer.unwrap_or_else(|_| Err(BUG.into()));
                    let answer = answer.map_err(|e| placed(e, &window));
                    // Nobody listens any more where something failed.
                    let _ = tell.send(News::Answered(number, window, answer));
                });
            };
            let done = follow(&news, read(self.texts, tell), start, |answer: A, window| {
                tally.count(&answer, &window);
                tally.show(&bar, &window);
                keep(answer, window)
            });
            if done.is_err() {
                caller.cancel();
            }
            done
        });
        bar.finish_and_clear();
        done.map(|()| tally)
    }
}

impl Texts {
    /// Asks the model of every text, and has `write` put down one answer for each.
    pub(crate) fn answer<T: Send + 'static>(
        self,
        report: &Report,
        answering: Answering<'_>,
        asking: Asking<'_, impl Fn(&[Text]) -> Result<Outputs<T>, Failure> + Sync>,
        mut write: impl FnMut(&mut Writer, &Text, T, Option<Seen>) -> Result<(), Failure>,
    ) -> Result<ExitCode, Failure> {
        let Answering { output, answers, model, about } = answering;
        let mut writer = output.open(answers)?;
        let tally = self.each(report, asking, |outputs, window| {
            let Outputs { results, tokens, truncated } = outputs;
            for (i, (result, text)) in results.into_iter().zip(&window).enumerate() {
                let seen = Seen { tokens: tokens[i], truncated: truncated.binary_search(&i).is_ok() };
                write(&mut writer, text, result, Some(seen))?;
            }
            writer.show()
        })?;
        writer.finish(&with_ran(about, model))?;
        tally.close(report, model);
        Ok(ExitCode::SUCCESS)
    }
}

/// Reads a window whenever it is asked to, on a thread of its own: one that waits for a slow pipe keeps nothing from being written.
/// Nobody waits for that thread; it ends when it is asked no more.
fn read<A: Send + 'static>(mut texts: Reading, tell: Sender<News<A>>) -> Sender<()> {
    let (more, asked) = channel();
    thread::spawn(move || {
        for () in asked {
            let next = || texts.by_ref().take(WINDOW).collect::<Result<Vec<Text>, _>>();
            // What it died of was told already.
            let window = catch_unwind(AssertUnwindSafe(next)).unwrap_or_else(|_| Err(BUG.into()));
            let window = Some(window).filter(|w| !matches!(w, Ok(w) if w.is_empty()));
            if tell.send(News::Read(window)).is_err() {
                return;
            }
        }
    });
    more
}

/// Has windows read with `more`, asks of them with `start`, and keeps what `news` tells, until all are kept or the first has failed.
fn follow<A>(
    news: &Receiver<News<A>>,
    more: Sender<()>,
    start: impl Fn(usize, Vec<Text>),
    mut keep: impl FnMut(A, Vec<Text>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut open: VecDeque<Open<A>> = VecDeque::new();
    let (mut first, mut is_reading, mut is_over) = (0, false, false); // the number of the first that is open
    loop {
        if !is_over && !is_reading && open.len() < AHEAD {
            is_reading = more.send(()).is_ok();
            is_over = !is_reading;
        }
        if open.is_empty() && is_over {
            return Ok(());
        }
        match news.recv()? {
            News::Read(Some(Ok(window))) => {
                is_reading = false;
                start(first + open.len(), window);
                open.push_back(Open::Asked);
            }
            // What was read before is answered and kept, and then this is told.
            News::Read(Some(Err(e))) => {
                (is_reading, is_over) = (false, true);
                open.push_back(Open::Failed(e));
            }
            News::Read(None) => (is_reading, is_over) = (false, true),
            News::Answered(number, window, answer) => {
                open[number - first] = match answer {
                    Ok(answer) => Open::Answered(window, answer),
                    Err(e) => Open::Failed(e),
                };
            }
        }
        // The next is read while this is kept.
        while !matches!(open.front(), None | Some(Open::Asked)) {
            let front = open.pop_front();
            first += 1;
            if !is_over && !is_reading {
                is_reading = more.send(()).is_ok();
            }
            match front {
                Some(Open::Answered(window, answer)) => keep(answer, window)?,
                Some(Open::Failed(e)) => return Err(e),
                Some(Open::Asked) | None => {}
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    /// Answers with the lengths of its texts.
    struct Lengths(Vec<usize>);

    impl Answered for Lengths {
        fn tokens(&self) -> usize {
            self.0.iter().sum()
        }
        fn is_cut(&self, _: usize) -> bool {
            false
        }
    }

    /// So many texts; `bad` cannot be read. How many were is counted.
    fn texts(count: usize, bad: Option<usize>, read: &'static AtomicUsize) -> Texts {
        let text = move |i: usize| {
            read.fetch_add(1, SeqCst);
            match bad {
                Some(bad) if bad == i => Err(Failure::from(format!("f:{}: bad", i + 1))),
                _ => Ok(Text { text: format!("{i}"), object: None, origin: format!("f:{}", i + 1), bytes: 1 }),
            }
        };
        let texts: Box<dyn Iterator<Item = Result<Text, Failure>> + Send> = Box::new((0..count).map(text));
        Texts { texts: texts.peekable(), bytes: None }
    }

    fn counter() -> &'static AtomicUsize {
        Box::leak(Box::new(AtomicUsize::new(0)))
    }

    fn lengths(window: &[Text]) -> Result<Lengths, Failure> {
        Ok(Lengths(window.iter().map(|t| t.text.len()).collect()))
    }

    #[test]
    fn answers_come_in_order_whichever_window_is_done_first() {
        let (count, report, caller) = (9 * WINDOW + 7, Report::new(true), RequestContext::default());
        let mut kept = Vec::new();
        let slow_at_first = |window: &[Text]| {
            let number = window[0].text.parse::<usize>()? / WINDOW;
            thread::sleep(Duration::from_millis(if number.is_multiple_of(3) { 30 } else { 0 }));
            lengths(window)
        };
        let asking = Asking { caller: &caller, ask: slow_at_first };
        let keep = |answer: Lengths, window: Vec<Text>| {
            assert!(window.iter().zip(&answer.0).all(|(text, length)| text.text.len() == *length));
            kept.extend(window.into_iter().map(|t| t.text));
            Ok(())
        };
        let tally = texts(count, None, counter()).each(&report, asking, keep).unwrap();
        assert_eq!((tally.texts, kept.len()), (count, count));
        assert!(kept.iter().enumerate().all(|(i, text)| *text == i.to_string()));
    }

    #[test]
    fn the_first_error_in_order_is_told_behind_what_came_before_it() {
        let (report, caller) = (Report::new(true), RequestContext::default());
        let refuse = |window: &[Text]| match window.iter().position(|t| t.text == "1600") {
            Some(text) => Err(Error::Text { text, why: "no".into() }.into()),
            None => {
                // Those before it take longer than it does.
                thread::sleep(Duration::from_millis(50));
                lengths(window)
            }
        };
        let mut kept = 0;
        let keep = |_: Lengths, window: Vec<Text>| {
            kept += window.len();
            Ok(())
        };
        let unread = texts(10 * WINDOW, Some(4 * WINDOW), counter());
        let failed = unread.each(&report, Asking { caller: &caller, ask: refuse }, keep).err().unwrap();
        assert_eq!(failed.to_string(), "f:1601: no");
        assert_eq!(kept, 1600 / WINDOW * WINDOW);
        assert!(caller.is_cancelled());

        let mut kept = 0;
        let keep = |_: Lengths, window: Vec<Text>| {
            kept += window.len();
            Ok(())
        };
        let unread = texts(10 * WINDOW, Some(4 * WINDOW + 3), counter());
        // Windows are still with the model when the bad line is read.
        let slow = |window: &[Text]| {
            thread::sleep(Duration::from_millis(50));
            lengths(window)
        };
        let failed =
            unread.each(&report, Asking { caller: &RequestContext::default(), ask: slow }, keep).err().unwrap();
        assert_eq!((failed.to_string().as_str(), kept), ("f:2052: bad", 4 * WINDOW));
    }

    #[test]
    fn what_cannot_be_written_ends_it() {
        let (report, caller) = (Report::new(true), RequestContext::default());
        let keep = |_: Lengths, _: Vec<Text>| Err("the disk is full".into());
        let asking = Asking { caller: &caller, ask: lengths };
        let failed = texts(10 * WINDOW, None, counter()).each(&report, asking, keep).err().unwrap();
        assert_eq!((failed.to_string().as_str(), caller.is_cancelled()), ("the disk is full", true));
    }

    #[test]
    fn no_more_is_read_than_a_few_windows_ahead() {
        let (report, caller, read) = (Report::new(true), RequestContext::default(), counter());
        let (mut kept, mut most) = (0, 0);
        let keep = |_: Lengths, window: Vec<Text>| {
            kept += window.len();
            thread::sleep(Duration::from_millis(10));
            most = most.max(read.load(SeqCst).saturating_sub(kept));
            Ok(())
        };
        let asking = Asking { caller: &caller, ask: lengths };
        texts(30 * WINDOW, None, read).each(&report, asking, keep).unwrap();
        assert!((WINDOW..=(AHEAD + 1) * WINDOW).contains(&most), "{most} texts were read and not kept");
    }
}
