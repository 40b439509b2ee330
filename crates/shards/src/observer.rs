//! Decides that the holder of a lease is gone: its heartbeat has not changed for a lease time, by
//! the observer's own clock.

use std::collections::HashMap;
use std::time::Duration;

/// What one process has seen of the leases of others. Pure: contents and times come in.
///
/// Only differences of the observer's own monotonic clock count. And only time during which it
/// watched counts: an observer that was stopped itself, with its whole host perhaps, has not seen a
/// heartbeat stand still meanwhile. So the time between two calls counts up to a limit.
#[derive(Clone, Debug)]
pub(crate) struct Observer {
    max_gap: Duration,
    last_call: Option<Duration>,
    /// Time during which this observer watched.
    watched: Duration,
    seen: HashMap<usize, Seen>,
}

#[derive(Clone, Debug)]
struct Seen {
    generation: u32,
    content: Vec<u8>,
    /// The time watched before this content was seen first.
    since: Duration,
}

impl Observer {
    /// Time between two calls counts up to `max_gap`.
    pub(crate) fn new(max_gap: Duration) -> Observer {
        Observer { max_gap, last_call: None, watched: Duration::ZERO, seen: HashMap::new() }
    }

    /// Counts the time since the last call. To be called once per interval, whether there is a lease
    /// to look at or not.
    pub(crate) fn watch(&mut self, now: Duration) {
        let gap = now.saturating_sub(self.last_call.unwrap_or(now)).min(self.max_gap);
        self.watched = self.watched.saturating_add(gap);
        self.last_call = Some(now);
    }

    /// Looks at a lease. Returns for how long this observer has seen it unchanged.
    pub(crate) fn look(&mut self, shard: usize, generation: u32, content: &[u8], now: Duration) -> Duration {
        self.watch(now);
        match self.seen.get(&shard) {
            Some(seen) if seen.generation == generation && seen.content == content => self.watched - seen.since,
            _ => {
                let seen = Seen { generation, content: content.into(), since: self.watched };
                self.seen.insert(shard, seen);
                Duration::ZERO
            }
        }
    }

    /// Forgets all leases but those of these shards.
    pub(crate) fn retain(&mut self, is_leased: impl Fn(usize) -> bool) {
        self.seen.retain(|shard, _| is_leased(*shard));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn time_counts_while_the_heartbeat_stands_still() {
        let mut observer = Observer::new(seconds(2));
        // An observer's clock may show anything when it begins.
        let start = seconds(1_000_000);
        assert_eq!(observer.look(3, 1, b"a", start), seconds(0));
        assert_eq!(observer.look(3, 1, b"a", start + seconds(2)), seconds(2));
        assert_eq!(observer.look(3, 1, b"a", start + seconds(3)), seconds(3));
        assert_eq!(observer.look(3, 1, b"b", start + seconds(4)), seconds(0));
        assert_eq!(observer.look(3, 1, b"b", start + seconds(6)), seconds(2));
        // Another generation begins anew, even with the same content.
        assert_eq!(observer.look(3, 2, b"b", start + seconds(7)), seconds(0));
    }

    #[test]
    fn time_without_a_look_counts_up_to_the_limit() {
        let mut observer = Observer::new(seconds(2));
        observer.look(0, 1, b"a", seconds(8));
        // Looks at other leases in between.
        observer.look(7, 1, b"b", seconds(9));
        observer.watch(seconds(10));
        // The observer was stopped for an hour.
        assert_eq!(observer.look(0, 1, b"a", seconds(3610)), seconds(4));
        observer.retain(|shard| shard != 0);
        assert_eq!(observer.look(0, 1, b"a", seconds(3611)), seconds(0));
    }
}
