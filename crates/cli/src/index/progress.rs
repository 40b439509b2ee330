//! The line that shows how far indexing is.

use crate::report::Report;
use indicatif::{HumanCount, HumanDuration, ProgressBar};
use sconce_index::{Phase, Progress};

/// A progress bar on a terminal; nothing elsewhere.
pub(crate) struct ProgressLine(ProgressBar);

impl ProgressLine {
    pub(crate) fn new(report: &Report) -> ProgressLine {
        ProgressLine(report.bar("[{bar:30}] {msg}", Some(1)))
    }

    pub(crate) fn show(&self, progress: &Progress) {
        // A bar of length 0 would be full.
        self.0.set_length(progress.bytes.max(1));
        self.0.set_position(progress.bytes_done);
        self.0.set_message(message(progress));
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Files, chunks, rate and time left.
fn message(progress: &Progress) -> String {
    let (found, files) = (HumanCount(progress.found), HumanCount(progress.files));
    match progress.phase {
        Phase::Walking => format!("looking for files: {found}"),
        Phase::Embedding => {
            let left = progress.left.map_or_else(String::new, |left| format!(", {} left", HumanDuration(left)));
            let problems = match progress.problems {
                0 => String::new(),
                n => format!(", {} left out", HumanCount(n)),
            };
            let (chunks, rate) = (HumanCount(progress.chunks), progress.rate());
            format!("{files} of {found} files{problems}, {chunks} chunks, {rate:.0}/s{left}")
        }
        Phase::Finishing => format!("{files} files, {} chunks, writing codes", HumanCount(progress.chunks)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_line_has_files_chunks_rate_and_time_left() {
        let mut progress = Progress {
            phase: Phase::Walking,
            found: 1234,
            files: 0,
            problems: 0,
            bytes: 0,
            bytes_done: 0,
            chunks: 0,
            current: None,
            elapsed: Duration::ZERO,
            left: None,
        };
        assert_eq!(message(&progress), "looking for files: 1,234");
        progress = Progress {
            phase: Phase::Embedding,
            files: 100,
            problems: 2,
            chunks: 5000,
            elapsed: Duration::from_secs(10),
            left: Some(Duration::from_secs(180)),
            ..progress
        };
        assert_eq!(message(&progress), "100 of 1,234 files, 2 left out, 5,000 chunks, 500/s, 3 minutes left");
        progress.phase = Phase::Finishing;
        assert_eq!(message(&progress), "100 files, 5,000 chunks, writing codes");
    }
}
