//! Waiting for events of other threads and processes.

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Long enough for a busy machine; a test that fails takes that long.
const LIMIT: Duration = Duration::from_secs(120);

/// Short at first; longer later, because some conditions start a process.
fn poll_interval(started_at: Instant) -> Duration {
    (started_at.elapsed() / 20).clamp(Duration::from_millis(2), Duration::from_millis(50))
}

/// Waits until a condition holds. Panics with `what` if it does not within two minutes.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || if condition() { Ok(()) } else { Err("") });
}

/// Waits until `get` returns `Ok`. Panics with `what` and the last error if it does not within two
/// minutes.
#[track_caller]
pub fn wait_for<T, E: std::fmt::Display>(what: &str, get: impl FnMut() -> Result<T, E>) -> T {
    wait_for_within(LIMIT, what, get)
}

/// [`wait_for`], with a limit.
#[track_caller]
pub fn wait_for_within<T, E: std::fmt::Display>(
    limit: Duration,
    what: &str,
    mut get: impl FnMut() -> Result<T, E>,
) -> T {
    let started_at = Instant::now();
    loop {
        match get() {
            Ok(value) => return value,
            Err(why) => assert!(started_at.elapsed() < limit, "waited {limit:?} for: {what} {why}"),
        }
        std::thread::sleep(poll_interval(started_at));
    }
}

/// [`wait_until`] for async tests: does not block the runtime, whichever it is.
pub async fn wait_until_async(what: &str, mut condition: impl FnMut() -> bool) {
    let started_at = Instant::now();
    poll_fn(|context| {
        if condition() {
            return Poll::Ready(());
        }
        assert!(started_at.elapsed() < LIMIT, "waited {LIMIT:?} for: {what}");
        let (waker, interval) = (context.waker().clone(), poll_interval(started_at));
        std::thread::spawn(move || {
            std::thread::sleep(interval);
            waker.wake();
        });
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_for_returns_the_value_or_panics_with_the_last_error() {
        let mut polls = 0;
        let mut third = || {
            polls += 1;
            if polls == 3 { Ok(polls) } else { Err(polls) }
        };
        assert_eq!(wait_for("the third poll", &mut third), 3);
        let never = || wait_for_within(Duration::from_millis(1), "an event", || Err::<(), _>("none so far"));
        let panic = std::panic::catch_unwind(never).unwrap_err();
        assert_eq!(panic.downcast_ref::<String>().unwrap(), "waited 1ms for: an event none so far");
    }
}
