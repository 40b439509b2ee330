//! Restart backoff: exponential (1, 2, 4, … seconds), with a circuit breaker that opens after too
//! many failures in a short time. Pure: the caller passes the time.

use super::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// Delays between restarts and limits of the circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Delay after the first failure; it doubles with each further one.
    pub first: Duration,
    /// Longest delay.
    pub most: Duration,
    /// Number of failures …
    pub failures: usize,
    /// … within this time open the breaker.
    pub within: Duration,
    /// How long the breaker stays open. One attempt follows; if it fails, the breaker opens again.
    pub open: Duration,
    /// A worker that was ready for this long starts over with the first delay.
    pub steady: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        let seconds = Duration::from_secs;
        Backoff {
            first: seconds(1),
            most: seconds(60),
            failures: 5,
            within: seconds(600),
            open: seconds(300),
            steady: seconds(120),
        }
    }
}

/// The failures of one worker.
#[derive(Clone, Debug, Default)]
pub(super) struct FailureHistory {
    /// Failures in a row.
    in_a_row: u32,
    /// Times of the last failures.
    times: VecDeque<Time>,
    /// Whether the breaker opened before this attempt: if the attempt fails, however late, it opens
    /// again.
    is_open: bool,
}

/// When the next attempt starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NextAttempt {
    pub(super) at: Time,
    /// Whether the breaker is open until then.
    pub(super) is_open: bool,
}

impl FailureHistory {
    /// Records a failure and returns the time of the next attempt.
    pub(super) fn failed(&mut self, now: Time, backoff: &Backoff) -> NextAttempt {
        self.times.push_back(now);
        while self.times.len() > backoff.failures.max(1) {
            self.times.pop_front();
        }
        let recent = self.times.iter().filter(|t| now.saturating_sub(**t) <= backoff.within).count();
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.is_open |= recent >= backoff.failures.max(1);
        if self.is_open {
            return NextAttempt { at: now + backoff.open, is_open: true };
        }
        // 2^31 seconds exceed any `most`, and 2^32 would overflow.
        let wait = backoff.first.saturating_mul(1 << (self.in_a_row - 1).min(31)).min(backoff.most);
        NextAttempt { at: now + wait, is_open: false }
    }

    /// Records that the worker was ready from `since` until its failure.
    pub(super) fn ran(&mut self, since: Time, now: Time, backoff: &Backoff) {
        if now.saturating_sub(since) >= backoff.steady {
            *self = FailureHistory::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Duration::from_secs(seconds)
    }

    #[test]
    fn backoff_doubles_up_to_the_maximum() {
        let backoff = Backoff { failures: 100, most: at(10), ..Backoff::default() };
        let mut history = FailureHistory::default();
        let waits: Vec<u64> = (0..6).map(|_| history.failed(at(7), &backoff).at.as_secs() - 7).collect();
        assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
        for _ in 0..100 {
            history.failed(at(7), &Backoff { failures: 1000, ..backoff });
        }
        assert_eq!(history.failed(at(7), &Backoff { failures: 1000, ..backoff }).at, at(17), "no overflow");
    }

    #[test]
    fn breaker_opens_after_five_failures_and_allows_one_attempt() {
        let backoff = Backoff::default();
        let mut history = FailureHistory::default();
        for t in 0..4 {
            assert!(!history.failed(at(t), &backoff).is_open, "failure {t}");
        }
        assert_eq!(history.failed(at(4), &backoff), NextAttempt { at: at(304), is_open: true });
        assert_eq!(history.failed(at(304), &backoff), NextAttempt { at: at(604), is_open: true });
        // A slow attempt that fails opens the breaker again, although the earlier failures are long
        // past.
        assert_eq!(history.failed(at(2000), &backoff), NextAttempt { at: at(2300), is_open: true });
        history.ran(at(2300), at(2500), &backoff);
        assert!(!history.failed(at(2500), &backoff).is_open, "the worker was ready for long enough in between");
    }

    #[test]
    fn old_failures_do_not_open_the_breaker() {
        let backoff = Backoff::default();
        let mut history = FailureHistory::default();
        for t in 0..20 {
            assert!(!history.failed(at(t * 200), &backoff).is_open, "failure {t}");
        }
    }

    #[test]
    fn steady_run_resets_the_failure_history() {
        let backoff = Backoff::default();
        let mut history = FailureHistory::default();
        for t in 0..4 {
            history.failed(at(t), &backoff);
        }
        history.ran(at(10), at(20), &backoff);
        assert!(history.clone().failed(at(20), &backoff).is_open, "ten seconds of being ready are too short");
        history.ran(at(10), at(130), &backoff);
        assert_eq!(history.failed(at(130), &backoff), NextAttempt { at: at(131), is_open: false });
    }
}
