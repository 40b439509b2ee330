//! Random sequences of events.

use super::*;

/// Whatever the order of events, nothing panics, memory is never promised twice, and a stopped
/// worker ends.
#[test]
fn any_order_of_events_leaves_a_sound_house() {
    let mut seed = 1u64;
    let mut random = move |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % n
    };
    for _ in 0..300 {
        let mut h = TestCore::new();
        let mut now = 0;
        for step in 0..200 {
            now += random(20);
            let id = format!("m-{}", random(4));
            match random(11) {
                0 => {
                    if !h.core.workers.contains_key(&id) {
                        h.start(&id, if random(2) == 0 { Origin::Asked } else { Origin::Declared });
                    }
                }
                1 => drop(h.handle(&id, plan(random(6)), now)),
                2 => {
                    h.spawned(&id, now);
                }
                3 => drop(h.core.ready_callback(&id, at(now))),
                4 => drop(h.handle(&id, exit(random(2) as i32), now)),
                5 => drop(h.handle(&id, Event::Probed(ProbeResult::Missed("x".into())), now)),
                6 => drop(h.core.begin(&query("m", random(500)))),
                7 => drop(h.core.end(&id, random(500), at(now))),
                8 => drop(h.core.drain(&id)),
                9 if step % 7 == 0 => drop(h.core.stop(&id, at(now))),
                _ => drop(h.tick(now)),
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
                    h.spawned(&id, now);
                }
                h.handle(&id, exit(0), now);
            }
        }
        assert!(h.core.is_empty(), "{:?}", h.core.ids());
    }
}
