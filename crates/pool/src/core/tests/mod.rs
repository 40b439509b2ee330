//! Tests of the core without clock, sockets or processes: events in, actions out.

mod hosts;
mod life;
mod random_order;
mod routes;

use super::*;
use sconce_api::pool::State;
use sconce_api::worker::Tuning;

const GIB: u64 = 1 << 30;

fn at(seconds: u64) -> Time {
    Duration::from_secs(seconds)
}

fn devices() -> Vec<Device> {
    let one = |device: &str, best| Device {
        device: device.into(),
        description: "a device".into(),
        free_bytes: 10 * GIB,
        total_bytes: 16 * GIB,
        best,
    };
    vec![one("cpu", false), one("cuda:0", true)]
}

fn spec(name: &str, origin: Origin) -> Spec {
    Spec { name: name.into(), model: format!("org/{name}"), device: "cuda".into(), tuning: Tuning::default(), origin }
}

fn plan(gib: u64) -> Event {
    let planned = Planned { bytes: gib * GIB, task: "generate".into() };
    Event::Planned { outcome: Ok((planned, devices())) }
}

fn process(pid: u32) -> Process {
    Process { pid, born: Some(StartTime { boot: (1, 2), ticks: 3 }) }
}

fn exit(code: i32) -> Event {
    Event::Exited { code: Some(code), how: format!("exit code {code}") }
}

/// A core whose actions are returned without `Save`, which every change requests.
struct TestCore {
    core: Core,
    pid: u32,
}

impl TestCore {
    fn new() -> TestCore {
        TestCore { core: Core::new(Timings::default(), devices()), pid: 100 }
    }

    fn start(&mut self, id: &str, origin: Origin) -> Vec<Action> {
        let name = id.split('-').next().unwrap();
        without_save(self.core.start(id.into(), spec(name, origin)))
    }

    fn attempt(&self, id: &str) -> u64 {
        self.core.workers[id].attempt
    }

    fn handle(&mut self, id: &str, event: Event, now: u64) -> Vec<Action> {
        let attempt = self.core.workers.get(id).map_or(0, |w| w.attempt);
        without_save(self.core.handle(id, attempt, event, at(now)))
    }

    fn tick(&mut self, now: u64) -> Vec<Action> {
        without_save(self.core.tick(at(now)))
    }

    fn state(&self, id: &str) -> Option<State> {
        self.core.workers.get(id).map(Worker::state)
    }

    fn spawn(&mut self, id: &str, now: u64) -> Process {
        self.pid += 1;
        let process = process(self.pid);
        self.handle(id, Event::Spawned { process, port: 9000 + self.pid as u16 }, now);
        process
    }

    /// Starts a worker and makes it ready.
    fn make_ready(&mut self, id: &str, origin: Origin, now: u64) -> Process {
        self.start(id, origin);
        assert!(matches!(&self.handle(id, plan(1), now)[..], [Action::Spawn { .. }]));
        let process = self.spawn(id, now);
        self.core.ready_callback(id, at(now)).unwrap();
        assert_eq!(self.state(id), Some(State::Ready));
        process
    }
}

fn without_save(actions: Vec<Action>) -> Vec<Action> {
    actions.into_iter().filter(|a| *a != Action::Save).collect()
}

fn query(model: &str, tokens: u64) -> RouteQuery<'_> {
    RouteQuery { model: Some(model), tokens, ..RouteQuery::default() }
}
