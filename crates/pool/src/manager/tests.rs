//! Tests of the manager without processes.

use super::*;
use crate::config::PoolFile;
use crate::core::{Leaving, Origin};
use sconce_testkit::{wait_until, wait_until_async};

fn manager(address: &str) -> (tempfile::TempDir, Arc<Manager>) {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = StateStore::open(dir.path()).unwrap();
    let config = Config::new(PoolFile::default(), "sconce".into(), |_| dir.path().into()).unwrap();
    let manager = Manager::new(config, store, "token".into(), address.parse().unwrap());
    (dir, manager)
}

fn spec() -> Spec {
    let tuning = sconce_api::worker::Tuning::default();
    Spec { name: "m".into(), model: "m".into(), device: "cpu".into(), tuning, origin: Origin::Declared }
}

#[test]
fn callback_url_follows_the_bound_address() {
    for (bound, callback) in [
        ("127.0.0.1:9200", "http://127.0.0.1:9200"),
        ("0.0.0.0:9200", "http://127.0.0.1:9200"),
        ("192.0.2.7:9200", "http://192.0.2.7:9200"),
        ("[::]:9200", "http://[::1]:9200"),
        ("[::1]:9200", "http://[::1]:9200"),
    ] {
        assert_eq!(manager(bound).1.callback, format!("{callback}{READY_PATH}"), "{bound}");
    }
}

#[test]
fn core_stays_locked_until_its_state_is_queued() {
    let (_dir, manager) = manager("127.0.0.1:1");
    // A thread that changes the core waits for this lock to queue the state …
    let queued = manager.store.queued();
    std::thread::scope(|threads| {
        threads.spawn(|| manager.decide(|core, _| ((), only_save(core.start("m-1".into(), spec())))));
        wait_until("the thread has locked the core", || manager.core.try_lock().is_err());
        // Time to unlock the core, which must not happen: …
        std::thread::sleep(Duration::from_millis(50));
        // … the thread keeps the core locked until the state is queued.
        assert!(manager.core.try_lock().is_err());
        drop(queued);
    });
    assert_eq!(manager.store.queued().take().unwrap().workers.len(), 1);
}

#[tokio::test]
async fn panicking_task_fails_its_worker() {
    let (_dir, manager) = manager("127.0.0.1:1");
    manager.decide(|core, _| ((), only_save(core.start("m-1".into(), spec()))));
    let failure = Box::new(Failure::new(Code::WorkerStartFailed, "a bug"));
    let mut changes = manager.changes();
    manager.task(("m-1".into(), 1), Event::Planned { outcome: Err(failure) }, async { panic!("on purpose") });
    changes.changed().await.unwrap();
    let state = manager.core().worker("m-1", manager.now()).unwrap();
    assert_eq!((state.state.name(), state.why.as_deref()), ("failed", Some("a bug")));
}

fn only_save(actions: Vec<Action>) -> Vec<Action> {
    actions.into_iter().filter(|a| *a == Action::Save).collect()
}

#[tokio::test]
async fn stop_all_stops_workers_started_meanwhile() {
    let (_dir, manager) = manager("127.0.0.1:1");
    let start = |id: &str| manager.decide(|core, _| ((), only_save(core.start(id.into(), spec()))));
    start("m-1");
    let device = Device { device: "cpu".into(), description: String::new(), free_bytes: 9, total_bytes: 9, best: true };
    let outcome = Ok((Planned { bytes: 1, task: "embed".into() }, vec![device]));
    // The process of `m-1` is being spawned, so `stop_all` waits for it.
    manager.decide(|core, now| ((), only_save(core.handle("m-1", 1, Event::Planned { outcome }, now))));
    let stopping = tokio::spawn({
        let manager = manager.clone();
        async move { manager.stop_all().await }
    });
    let is_stopping = || {
        let queued = manager.store.queued();
        queued.as_ref().is_some_and(|state| state.workers.iter().any(|w| w.leaving == Leaving::Stop))
    };
    wait_until_async("m-1 is being stopped", is_stopping).await;
    assert!(!stopping.is_finished());
    start("m-2");
    manager.handle_event("m-1", 1, Event::Exited { code: Some(0), how: "well".into() });
    tokio::time::timeout(Duration::from_secs(10), stopping).await.expect("both workers to end").unwrap();
    assert!(manager.core().is_empty());
}

#[test]
fn free_port_handles_the_full_port_range() {
    let (_dir, manager) = manager("127.0.0.1:1");
    let mut manager = Arc::into_inner(manager).unwrap();
    manager.config.ports = Some(1024..=65535);
    manager.next_port = AtomicU32::new(64_000);
    let port = manager.free_port().unwrap();
    assert!(port >= 1024);
}
