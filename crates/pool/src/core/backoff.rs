//! When to try again: after 1, 2, 4, … seconds, and after too many failures in too short a time, not for a good while.
//! Pure: the time comes in.

use super::Time;
use std::collections::VecDeque;
use std::time::Duration;

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// After the first failure; twice as long after each further one.
    pub first: Duration,
    /// At most.
    pub most: Duration,
    /// So many failures …
    pub failures: usize,
    /// … within this time open the breaker, …
    pub within: Duration,
    /// … and it stays open so long. Then there is one try; if that fails, it opens again.
    pub open: Duration,
    /// What ran well for so long begins anew.
    pub steady: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        let seconds = Duration::from_secs;
        Patience {
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
pub(super) struct Backoff {
    /// In a row.
    row: u32,
    /// The last few.
    when: VecDeque<Time>,
    /// Whether the breaker was open before this try: its failure, however long it took, opens it again.
    is_open: bool,
}

/// When it is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Again {
    pub(super) at: Time,
    /// Whether the breaker is open until then.
    pub(super) is_open: bool,
}

impl Backoff {
    /// It failed.
    pub(super) fn failed(&mut self, now: Time, patience: &Patience) -> Again {
        self.when.push_back(now);
        while self.when.len() > patience.failures.max(1) {
            self.when.pop_front();
        }
        let recent = self.when.iter().filter(|t| now.saturating_sub(**t) <= patience.within).count();
        self.row = self.row.saturating_add(1);
        self.is_open |= recent >= patience.failures.max(1);
        if self.is_open {
            return Again { at: now + patience.open, is_open: true };
        }
        // 2^31 seconds are more than any `most`, and 2^32 would not fit.
        let wait = patience.first.saturating_mul(1 << (self.row - 1).min(31)).min(patience.most);
        Again { at: now + wait, is_open: false }
    }

    /// It ran from `since` until now before it failed.
    pub(super) fn ran(&mut self, since: Time, now: Time, patience: &Patience) {
        if now.saturating_sub(since) >= patience.steady {
            *self = Backoff::default();
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
    fn waits_double_up_to_the_most() {
        let patience = Patience { failures: 100, most: at(10), ..Patience::default() };
        let mut backoff = Backoff::default();
        let waits: Vec<u64> = (0..6).map(|_| backoff.failed(at(7), &patience).at.as_secs() - 7).collect();
        assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
        for _ in 0..100 {
            backoff.failed(at(7), &Patience { failures: 1000, ..patience });
        }
        assert_eq!(backoff.failed(at(7), &Patience { failures: 1000, ..patience }).at, at(17), "no overflow");
    }

    #[test]
    fn five_failures_in_a_row_open_the_breaker_and_one_try_is_given_after_it() {
        let patience = Patience::default();
        let mut backoff = Backoff::default();
        for t in 0..4 {
            assert!(!backoff.failed(at(t), &patience).is_open, "failure {t}");
        }
        assert_eq!(backoff.failed(at(4), &patience), Again { at: at(304), is_open: true });
        assert_eq!(backoff.failed(at(304), &patience), Again { at: at(604), is_open: true });
        // A try that took long to fail has failed no less, though the failures before it are long past.
        assert_eq!(backoff.failed(at(2000), &patience), Again { at: at(2300), is_open: true });
        backoff.ran(at(2300), at(2500), &patience);
        assert!(!backoff.failed(at(2500), &patience).is_open, "it ran well in between");
    }

    #[test]
    fn failures_long_past_do_not_count() {
        let patience = Patience::default();
        let mut backoff = Backoff::default();
        for t in 0..20 {
            assert!(!backoff.failed(at(t * 200), &patience).is_open, "failure {t}");
        }
    }

    #[test]
    fn what_ran_well_begins_anew() {
        let patience = Patience::default();
        let mut backoff = Backoff::default();
        for t in 0..4 {
            backoff.failed(at(t), &patience);
        }
        backoff.ran(at(10), at(20), &patience);
        assert!(backoff.clone().failed(at(20), &patience).is_open, "ten seconds are not well");
        backoff.ran(at(10), at(130), &patience);
        assert_eq!(backoff.failed(at(130), &patience), Again { at: at(131), is_open: false });
    }
}
