//! Standard error: notes, warnings and progress bars.

use indicatif::{ProgressBar, ProgressStyle};
use sconce_engine::hub::Progress;
use std::io::IsTerminal;
use std::sync::Mutex;

pub(crate) struct Report {
    quiet: bool,
    bar: Mutex<Option<ProgressBar>>,
}

impl Report {
    pub(crate) fn new(quiet: bool) -> Report {
        Report { quiet, bar: Mutex::new(None) }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    pub(crate) fn error(&self, line: &str) {
        self.line(&format!("error: {line}"));
    }

    pub(crate) fn warn(&self, line: &str) {
        if !self.quiet {
            self.line(&format!("warning: {line}"));
        }
    }

    pub(crate) fn info(&self, line: &str) {
        if !self.quiet {
            self.line(line);
        }
    }

    /// A progress bar over `length` steps, or a spinner if the length is unknown. Hidden unless
    /// standard error is a terminal.
    pub(crate) fn bar(&self, template: &str, length: Option<u64>) -> ProgressBar {
        if self.quiet || !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = length.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(std::time::Duration::from_millis(200));
        bar
    }

    /// Prints above the bar, if there is one.
    fn line(&self, line: &str) {
        match self.bar.lock().ok().as_deref() {
            Some(Some(bar)) if !bar.is_hidden() => bar.println(line),
            _ => eprintln!("{line}"),
        }
    }

    fn with_bar(&self, f: impl FnOnce(&mut Option<ProgressBar>)) {
        if let Ok(mut bar) = self.bar.lock() {
            f(&mut bar);
        }
    }
}

impl Progress for Report {
    fn note(&self, line: &str) {
        self.info(line);
    }

    fn begin(&self, what: &str, bytes: u64) {
        let template = if bytes == 0 {
            "{msg} {spinner} {elapsed}"
        } else {
            "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}"
        };
        let bar = self.bar(template, (bytes > 0).then_some(bytes)).with_message(what.to_string());
        self.with_bar(|slot| *slot = Some(bar));
    }

    fn advance(&self, bytes: u64) {
        self.with_bar(|slot| slot.iter().for_each(|bar| bar.inc(bytes)));
    }

    fn end(&self) {
        self.with_bar(|slot| slot.take().iter().for_each(ProgressBar::finish_and_clear));
    }
}
