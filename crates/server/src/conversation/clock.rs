//! How long the prompt and the answer of a request take.

use sconce_api::timings::{PromptProgress, Timings};
use std::time::{Duration, Instant};

/// A part of a prompt was computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Index of the first answer to the prompt.
    pub(crate) first: usize,
    /// Tokens of the prompt that were in the prefix cache.
    pub(crate) cached: usize,
    /// Tokens that are computed, the cached ones included.
    pub(crate) processed: usize,
    /// When.
    pub(crate) at: Instant,
}

/// The clock of one answer. It is driven by the times at which the engine reported its events, so
/// that a client that reads slowly does not change them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    begun: Option<Instant>,
    cached: usize,
    processed: usize,
    /// When the last part of the prompt was computed; after that, the first token.
    prompt_end: Option<Instant>,
    last: Option<Instant>,
    generated: usize,
}

impl Clock {
    /// Returns the cached tokens, which only the first event of a prompt has.
    pub(super) fn prompt(&mut self, progress: &Progress) -> usize {
        match self.begun {
            None => (self.begun, self.cached) = (Some(progress.at), progress.cached),
            Some(_) => self.prompt_end = Some(progress.at),
        }
        self.processed = progress.processed;
        self.cached
    }

    pub(super) fn generated(&mut self, tokens: usize, at: Instant) {
        if tokens == 0 {
            return;
        }
        if self.generated == 0 {
            self.begun.get_or_insert(at);
            self.prompt_end = Some(at);
        }
        self.last = Some(at);
        self.generated += tokens;
    }

    /// Time since the first token; `None` before it.
    pub(crate) fn generating(&self) -> Option<Duration> {
        self.prompt_end.filter(|_| self.generated > 0).zip(self.last).map(|(first, last)| last.duration_since(first))
    }

    /// How far a prompt of this many tokens is computed.
    pub(crate) fn progress(&self, total: usize) -> PromptProgress {
        PromptProgress { total, cache: self.cached, processed: self.processed, time_ms: self.prompt_ms() }
    }

    fn prompt_ms(&self) -> f64 {
        self.begun.zip(self.prompt_end).map_or(0.0, |(begun, end)| ms(end.duration_since(begun)))
    }

    /// The timings so far of an answer to a prompt of this many tokens.
    pub(crate) fn timings(&self, prompt_tokens: usize) -> Timings {
        let processed = if self.generated > 0 { prompt_tokens } else { self.processed };
        let (prompt_n, prompt_ms) = (processed.saturating_sub(self.cached), self.prompt_ms());
        // The first token comes from the prompt's last step, so it costs no step of its own.
        let steps = self.generated.saturating_sub(1) as f64;
        // Several tokens may come at the same moment.
        let predicted_ms = self.generating().map_or(0.0, |took| ms(took).max(1e-3));
        let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        Timings {
            cache_n: self.cached,
            prompt_n,
            prompt_ms,
            prompt_per_token_ms: ratio(prompt_ms, prompt_n as f64),
            prompt_per_second: 1e3 * ratio(prompt_n as f64, prompt_ms),
            predicted_n: self.generated,
            predicted_ms,
            predicted_per_token_ms: ratio(predicted_ms, steps),
            predicted_per_second: 1e3 * ratio(steps, predicted_ms),
        }
    }
}

fn ms(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_token_belongs_to_the_prompt() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut clock = Clock::default();
        clock.prompt(&Progress { first: 0, cached: 2, processed: 2, at: at(0) });
        assert_eq!(clock.timings(10), Timings { cache_n: 2, ..Timings::default() });
        assert_eq!(clock.prompt(&Progress { first: 0, cached: 0, processed: 6, at: at(20) }), 2);
        let PromptProgress { total, cache, processed, time_ms } = clock.progress(10);
        assert_eq!((total, cache, processed, time_ms), (10, 2, 6, 20.0));
        clock.generated(1, at(40));
        let timings = clock.timings(10);
        assert_eq!((timings.prompt_n, timings.prompt_ms, timings.prompt_per_second), (8, 40.0, 200.0));
        assert_eq!((timings.predicted_n, timings.predicted_per_second, timings.predicted_per_token_ms), (1, 0.0, 0.0));
        clock.generated(1, at(50));
        clock.generated(1, at(60));
        let timings = clock.timings(10);
        assert_eq!((timings.predicted_n, timings.predicted_ms, timings.predicted_per_second), (3, 20.0, 100.0));
        assert_eq!((timings.prompt_ms, timings.predicted_per_token_ms), (40.0, 10.0));
    }
}
