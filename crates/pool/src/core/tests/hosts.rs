//! Servers on other hosts.

use super::*;

fn ms(n: u64) -> Time {
    Duration::from_millis(n)
}

/// A core with the host `gpu`, which declares the models `m` and `e`.
fn joined(drained: &[String]) -> TestCore {
    let mut h = TestCore::new();
    let models = vec![("m@gpu".into(), "m".into()), ("e@gpu".into(), "e".into())];
    let spec = HostSpec { name: "gpu".into(), url: "https://gpu:8080".into(), models };
    h.core.join(&spec, drained, at(0));
    h
}

fn probe(models: bool) -> Action {
    Action::ProbeHost { host: "gpu".into(), models }
}

fn lose() -> Action {
    Action::LoseHost("gpu".into())
}

fn end_responses() -> Action {
    Action::EndResponses("gpu".into())
}

fn serves(names: &[&str]) -> HostProbe {
    let one = |name: &&str| ServedModel {
        name: name.to_string(),
        task: Some(if *name == "e" { "embed" } else { "generate" }.into()),
        device: Some("cuda:0".into()),
    };
    HostProbe::Serves { models: names.iter().map(one).collect(), all: names.join(", ") }
}

fn missed() -> HostProbe {
    HostProbe::Missed("no response".into())
}

impl TestCore {
    fn probed(&mut self, result: HostProbe, now: Time) -> Vec<Action> {
        self.core.host_probed("gpu", result, now)
    }

    /// Probes the host and answers.
    fn round(&mut self, result: HostProbe, now: Time) -> Vec<Action> {
        assert!(matches!(&self.core.tick(now)[..], [Action::ProbeHost { .. }]), "no probe is due at {now:?}");
        self.probed(result, now)
    }
}

#[test]
fn host_serves_what_it_lists_and_is_probed_every_second() {
    let mut h = joined(&[]);
    assert_eq!(
        (h.state("m@gpu"), h.core.is_reachable("gpu"), h.core.is_joining()),
        (Some(State::Starting), None, true)
    );
    assert_eq!(h.tick(0), [probe(true)]);
    assert_eq!(h.tick(0), [], "one probe at a time");
    assert_eq!(h.probed(serves(&["m", "x"]), ms(10)), []);
    assert_eq!((h.state("m@gpu"), h.state("e@gpu")), (Some(State::Ready), Some(State::Failed)));
    let status = h.core.worker("m@gpu", at(0)).unwrap();
    assert_eq!((status.uri.as_deref(), status.device.as_str()), (Some("https://gpu:8080"), "cuda:0@gpu"));
    let why = h.core.worker("e@gpu", at(0)).unwrap().why.unwrap();
    assert!(why.contains("does not serve `e`") && why.contains("m, x"), "{why}");
    let target = h.core.begin(&query("m", 10)).unwrap();
    assert_eq!((target.id.as_str(), &target.endpoint), ("m@gpu", &Endpoint::Host("gpu".into())));
    assert_eq!(h.state("m@gpu"), Some(State::Busy));
    assert!(matches!(h.core.begin(&query("e", 10)), Err(NoRoute::NotReady { .. })));
    assert_eq!(h.core.tick(ms(999)), []);
    assert_eq!(h.core.tick(ms(1000)), [probe(false)]);
    h.probed(HostProbe::Healthy, ms(1001));
    // Its models are read again from time to time.
    for second in 2..30 {
        assert_eq!(h.tick(second), [probe(false)], "{second}");
        h.probed(HostProbe::Healthy, at(second));
    }
    assert_eq!(h.tick(31), [probe(true)]);
    h.probed(serves(&["e"]), at(31));
    assert_eq!((h.state("m@gpu"), h.state("e@gpu")), (Some(State::Failed), Some(State::Ready)));
    // Neither memory nor records are this host's.
    assert_eq!((h.core.records().len(), h.core.snapshot(at(0)).devices[1].allocated_bytes), (0, 0));
}

#[test]
fn two_misses_lose_a_host_a_third_ends_its_responses_and_one_answer_takes_it_back() {
    let mut h = joined(&[]);
    h.round(serves(&["m", "e"]), at(0));
    assert_eq!(h.round(missed(), at(2)), [], "one miss is not enough");
    assert_eq!(h.round(HostProbe::Healthy, at(3)), []);
    assert_eq!(h.round(missed(), at(5)), []);
    assert_eq!(h.round(HostProbe::NotSent, at(6)), [], "that says nothing about the host");
    assert_eq!(h.round(missed(), at(7)), [lose()]);
    assert_eq!((h.state("m@gpu"), h.core.is_reachable("gpu")), (Some(State::Failed), Some(false)));
    assert!(h.core.worker("m@gpu", at(7)).unwrap().why.unwrap().contains("gpu does not answer: no response"));
    assert!(h.core.begin(&query("m", 1)).is_err());
    assert_eq!(h.round(missed(), at(9)), [end_responses()]);
    assert_eq!(h.round(missed(), at(10)), [], "it is lost once");
    assert_eq!(h.tick(11), [probe(true)], "its models may be others now");
    assert_eq!(h.probed(serves(&["m"]), at(11)), []);
    assert_eq!((h.state("m@gpu"), h.state("e@gpu")), (Some(State::Ready), Some(State::Failed)));
    assert!(h.core.begin(&query("m", 1)).is_ok());
}

#[test]
fn silent_host_is_lost_within_three_seconds_and_its_responses_end_a_second_later() {
    // The link is cut right after a probe was answered; a tick comes every 100 ms.
    let mut h = joined(&[]);
    h.round(serves(&["m"]), at(0));
    let timings = HostTimings::default();
    let (mut running, mut now, mut done) = (None, at(0), Vec::new());
    while done.len() < 2 {
        now += ms(100);
        let limit = if done.is_empty() { ms(3_200) } else { ms(4_300) };
        assert!(now <= limit, "{done:?} after {now:?}");
        if let Some(until) = running.filter(|until| *until <= now) {
            running = None;
            done.extend(h.probed(missed(), until));
        }
        if !h.core.tick(now).is_empty() {
            running = Some(now + timings.answer);
        }
    }
    assert_eq!(done, [lose(), end_responses()]);
}

#[test]
fn host_that_refuses_requests_gets_none_until_it_is_silent_or_serves() {
    let mut h = joined(&[]);
    h.round(serves(&["m"]), at(0));
    // Its responses that have begun go on.
    assert_eq!(h.round(HostProbe::Refused("gpu: wrong key".into()), at(1)), []);
    assert_eq!((h.state("m@gpu"), h.core.is_reachable("gpu")), (Some(State::Failed), Some(false)));
    assert!(h.core.worker("m@gpu", at(1)).unwrap().why.unwrap().contains("wrong key"));
    assert_eq!(h.round(missed(), at(2)), []);
    assert_eq!(h.round(missed(), at(3)), [lose()]);
    assert_eq!(h.round(missed(), at(4)), [end_responses()]);
    h.round(serves(&["m"]), at(5));
    assert_eq!(h.state("m@gpu"), Some(State::Ready));
}

#[test]
fn models_are_read_at_once_when_a_host_does_not_know_one() {
    let mut h = joined(&[]);
    h.round(serves(&["m"]), at(0));
    assert_eq!(h.core.read_models_now("m@gpu", ms(100)), [probe(true)]);
    assert_eq!(h.core.read_models_now("m@gpu", ms(100)), [], "a probe is running");
    h.probed(serves(&["e"]), ms(110));
    assert_eq!((h.state("m@gpu"), h.state("e@gpu")), (Some(State::Failed), Some(State::Ready)));
}

#[test]
fn failed_requests_trigger_probes_that_count_once() {
    let mut h = joined(&[]);
    h.round(serves(&["m"]), at(0));
    for n in 0..100 {
        let now = ms(100 + n);
        assert_eq!(h.core.probe_now("m@gpu", now), [probe(false)]);
        assert_eq!(h.probed(missed(), now), []);
    }
    assert_eq!(h.core.probe_now("m@gpu", ms(900)), [probe(false)]);
    assert_eq!(h.core.probe_now("m@gpu", ms(900)), [], "a probe is running");
    assert_eq!(h.probed(missed(), ms(900)), [lose()]);
}

#[test]
fn requests_have_a_route_while_another_worker_or_the_host_again_is_ready() {
    let mut h = joined(&[]);
    h.make_ready("m-1", Origin::Declared, 0);
    h.core.tick(at(0));
    h.probed(serves(&["m"]), at(0));
    let tried = ["m-1".to_string()];
    let with_tried = RouteQuery { tried: &tried, ..query("m", 1) };
    assert!(h.core.has_route(&query("m", 1)) && h.core.has_route(&with_tried));
    h.probed(missed(), at(1));
    assert_eq!(h.probed(missed(), at(2)), [lose()]);
    assert!(h.core.has_route(&query("m", 1)) && !h.core.has_route(&with_tried));
    h.probed(serves(&["m"]), at(3));
    assert!(h.core.has_route(&with_tried));
    assert!(!h.core.has_route(&query("unknown", 1)));
    // A job runs on this host.
    let job = RouteQuery { is_job: true, ..query("m", 1) };
    assert!((0..4).all(|_| h.core.begin(&job).unwrap().id == "m-1"));
    h.handle("m-1", exit(1), 4);
    assert!(matches!(h.core.begin(&job), Err(NoRoute::NotReady { .. })));
    h.probed(serves(&["m", "e"]), at(4));
    let job = RouteQuery { is_job: true, ..query("e", 1) };
    assert_eq!(h.core.begin(&job).unwrap_err(), NoRoute::NoJobs { model: "e".into() });
}

#[test]
fn drained_worker_of_a_host_stays_until_it_is_stopped() {
    let mut h = joined(&[]);
    h.round(serves(&["m", "e"]), at(0));
    h.core.begin(&query("m", 10)).unwrap();
    assert_eq!(h.core.drain("m@gpu").unwrap(), [Action::Save]);
    assert_eq!((h.state("m@gpu"), h.core.drained()), (Some(State::Draining), vec!["m@gpu".to_string()]));
    assert!(h.core.begin(&query("m", 1)).is_err() && h.core.begin(&query("e", 1)).is_ok());
    // While its host is away and back.
    h.round(missed(), at(1));
    assert_eq!(h.round(missed(), at(2)), [lose()]);
    h.round(serves(&["m", "e"]), at(3));
    assert_eq!((h.state("m@gpu"), h.state("e@gpu")), (Some(State::Draining), Some(State::Busy)));
    // Stopped, it leaves when its last request ends. Nothing is signalled.
    assert_eq!(without_save(h.core.stop("m@gpu", at(4)).unwrap()), []);
    assert_eq!(h.state("m@gpu"), Some(State::Draining));
    assert_eq!(without_save(h.core.end("m@gpu", 10, at(5))), []);
    assert_eq!((h.state("m@gpu"), h.core.drained()), (None, vec![]));
    assert!(h.core.snapshot(at(5)).ended[0].why.contains("still runs"));
    h.core.end("e@gpu", 1, at(5));
    h.core.stop("e@gpu", at(6)).unwrap();
    assert!(h.core.is_empty());
    assert_eq!(h.tick(100), [], "a host without workers is not probed");
}

#[test]
fn worker_that_an_earlier_manager_drained_gets_no_requests() {
    let mut h = joined(&["m@gpu".to_string()]);
    h.round(serves(&["m", "e"]), at(0));
    assert_eq!((h.state("m@gpu"), h.state("e@gpu")), (Some(State::Draining), Some(State::Ready)));
    // A stop ends it at once, and one whose host is away.
    h.round(missed(), at(1));
    h.round(missed(), at(2));
    h.core.stop("m@gpu", at(3)).unwrap();
    h.core.stop("e@gpu", at(3)).unwrap();
    assert!(h.core.is_empty());
}
