//! Random sequences of events.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use sconce_testkit::check;

#[derive(Clone, Debug)]
enum RandomEvent {
    Start(Origin),
    Planned(u64),
    Spawned,
    ReadyCallback,
    Exited(i32),
    MissedProbe,
    Begin(u64),
    End(u64),
    Drain,
    Stop,
    Tick,
}

/// An event, the seconds before it, and the number of its worker.
fn events() -> impl Strategy<Value = (u64, u64, RandomEvent)> {
    use RandomEvent::*;
    // A worker that is stopped often would never get far.
    let event = prop_oneof![
        13 => Just(Tick),
        7 => prop_oneof![Just(Origin::Requested), Just(Origin::Declared)].prop_map(Start),
        7 => (0..6u64).prop_map(Planned),
        7 => Just(Spawned),
        7 => Just(ReadyCallback),
        7 => (0..2).prop_map(Exited),
        7 => Just(MissedProbe),
        7 => (0..500u64).prop_map(Begin),
        7 => (0..500u64).prop_map(End),
        7 => Just(Drain),
        1 => Just(Stop),
    ];
    (0..20u64, 0..4u64, event)
}

/// In any order of events, nothing panics, memory is never reserved twice, and a stopped worker
/// ends.
#[test]
fn random_event_orders_keep_core_invariants() {
    check(300, &vec(events(), 0..400), |events| {
        let mut h = TestCore::new();
        let mut now = 0;
        for (wait, worker, event) in events {
            now += wait;
            let id = format!("m-{worker}");
            match event {
                RandomEvent::Start(origin) => {
                    if !h.core.workers.contains_key(&id) {
                        h.start(&id, origin);
                    }
                }
                RandomEvent::Planned(gib) => drop(h.handle(&id, plan(gib), now)),
                RandomEvent::Spawned => {
                    h.spawn(&id, now);
                }
                RandomEvent::ReadyCallback => drop(h.core.ready_callback(&id, at(now))),
                RandomEvent::Exited(code) => drop(h.handle(&id, exit(code), now)),
                RandomEvent::MissedProbe => drop(h.handle(&id, Event::Probed(ProbeResult::Missed("x".into())), now)),
                RandomEvent::Begin(tokens) => drop(h.core.begin(&query("m", tokens))),
                RandomEvent::End(tokens) => drop(h.core.end(&id, tokens, at(now))),
                RandomEvent::Drain => drop(h.core.drain(&id)),
                RandomEvent::Stop => drop(h.core.stop(&id, at(now))),
                RandomEvent::Tick => drop(h.tick(now)),
            }
            let reserved: u64 = h.core.workers.values().map(Worker::reserved_bytes).sum();
            assert!(reserved <= 16 * GIB, "{reserved}");
        }
        for id in h.core.ids() {
            let _ = h.core.stop(&id, at(now));
        }
        for _ in 0..10 {
            now += 100;
            h.tick(now);
            for id in h.core.ids() {
                if !h.core.workers[&id].has_process() {
                    h.spawn(&id, now);
                }
                h.handle(&id, exit(0), now);
            }
        }
        assert!(h.core.is_empty(), "{:?}", h.core.ids());
    });
}
