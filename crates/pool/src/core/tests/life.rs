//! The life of a worker from its plan to its end, with every failure in between.

use super::*;

#[test]
fn worker_is_planned_spawned_and_ready_after_its_callback() {
    let mut h = TestCore::new();
    let actions = h.start("m-1", Origin::Declared);
    assert!(matches!(&actions[..], [Action::Plan { id, attempt: 1, .. }] if id == "m-1"));
    assert_eq!(h.state("m-1"), Some(State::Starting));
    let actions = h.handle("m-1", plan(3), 1);
    assert!(matches!(&actions[..], [Action::Spawn { device, .. }] if device == "cuda:0"));
    h.spawn("m-1", 1);
    assert_eq!((h.state("m-1"), h.core.outcome("m-1")), (Some(State::Starting), Outcome::Pending));
    h.core.ready_callback("m-1", at(5)).unwrap();
    assert_eq!(h.state("m-1"), Some(State::Ready));
    assert!(matches!(h.core.outcome("m-1"), Outcome::Ready(s) if s.device == "cuda:0" && s.vram_bytes == 3 * GIB));
    assert!(h.core.ready_callback("m-2", at(5)).is_err());
}

#[test]
fn memory_is_reserved_once() {
    let mut h = TestCore::new();
    h.start("a-1", Origin::Requested);
    h.start("b-1", Origin::Requested);
    assert_eq!(h.handle("a-1", plan(6), 0).len(), 1);
    // 10 GiB are free, but 6 of them are reserved for a worker that has not loaded its model yet.
    assert!(h.handle("b-1", plan(5), 0).is_empty());
    let Outcome::Failed(why) = h.core.outcome("b-1") else { panic!("{:?}", h.core.outcome("b-1")) };
    assert_eq!(why.error_code, Code::InsufficientVram);
    assert!(why.message.contains("5.0 GiB") && why.message.contains("4.0 GiB"), "{}", why.message);
    h.start("c-1", Origin::Requested);
    assert_eq!(h.handle("c-1", plan(4), 0).len(), 1);
    assert_eq!(h.core.snapshot(at(0)).devices[1].allocated_bytes, 10 * GIB);
}

#[test]
fn worker_without_callback_is_killed_at_start_timeout() {
    let mut h = TestCore::new();
    h.start("m-1", Origin::Requested);
    h.handle("m-1", plan(1), 0);
    let process = h.spawn("m-1", 0);
    assert!(h.tick(59).is_empty());
    assert_eq!(h.tick(60), [Action::Kill(process)]);
    assert_eq!(h.tick(61), [], "the process is killed only once");
    h.handle("m-1", Event::Exited { code: None, how: "signal 9".into() }, 61);
    assert_eq!(h.state("m-1"), None);
    assert!(matches!(h.core.outcome("m-1"), Outcome::Failed(f) if f.error_code == Code::WorkerStartTimeout));
}

#[test]
fn process_spawned_after_start_timeout_is_killed() {
    let mut h = TestCore::new();
    h.start("m-1", Origin::Declared);
    h.handle("m-1", plan(1), 0);
    assert_eq!(h.tick(60), [], "there is nothing to kill yet");
    let late = process(7);
    assert_eq!(h.handle("m-1", Event::Spawned { process: late, port: 1 }, 61), [Action::Kill(late)]);
    // The same for a process whose worker was removed.
    let event = Event::Spawned { process: late, port: 1 };
    assert_eq!(h.core.handle("unknown", 1, event, at(62)), [Action::Kill(late)]);
}

#[test]
fn crashed_worker_restarts_with_backoff_and_keeps_its_memory() {
    let mut h = TestCore::new();
    h.make_ready("m-1", Origin::Requested, 0);
    h.handle("m-1", exit(1), 10);
    assert_eq!(h.state("m-1"), Some(State::Failed));
    let status = h.core.worker("m-1", at(10)).unwrap();
    assert_eq!((status.exit_code, status.again_in_seconds, status.vram_bytes), (Some(1), Some(1), GIB));
    assert!(h.tick(10).is_empty());
    assert!(matches!(&h.tick(11)[..], [Action::Spawn { attempt: 2, .. }]));
    h.spawn("m-1", 11);
    h.core.ready_callback("m-1", at(12)).unwrap();
    h.handle("m-1", exit(1), 13);
    assert!(h.tick(14).is_empty(), "the second wait is twice as long");
    assert!(matches!(&h.tick(15)[..], [Action::Spawn { .. }]));
    assert_eq!(h.core.worker("m-1", at(15)).unwrap().restarts, 2);
}

#[test]
fn open_breaker_releases_memory_and_allows_one_attempt_later() {
    let mut h = TestCore::new();
    h.make_ready("m-1", Origin::Declared, 0);
    let mut now = 1;
    for _ in 0..5 {
        h.handle("m-1", exit(1), now);
        now += 20;
        if h.tick(now).is_empty() {
            break;
        }
        h.spawn("m-1", now);
    }
    let status = h.core.worker("m-1", at(now)).unwrap();
    assert_eq!(
        (status.state, status.vram_bytes),
        (State::Failed, 0),
        "a worker with an open breaker reserves no memory"
    );
    assert!(h.tick(now + 200).is_empty());
    assert!(matches!(&h.tick(now + 300)[..], [Action::Plan { .. }]));
}

#[test]
fn declared_worker_is_retried_and_requested_one_reports_failure() {
    let mut h = TestCore::new();
    for (id, origin) in [("a-1", Origin::Declared), ("b-1", Origin::Requested)] {
        h.start(id, origin);
        h.handle(id, plan(1), 0);
        h.spawn(id, 0);
        h.handle(id, exit(3), 1);
    }
    assert_eq!((h.state("a-1"), h.state("b-1")), (Some(State::Failed), None));
    assert!(matches!(h.core.outcome("b-1"), Outcome::Failed(f) if f.error_code == Code::WorkerStartFailed));
    assert_eq!(h.core.snapshot(at(1)).ended[0].exit_code, Some(3));
    assert!(matches!(&h.tick(2)[..], [Action::Plan { id, .. }] if id == "a-1"), "the retry begins with a plan");
}

#[test]
fn taken_port_is_retried_up_to_the_limit() {
    let mut h = TestCore::new();
    h.start("m-1", Origin::Requested);
    h.handle("m-1", plan(1), 0);
    for _ in 0..MAX_PORT_TRIES {
        h.spawn("m-1", 0);
        assert!(matches!(&h.handle("m-1", exit(PORT_TAKEN), 0)[..], [Action::Spawn { .. }]));
    }
    h.spawn("m-1", 0);
    assert!(h.handle("m-1", exit(PORT_TAKEN), 0).is_empty());
    assert_eq!(h.state("m-1"), None);
}

#[test]
fn worker_fails_after_three_missed_probes_in_a_row() {
    let mut h = TestCore::new();
    let process = h.make_ready("m-1", Origin::Declared, 0);
    let probe = |h: &mut TestCore, now| matches!(&h.tick(now)[..], [Action::Probe { .. }]);
    let miss = || Event::Probed(ProbeResult::Missed("no answer".into()));
    assert!(!probe(&mut h, 9));
    assert!(probe(&mut h, 10));
    assert!(!probe(&mut h, 20), "no second probe while one runs");
    h.handle("m-1", miss(), 20);
    assert!(probe(&mut h, 21));
    h.handle("m-1", miss(), 22);
    assert!(probe(&mut h, 31));
    h.handle("m-1", Event::Probed(ProbeResult::Healthy), 31);
    for now in [41, 51] {
        assert!(probe(&mut h, now));
        assert!(h.handle("m-1", miss(), now).is_empty());
    }
    assert!(probe(&mut h, 61));
    assert_eq!(h.handle("m-1", miss(), 61), [Action::Kill(process)]);
    assert_eq!(h.state("m-1"), Some(State::Failed));
    assert!(h.core.begin(&query("m", 1)).is_err());
    h.handle("m-1", Event::Exited { code: None, how: "signal 9".into() }, 62);
    assert!(matches!(&h.tick(63)[..], [Action::Spawn { .. }]));
}

#[test]
fn stop_drains_then_terminates_then_kills() {
    let mut h = TestCore::new();
    let process = h.make_ready("m-1", Origin::Requested, 0);
    let target = h.core.begin(&query("m", 10)).unwrap();
    assert_eq!(h.state("m-1"), Some(State::Busy));
    assert_eq!(without_save(h.core.stop("m-1", at(1)).unwrap()), []);
    assert_eq!(h.state("m-1"), Some(State::Draining));
    assert!(
        matches!(h.core.begin(&query("m", 10)), Err(NoRoute::NotReady { .. })),
        "a draining worker takes no new requests"
    );
    assert_eq!(without_save(h.core.end(&target.id, 10, at(5))), [Action::Terminate(process)]);
    assert_eq!(h.core.stop("m-1", at(6)).unwrap(), [Action::Save], "a second stop does nothing more");
    assert!(h.tick(34).is_empty());
    assert_eq!(h.tick(35), [Action::Kill(process)]);
    h.handle("m-1", Event::Exited { code: None, how: "signal 9".into() }, 36);
    assert_eq!((h.state("m-1"), h.tick(1000)), (None, vec![]), "a stopped worker is not restarted");
    assert_eq!(h.core.counts().stopped["killed"], 1);
}

#[test]
fn stop_has_a_drain_timeout_and_ends_idle_workers_at_once() {
    let mut h = TestCore::new();
    let process = h.make_ready("m-1", Origin::Requested, 0);
    h.core.begin(&query("m", 10)).unwrap();
    h.core.stop("m-1", at(1)).unwrap();
    assert!(matches!(&h.tick(30)[..], [Action::Probe { .. }]), "a stopping worker is probed until it exits");
    assert_eq!(h.tick(31), [Action::Terminate(process)]);
    let idle = h.make_ready("n-1", Origin::Requested, 40);
    assert_eq!(without_save(h.core.stop("n-1", at(40)).unwrap()), [Action::Terminate(idle)]);
    h.handle("n-1", exit(0), 41);
    assert_eq!(h.state("n-1"), None);
    assert!(h.core.stop("n-1", at(42)).is_err());
}

#[test]
fn stop_during_start_ends_the_new_process() {
    let mut h = TestCore::new();
    h.start("m-1", Origin::Declared);
    h.handle("m-1", plan(1), 0);
    assert_eq!(without_save(h.core.stop("m-1", at(0)).unwrap()), [], "there is no process yet");
    let actions = h.handle("m-1", Event::Spawned { process: process(5), port: 1 }, 1);
    assert_eq!(actions, [Action::Terminate(process(5))]);
    h.handle("m-1", exit(0), 2);
    assert_eq!(h.state("m-1"), None);
    h.start("n-1", Origin::Declared);
    h.core.stop("n-1", at(3)).unwrap();
    assert_eq!((h.state("n-1"), h.tick(100)), (None, vec![]), "there was no process to end");
}

#[test]
fn drained_worker_stays_and_takes_no_requests() {
    let mut h = TestCore::new();
    let process = h.make_ready("m-1", Origin::Declared, 0);
    h.core.drain("m-1").unwrap();
    assert_eq!(h.state("m-1"), Some(State::Draining));
    assert!(h.core.begin(&query("m", 1)).is_err());
    assert!(matches!(&h.tick(1000)[..], [Action::Probe { .. }]), "a drained worker is still probed");
    assert_eq!(without_save(h.core.stop("m-1", at(1001)).unwrap()), [Action::Terminate(process)]);
}

#[test]
fn hung_or_crashed_drained_worker_is_removed() {
    let mut h = TestCore::new();
    let process = h.make_ready("m-1", Origin::Declared, 0);
    h.core.begin(&query("m", 10)).unwrap();
    h.core.drain("m-1").unwrap();
    for now in [10, 20, 30] {
        assert!(matches!(&h.tick(now)[..], [Action::Probe { .. }]));
        let actions = h.handle("m-1", Event::Probed(ProbeResult::Missed("no answer".into())), now);
        assert_eq!(actions, if now == 30 { vec![Action::Kill(process)] } else { vec![] });
    }
    h.handle("m-1", Event::Exited { code: None, how: "signal 9".into() }, 31);
    assert_eq!((h.state("m-1"), h.core.counts().stopped["killed"]), (None, 1));
    h.make_ready("n-1", Origin::Declared, 40);
    h.core.drain("n-1").unwrap();
    h.handle("n-1", exit(139), 41);
    assert_eq!(
        (h.state("n-1"), h.core.counts().stopped["failed"]),
        (None, 1),
        "the worker failed without a stop request"
    );
    assert!(!h.core.counts().stopped.contains_key("requested"));
}

#[test]
fn simultaneous_missed_probes_count_once_and_unsent_ones_never() {
    let mut h = TestCore::new();
    let process = h.make_ready("m-1", Origin::Declared, 0);
    let miss = || Event::Probed(ProbeResult::Missed("refused".into()));
    // A hundred requests fail within a second, and each triggers a probe.
    for n in 0..100 {
        let now = Duration::from_millis(5_000 + 10 * n);
        assert!(matches!(&h.core.probe_now("m-1", now)[..], [Action::Probe { .. }]));
        assert_eq!(without_save(h.core.handle("m-1", h.attempt("m-1"), miss(), now)), []);
    }
    // A probe that the manager could not send says nothing about the worker.
    for now in 20..120 {
        h.core.probe_now("m-1", at(now));
        assert_eq!(h.handle("m-1", Event::Probed(ProbeResult::NotSent), now), []);
    }
    assert_eq!(h.state("m-1"), Some(State::Ready));
    // Three misses, each at least a probe time-out after the last, count.
    assert_eq!(h.handle("m-1", miss(), 200), []);
    assert_eq!(h.handle("m-1", miss(), 204), [], "too soon to count");
    assert_eq!(h.handle("m-1", miss(), 205), [Action::Kill(process)]);
}

#[test]
fn events_of_earlier_attempts_are_ignored() {
    let mut h = TestCore::new();
    h.make_ready("m-1", Origin::Declared, 0);
    let old = h.attempt("m-1");
    h.handle("m-1", exit(1), 1);
    h.tick(2);
    h.spawn("m-1", 2);
    h.core.ready_callback("m-1", at(3)).unwrap();
    assert!(h.core.handle("m-1", old, exit(1), at(4)).is_empty());
    assert_eq!(h.state("m-1"), Some(State::Ready));
}

#[test]
fn restarted_manager_adopts_its_workers() {
    let mut before = TestCore::new();
    let process = before.make_ready("a-1", Origin::Declared, 0);
    before.make_ready("b-1", Origin::Requested, 0);
    before.make_ready("c-1", Origin::Requested, 0);
    before.make_ready("d-1", Origin::Requested, 0);
    before.core.stop("d-1", at(1)).unwrap();
    let records: Vec<Record> =
        serde_json::from_str(&serde_json::to_string(&before.core.records()).unwrap()).expect("valid records");
    let mut h = TestCore::new();
    let mut actions = Vec::new();
    for record in records {
        let found = match record.id.as_str() {
            "a-1" | "d-1" => Found::Serving,
            "b-1" => Found::Gone,
            _ => Found::Silent,
        };
        actions.extend(without_save(h.core.adopt(record, found, at(0))));
    }
    assert_eq!(h.state("a-1"), Some(State::Ready));
    assert_eq!(h.core.records()[0].process, Some(process));
    assert!(matches!(&actions[..], [Action::Spawn { id, .. }, Action::Terminate(_)] if id == "b-1"), "{actions:?}");
    assert_eq!(h.state("c-1"), Some(State::Starting));
    h.core.ready_callback("c-1", at(1)).unwrap();
    assert_eq!(h.state("c-1"), Some(State::Ready));
    assert_eq!(h.state("d-1"), Some(State::Draining), "a worker that was stopping is still stopping");
    assert_eq!(h.core.snapshot(at(1)).devices[1].allocated_bytes, 4 * GIB);
}
