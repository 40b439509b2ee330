//! Windowed runner: passes texts to a model in windows and handles the results in order.

use crate::Failure;
use crate::input::{Input, NeededFields, Text, TextIterator};
use crate::output::Output;
use crate::report::Report;
use crate::row::{Columns, Row};
use crate::summary::{Summary, WindowResult};
use indicatif::ProgressBar;
use sconce_engine::{Error, RequestContext};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// Texts that are tokenized, sorted and batched together: enough to fill batches well, few enough
/// to keep the progress bar moving.
const WINDOW: usize = 512;

/// A window takes no further text beyond this many bytes of input: long texts must fit into memory.
const MAX_WINDOW_BYTES: usize = 64 << 20;

/// Windows in memory: one being written, one being computed, and one tokenized and waiting for the
/// device.
const MAX_OPEN_WINDOWS: usize = 3;

/// Template of a progress bar over bytes of input.
pub(crate) const BAR: &str = "{msg} [{bar:30}] {percent}% {eta}";

/// What a command has done so far.
pub(crate) struct Total {
    pub(crate) bar: ProgressBar,
    pub(crate) summary: Summary,
}

/// Texts about to be read.
pub(crate) struct Texts {
    texts: TextIterator,
    bytes: Option<u64>,
    /// Columns of the input that the output keeps.
    pub(crate) columns: Columns,
}

const BUG_MESSAGE: &str = "this is a bug in sconce; please report it";

/// How to run the model on windows.
pub(crate) struct ModelCall<'a, F> {
    /// Cancelled on an error, so that running requests are not waited for.
    pub(crate) context: &'a RequestContext,
    /// Runs the model on one window. Several windows run at once, each on its own thread.
    pub(crate) run: F,
}

/// Messages to the thread that handles results.
enum RunnerEvent<A> {
    /// The next window was read, or could not be; `None` at the end of the input.
    Read(Option<Result<Vec<Text>, Failure>>),
    /// The model's results for a window, by its number.
    Computed(usize, Vec<Text>, Result<A, Failure>),
}

/// A window whose results are not handled yet.
enum WindowState<A> {
    /// The model is running on it.
    Running,
    Done(Vec<Text>, A),
    Failed(Failure),
}

impl Texts {
    /// Texts that come one after the other, without columns of an output.
    pub(crate) fn of(texts: TextIterator) -> Texts {
        Texts { texts, bytes: None, columns: Columns::default() }
    }

    /// Opens the input. If it cannot be read at all, that is reported before a model is loaded.
    pub(crate) fn open(input: &Input) -> Result<Texts, Failure> {
        let texts = input.texts(NeededFields::Only(&[input.field()]))?;
        Ok(Texts { texts, bytes: input.bytes(), columns: Columns::default() })
    }

    /// Opens the input for an output that may keep its other fields. `more` are fields that are
    /// needed besides the text.
    pub(crate) fn open_for(input: &Input, output: &Output, more: Option<&str>) -> Result<Texts, Failure> {
        let needed: Vec<&str> = [input.field()].into_iter().chain(more).collect();
        let needed = if output.keeps_fields() { NeededFields::All } else { NeededFields::Only(&needed) };
        let texts = input.texts(needed)?;
        Ok(Texts { texts, bytes: input.bytes(), columns: output.columns(input)? })
    }

    /// Runs the model on all windows and passes the results to `handle`, in the order of the texts.
    ///
    /// While one window is written, the model computes the next, and a third is read and tokenized.
    /// So the device is never idle during a long file, and at most a few windows are in memory,
    /// however slow either end is.
    pub(crate) fn run_windows<A: WindowResult + Send + 'static>(
        self,
        report: &Report,
        model_call: ModelCall<'_, impl Fn(&[Text]) -> Result<A, Failure> + Sync>,
        handle: impl FnMut(A, Vec<Text>) -> Result<(), Failure>,
    ) -> Result<Summary, Failure> {
        let template = match self.bytes {
            Some(_) => BAR,
            None => "{msg} {spinner}",
        };
        let mut total = Total { bar: report.bar(template, self.bytes), summary: Summary::start() };
        let done = self.add_windows(&mut total, model_call, handle);
        total.bar.finish_and_clear();
        done.map(|()| total.summary)
    }

    /// The same, where these texts are a part of what a command does.
    pub(crate) fn add_windows<A: WindowResult + Send + 'static>(
        self,
        total: &mut Total,
        model_call: ModelCall<'_, impl Fn(&[Text]) -> Result<A, Failure> + Sync>,
        mut handle: impl FnMut(A, Vec<Text>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Total { bar, summary } = total;
        let ModelCall { context, run } = &model_call;
        thread::scope(|scope| {
            let (sender, events) = channel();
            let window_sender = sender.clone();
            let start = |number: usize, window: Vec<Text>| {
                let sender = window_sender.clone();
                scope.spawn(move || {
                    // The panic hook has printed the cause.
                    let answer = catch_unwind(AssertUnwindSafe(|| run(&window)));
                    let answer = answer.unwrap_or_else(|_| Err(BUG_MESSAGE.into()));
                    let answer = answer.map_err(|e| with_origin(e, &window));
                    // After an error the receiver is gone.
                    let _ = sender.send(RunnerEvent::Computed(number, window, answer));
                });
            };
            let done = run_in_order(&events, read(self.texts, sender), start, |answer: A, window| {
                summary.count(&answer, &window);
                summary.show(bar, &window);
                handle(answer, window)
            });
            if done.is_err() {
                context.cancel();
            }
            done
        })
    }
}

/// Reads a window on request, on a thread of its own, so that a slow pipe does not delay the
/// output. The thread is not joined; it ends when `more` is dropped.
fn read<A: Send + 'static>(mut texts: TextIterator, sender: Sender<RunnerEvent<A>>) -> Sender<()> {
    let (more, requests) = channel();
    thread::spawn(move || {
        for () in requests {
            // The panic hook has printed the cause.
            let window =
                catch_unwind(AssertUnwindSafe(|| next_window(&mut texts))).unwrap_or_else(|_| Err(BUG_MESSAGE.into()));
            let window = Some(window).filter(|w| !matches!(w, Ok(w) if w.is_empty()));
            if sender.send(RunnerEvent::Read(window)).is_err() {
                return;
            }
        }
    });
    more
}

fn next_window(texts: &mut TextIterator) -> Result<Vec<Text>, Failure> {
    let (mut window, mut bytes) = (Vec::new(), 0);
    while window.len() < WINDOW && bytes < MAX_WINDOW_BYTES {
        let Some(text) = texts.next().transpose()? else { break };
        // Rows of a compressed file are larger than their share of it.
        let row = text.object.as_ref().map_or(0, Row::bytes);
        bytes += (text.text.len() + row).max(text.bytes as usize);
        window.push(text);
    }
    Ok(window)
}

/// Requests windows with `more`, runs the model with `start`, and handles the results in order,
/// until all are handled or the first error.
fn run_in_order<A>(
    events: &Receiver<RunnerEvent<A>>,
    more: Sender<()>,
    start: impl Fn(usize, Vec<Text>),
    mut handle: impl FnMut(A, Vec<Text>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut open: VecDeque<WindowState<A>> = VecDeque::new();
    // `first` is the number of the first open window.
    let (mut first, mut is_reading, mut is_over) = (0, false, false);
    loop {
        if !is_over && !is_reading && open.len() < MAX_OPEN_WINDOWS {
            is_reading = more.send(()).is_ok();
            is_over = !is_reading;
        }
        if open.is_empty() && is_over {
            return Ok(());
        }
        match events.recv()? {
            RunnerEvent::Read(Some(Ok(window))) => {
                is_reading = false;
                start(first + open.len(), window);
                open.push_back(WindowState::Running);
            }
            // Windows read before the error are still computed and handled; then the error is
            // returned.
            RunnerEvent::Read(Some(Err(e))) => {
                (is_reading, is_over) = (false, true);
                open.push_back(WindowState::Failed(e));
            }
            RunnerEvent::Read(None) => (is_reading, is_over) = (false, true),
            RunnerEvent::Computed(number, window, answer) => {
                open[number - first] = match answer {
                    Ok(answer) => WindowState::Done(window, answer),
                    Err(e) => WindowState::Failed(e),
                };
            }
        }
        // The next window is read while this one is handled.
        while !matches!(open.front(), None | Some(WindowState::Running)) {
            let front = open.pop_front();
            first += 1;
            if !is_over && !is_reading {
                is_reading = more.send(()).is_ok();
            }
            match front {
                Some(WindowState::Done(window, answer)) => handle(answer, window)?,
                Some(WindowState::Failed(e)) => return Err(e),
                Some(WindowState::Running) | None => {}
            }
        }
    }
}

/// The strings of a window.
pub(crate) fn strings(window: &[Text]) -> Vec<&str> {
    window.iter().map(|t| t.text.as_str()).collect()
}

/// Puts the origin of a text before its error.
fn with_origin(e: Failure, window: &[Text]) -> Failure {
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

    /// The lengths of the texts.
    struct Lengths(Vec<usize>);

    impl WindowResult for Lengths {
        fn tokens(&self) -> usize {
            self.0.iter().sum()
        }
        fn is_truncated(&self, _: usize) -> bool {
            false
        }
    }

    /// `count` texts, of which number `bad` cannot be read. `read` counts those read.
    fn texts(count: usize, bad: Option<usize>, read: &'static AtomicUsize) -> Texts {
        let text = move |i: usize| {
            read.fetch_add(1, SeqCst);
            match bad {
                Some(bad) if bad == i => Err(Failure::from(format!("f:{}: bad", i + 1))),
                _ => Ok(Text {
                    text: format!("{i}"),
                    object: None,
                    origin: format!("f:{}", i + 1),
                    number: None,
                    bytes: 1,
                }),
            }
        };
        let texts: Box<dyn Iterator<Item = Result<Text, Failure>> + Send> = Box::new((0..count).map(text));
        Texts { texts: texts.peekable(), bytes: None, columns: Columns::default() }
    }

    fn counter() -> &'static AtomicUsize {
        Box::leak(Box::new(AtomicUsize::new(0)))
    }

    fn lengths(window: &[Text]) -> Result<Lengths, Failure> {
        Ok(Lengths(window.iter().map(|t| t.text.len()).collect()))
    }

    #[test]
    fn results_keep_input_order_when_windows_finish_out_of_order() {
        let (count, report, caller) = (9 * WINDOW + 7, Report::new(true), RequestContext::default());
        let mut handled = Vec::new();
        let slow_every_third = |window: &[Text]| {
            let number = window[0].text.parse::<usize>()? / WINDOW;
            // Every third window takes longer than those after it.
            thread::sleep(Duration::from_millis(if number.is_multiple_of(3) { 30 } else { 0 }));
            lengths(window)
        };
        let model_call = ModelCall { context: &caller, run: slow_every_third };
        let handle = |answer: Lengths, window: Vec<Text>| {
            assert!(window.iter().zip(&answer.0).all(|(text, length)| text.text.len() == *length));
            handled.extend(window.into_iter().map(|t| t.text));
            Ok(())
        };
        let summary = texts(count, None, counter()).run_windows(&report, model_call, handle).unwrap();
        assert_eq!((summary.texts, handled.len()), (count, count));
        assert!(handled.iter().enumerate().all(|(i, text)| *text == i.to_string()));
    }

    #[test]
    fn first_error_is_returned_after_all_earlier_windows() {
        let (report, caller) = (Report::new(true), RequestContext::default());
        let refuse = |window: &[Text]| match window.iter().position(|t| t.text == "1600") {
            Some(text) => Err(Error::Text { text, why: "no".into() }.into()),
            None => {
                // The windows before the refused one take longer.
                thread::sleep(Duration::from_millis(50));
                lengths(window)
            }
        };
        let mut handled = 0;
        let handle = |_: Lengths, window: Vec<Text>| {
            handled += window.len();
            Ok(())
        };
        let input = texts(10 * WINDOW, Some(4 * WINDOW), counter());
        let error = input.run_windows(&report, ModelCall { context: &caller, run: refuse }, handle).err().unwrap();
        assert_eq!(error.to_string(), "f:1601: no");
        assert_eq!(handled, 1600 / WINDOW * WINDOW);
        assert!(caller.is_cancelled());

        let mut handled = 0;
        let handle = |_: Lengths, window: Vec<Text>| {
            handled += window.len();
            Ok(())
        };
        let input = texts(10 * WINDOW, Some(4 * WINDOW + 3), counter());
        // The model still runs on earlier windows when the bad line is read.
        let slow = |window: &[Text]| {
            thread::sleep(Duration::from_millis(50));
            lengths(window)
        };
        let error = input
            .run_windows(&report, ModelCall { context: &RequestContext::default(), run: slow }, handle)
            .err()
            .unwrap();
        assert_eq!((error.to_string().as_str(), handled), ("f:2052: bad", 4 * WINDOW));
    }

    #[test]
    fn write_error_cancels_the_run() {
        let (report, caller) = (Report::new(true), RequestContext::default());
        let handle = |_: Lengths, _: Vec<Text>| Err("the disk is full".into());
        let model_call = ModelCall { context: &caller, run: lengths };
        let error = texts(10 * WINDOW, None, counter()).run_windows(&report, model_call, handle).err().unwrap();
        assert_eq!((error.to_string().as_str(), caller.is_cancelled()), ("the disk is full", true));
    }

    #[test]
    fn reading_stays_a_few_windows_ahead() {
        let (report, caller, read) = (Report::new(true), RequestContext::default(), counter());
        let (mut handled, mut max_ahead) = (0, 0);
        let handle = |_: Lengths, window: Vec<Text>| {
            handled += window.len();
            // A slow writer: without a limit, reading would get far ahead.
            thread::sleep(Duration::from_millis(10));
            max_ahead = max_ahead.max(read.load(SeqCst).saturating_sub(handled));
            Ok(())
        };
        let model_call = ModelCall { context: &caller, run: lengths };
        texts(30 * WINDOW, None, read).run_windows(&report, model_call, handle).unwrap();
        assert!((WINDOW..=(MAX_OPEN_WINDOWS + 1) * WINDOW).contains(&max_ahead), "{max_ahead} texts were read ahead");
    }
}
