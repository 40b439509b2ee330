//! A queue between threads that is bounded by the cost of its items, not by their number: a file may
//! have one chunk or ten thousand.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Items with their costs.
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    budget: usize,
}

struct State<T> {
    items: VecDeque<(T, usize)>,
    cost: usize,
    producers: usize,
    is_stopped: bool,
}

/// What a queue has.
pub(super) enum Popped<T> {
    Item(T),
    /// Nothing came in time.
    Nothing,
    /// No producer is left, or the queue is stopped.
    End,
}

/// Ends a producer when dropped, also if its thread panics.
pub(super) struct Producer<'a, T>(&'a Queue<T>);

impl<T> Queue<T> {
    /// A queue for `producers` threads that holds items of `budget` together, or a single one.
    pub(super) fn new(budget: usize, producers: usize) -> Queue<T> {
        let state = State { items: VecDeque::new(), cost: 0, producers, is_stopped: false };
        Queue { state: Mutex::new(state), changed: Condvar::new(), budget }
    }

    /// One of the producers that [`Queue::new`] counts.
    pub(super) fn producer(&self) -> Producer<'_, T> {
        Producer(self)
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next item; waits for one. `None`: no producer is left, or the queue is stopped.
    pub(super) fn pop(&self) -> Option<T> {
        let mut state = self.lock();
        loop {
            if state.is_stopped {
                return None;
            }
            if let Some((item, cost)) = state.items.pop_front() {
                state.cost -= cost;
                self.changed.notify_all();
                return Some(item);
            }
            if state.producers == 0 {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next item; waits for one no longer than `time`.
    pub(super) fn pop_within(&self, time: Duration) -> Popped<T> {
        let until = Instant::now() + time;
        let mut state = self.lock();
        loop {
            if state.is_stopped {
                return Popped::End;
            }
            if let Some((item, cost)) = state.items.pop_front() {
                state.cost -= cost;
                self.changed.notify_all();
                return Popped::Item(item);
            }
            if state.producers == 0 {
                return Popped::End;
            }
            let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                return Popped::Nothing;
            };
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The next item, if there is one now.
    pub(super) fn try_pop(&self) -> Option<T> {
        let mut state = self.lock();
        if state.is_stopped {
            return None;
        }
        let (item, cost) = state.items.pop_front()?;
        state.cost -= cost;
        self.changed.notify_all();
        Some(item)
    }

    /// Ends all waiting, and drops what comes.
    pub(super) fn stop(&self) {
        let mut state = self.lock();
        state.is_stopped = true;
        state.items.clear();
        self.changed.notify_all();
    }
}

impl<T> Producer<'_, T> {
    /// Adds an item; waits until there is room. `false`: the queue is stopped.
    pub(super) fn push(&self, item: T, cost: usize) -> bool {
        let queue = self.0;
        let mut state = queue.lock();
        while !state.is_stopped && !state.items.is_empty() && state.cost.saturating_add(cost) > queue.budget {
            state = queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_stopped {
            return false;
        }
        state.cost += cost;
        state.items.push_back((item, cost));
        queue.changed.notify_all();
        true
    }
}

impl<T> Drop for Producer<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.producers = state.producers.saturating_sub(1);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn items_pass_within_the_budget() {
        let queue = Queue::new(10, 2);
        thread::scope(|scope| {
            for _ in 0..2 {
                let producer = queue.producer();
                scope.spawn(move || {
                    for i in 0..200 {
                        let cost = if i == 50 { 100 } else { 3 };
                        assert!(producer.push(cost, cost));
                    }
                });
            }
            let mut sum = 0;
            while let Some(cost) = queue.pop() {
                sum += cost;
                let state = queue.lock();
                assert!(state.cost <= 10 || state.items.len() == 1, "{} in {}", state.cost, state.items.len());
            }
            assert_eq!(sum, 2 * (199 * 3 + 100));
        });
        assert!(queue.pop().is_none() && queue.try_pop().is_none());
    }

    #[test]
    fn waiting_ends_in_time_and_with_the_last_producer() {
        let queue = Queue::new(1, 1);
        let producer = queue.producer();
        let short = Duration::from_millis(1);
        assert!(matches!(queue.pop_within(short), Popped::Nothing));
        assert!(producer.push(7, 5));
        assert!(matches!(queue.pop_within(short), Popped::Item(7)));
        drop(producer);
        assert!(matches!(queue.pop_within(short), Popped::End));
    }

    #[test]
    fn stopping_ends_all_waiting() {
        let queue = Queue::new(1, 1);
        thread::scope(|scope| {
            let producer = queue.producer();
            scope.spawn(move || while producer.push(1, 1) {});
            assert_eq!(queue.pop(), Some(1));
            queue.stop();
        });
        assert_eq!(queue.pop(), None);
    }
}
