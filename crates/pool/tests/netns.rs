//! A pool over three hosts, each in a network namespace of its own, whose links are cut and slowed
//! down. Cut means that packets are dropped in silence: connections stay open, and nothing arrives.
//!
//! `SCONCE_REQUIRE=netns` demands these tests; they are ignored where namespaces are not allowed
//! (they need root and iproute2). `SCONCE_TEST_CUT=30` cuts for 30 seconds instead of 8.
#![cfg_attr(not(target_os = "linux"), allow(unused, reason = "network namespaces are Linux's"))]

#[cfg(unix)]
#[path = "hosts/common/mod.rs"]
mod common;

#[cfg(target_os = "linux")]
fn main() {
    // In place of the `sconce` command, and as a process in a namespace.
    if std::env::var_os("FAKE_ARGS").is_some() {
        return common::fake::main();
    }
    if let Ok(role) = std::env::var(linux::ROLE) {
        return linux::run(&role);
    }
    let devices = vec![("netns", linux::is_allowed()), ("netem", linux::has_netem())];
    sconce_testkit::Suite::new(devices)
        .on("netns", "requests_survive_a_cut_link", || linux::test(linux::Fault::Cut))
        .on("netns", "requests_survive_lost_replies", || linux::test(linux::Fault::RepliesLost))
        .on("netem", "delayed_host_is_used", || linux::test(linux::Fault::Delayed))
        .run()
}

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
mod linux {
    use crate::common::remote::{FakeHost, FakeState};
    use crate::common::{Stream, TestHost, send_request};
    use axum::http::{Method, StatusCode};
    use serde_json::{Value, json};
    use std::io::Read;
    use std::net::SocketAddr;
    use std::process::{Child, Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Mutex, PoisonError};
    use std::thread;
    use std::time::{Duration, Instant};

    pub(crate) const ROLE: &str = "SCONCE_NETNS_ROLE";
    /// How long a model computes.
    const COMPUTES: Duration = Duration::from_millis(20);
    /// Within this time after a cut, latency is normal again.
    const RECOVERS: Duration = Duration::from_secs(5);
    /// Clients that send one request after the other.
    const CLIENTS: usize = 6;
    const HOSTS: usize = 3;
    const PORT: u16 = 8080;

    /// How long a request, the end of a stream or the host's return may take. .ci/long, which names
    /// the length of the cut, holds them to the promise; other machines may be slow and busy.
    fn limit() -> Duration {
        if std::env::var_os("SCONCE_TEST_CUT").is_some() { RECOVERS } else { 10 * RECOVERS }
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Fault {
        /// All packets from and to the first host are dropped.
        Cut,
        /// Packets from the first host are dropped.
        RepliesLost,
        /// Packets to the first host take 200 ms.
        Delayed,
    }

    fn ip(arguments: &str) -> bool {
        let mut command = Command::new("ip");
        command.args(arguments.split(' ')).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    #[track_caller]
    fn must(arguments: &str) {
        assert!(ip(arguments), "`ip {arguments}` failed");
    }

    /// Whether this process may make namespaces and drop packets in them.
    pub(crate) fn is_allowed() -> bool {
        let name = format!("sconce-try-{}", std::process::id());
        let made = ip(&format!("netns add {name}"));
        let works = made
            && ip(&format!("-n {name} link add a0 type veth peer name a1"))
            && ip(&format!("-n {name} rule add from 10.77.1.2 blackhole"));
        if made {
            ip(&format!("netns del {name}"));
        }
        works
    }

    /// Whether packets can be delayed.
    pub(crate) fn has_netem() -> bool {
        let name = format!("sconce-netem-{}", std::process::id());
        let made = ip(&format!("netns add {name}"));
        let works = made && ip(&format!("netns exec {name} tc qdisc add dev lo root netem delay 1ms"));
        if made {
            ip(&format!("netns del {name}"));
        }
        works
    }

    /// A router, and a namespace for the manager (0) and each host behind it.
    struct Network {
        name: String,
        children: Vec<Child>,
    }

    fn address(host: usize) -> String {
        format!("10.77.{host}.2")
    }

    impl Network {
        fn new(fault: Fault) -> Network {
            let network = Network { name: format!("sconce-{}-{fault:?}", std::process::id()), children: Vec::new() };
            let router = network.router();
            must(&format!("netns add {router}"));
            for host in 0..=HOSTS {
                let namespace = network.namespace(host);
                must(&format!("netns add {namespace}"));
                must(&format!("link add link0 netns {namespace} type veth peer name link{host} netns {router}"));
                must(&format!("-n {namespace} addr add {}/24 dev link0", address(host)));
                must(&format!("-n {router} addr add 10.77.{host}.1/24 dev link{host}"));
                must(&format!("-n {namespace} link set lo up"));
                must(&format!("-n {namespace} link set link0 up"));
                must(&format!("-n {router} link set link{host} up"));
                must(&format!("-n {namespace} route add default via 10.77.{host}.1"));
            }
            let mut forward = Command::new("ip");
            forward.args(["netns", "exec", &router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]);
            assert!(forward.status().unwrap().success());
            network
        }

        fn router(&self) -> String {
            format!("{}-router", self.name)
        }

        fn namespace(&self, host: usize) -> String {
            format!("{}-{host}", self.name)
        }

        /// This program in a namespace.
        fn command(&self, host: usize, role: &str) -> Command {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &self.namespace(host)]).arg(std::env::current_exe().unwrap());
            command.env(ROLE, role).env("SCONCE_NETNS_HOST", host.to_string());
            command
        }
    }

    impl Drop for Network {
        fn drop(&mut self) {
            for child in &mut self.children {
                // It ends when its input does.
                drop(child.stdin.take());
                let _ = child.wait();
            }
            for host in 0..=HOSTS {
                ip(&format!("netns del {}", self.namespace(host)));
            }
            ip(&format!("netns del {}", self.router()));
        }
    }

    /// Runs hosts and clients in namespaces.
    pub(crate) fn test(fault: Fault) {
        // One after the other: they measure latencies.
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut network = Network::new(fault);
        for host in 1..=HOSTS {
            let child = network.command(host, "host").stdin(Stdio::piped()).spawn().unwrap();
            network.children.push(child);
        }
        let mut clients = network.command(0, "clients");
        clients.env("SCONCE_NETNS_FAULT", format!("{fault:?}")).env("SCONCE_NETNS_ROUTER", network.router());
        let out = clients.stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{text}");
        println!("{text}");
    }

    /// A process in a namespace.
    pub(crate) fn run(role: &str) {
        match role {
            "host" => host(),
            "clients" => clients(),
            other => panic!("unknown role {other}"),
        }
    }

    fn host() {
        let number: usize = std::env::var("SCONCE_NETNS_HOST").unwrap().parse().unwrap();
        let state = FakeState { delay: COMPUTES, ..FakeState::new(&format!("h{number}"), &["m"]) };
        let _host = FakeHost::start(state, &format!("{}:{PORT}", address(number)), None);
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
    }

    /// A request of a client.
    struct Sample {
        started: Instant,
        took: Duration,
        answer: Result<(StatusCode, Value), String>,
    }

    impl Sample {
        fn host(&self) -> &str {
            self.answer.as_ref().ok().and_then(|(_, body)| body["host"].as_str()).unwrap_or_default()
        }
    }

    fn request(address: SocketAddr, text: &str) -> Sample {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": text}]});
        let started = Instant::now();
        let answer = send_request(address, Method::POST, "/v1/chat/completions", Some(body));
        Sample { started, took: started.elapsed(), answer }
    }

    /// The time that 95 of 100 requests need at most.
    fn usual(samples: &[&Sample]) -> Duration {
        assert!(samples.len() >= 20, "only {} requests", samples.len());
        let mut all: Vec<Duration> = samples.iter().map(|sample| sample.took).collect();
        all.sort();
        all[all.len() * 95 / 100]
    }

    /// Applies a fault at the router, or takes it back.
    struct Link {
        router: String,
        fault: Fault,
    }

    impl Link {
        fn set(&self, is_faulty: bool) {
            let (router, host) = (&self.router, address(1));
            let verb = if is_faulty { "add" } else { "del" };
            match self.fault {
                Fault::Cut => {
                    must(&format!("-n {router} rule {verb} pref 100 from {host} blackhole"));
                    must(&format!("-n {router} rule {verb} pref 101 to {host} blackhole"));
                }
                Fault::RepliesLost => must(&format!("-n {router} rule {verb} pref 100 from {host} blackhole")),
                Fault::Delayed => {
                    let more = if is_faulty { " netem delay 200ms" } else { "" };
                    must(&format!("netns exec {router} tc qdisc {verb} dev link1 root{more}"));
                }
            }
        }
    }

    /// Ends the load, also when a check has failed.
    struct StopOnDrop<'a>(&'a AtomicBool);

    impl Drop for StopOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    fn clients() {
        let fault = match std::env::var("SCONCE_NETNS_FAULT").unwrap().as_str() {
            "Cut" => Fault::Cut,
            "RepliesLost" => Fault::RepliesLost,
            _ => Fault::Delayed,
        };
        let link = Link { router: std::env::var("SCONCE_NETNS_ROUTER").unwrap(), fault };
        let cut = std::env::var("SCONCE_TEST_CUT").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(8);
        let host = TestHost::new();
        let table = |n| format!("[[host]]\nname = 'h{n}'\nurl = 'http://{}:{PORT}'\nmodels = ['m']\n", address(n));
        let pool = host.run(&(1..=HOSTS).map(table).collect::<String>());
        pool.ready(HOSTS);
        // Alone and with different prompts, they go to the three hosts.
        let streams: Vec<Stream> = (0..HOSTS).map(|n| open_stream(pool.address, n)).collect();
        let (address, stop) = (pool.address, AtomicBool::new(false));
        thread::scope(|threads| {
            let load_guard = StopOnDrop(&stop);
            let load: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    let stop = &stop;
                    threads.spawn(move || {
                        let mut all = Vec::new();
                        while !stop.load(Ordering::Relaxed) {
                            all.push(request(address, &format!("{client} {}", all.len())));
                        }
                        all
                    })
                })
                .collect();
            thread::sleep(Duration::from_secs(3));
            let cut_at = Instant::now();
            link.set(true);
            let ends: Vec<_> = match fault {
                Fault::Delayed => Vec::new(),
                _ => streams.into_iter().map(|stream| threads.spawn(move || follow(stream))).collect(),
            };
            thread::sleep(Duration::from_secs(cut));
            let state = pool.worker("m@h1").unwrap()["state"].clone();
            let healed_at = Instant::now();
            link.set(false);
            pool.wait("the host to be back", |p| {
                p.worker("m@h1").filter(|w| w["state"] == "ready" || w["state"] == "busy")
            });
            let back = healed_at.elapsed();
            thread::sleep(Duration::from_secs(3));
            drop(load_guard);
            let samples: Vec<Sample> = load.into_iter().flat_map(|client| client.join().unwrap()).collect();
            let phases = Phases { cut_at, healed_at };
            report(&samples, &phases, back);
            match fault {
                Fault::Delayed => assert_ne!(state, "failed", "a slow host is not lost"),
                _ => assert_eq!(state, "failed"),
            }
            check(fault, &samples, &phases, back);
            for end in ends {
                check_stream(&end.join().unwrap(), cut_at);
            }
        });
    }

    struct Phases {
        cut_at: Instant,
        healed_at: Instant,
    }

    impl Phases {
        fn before<'a>(&self, samples: &'a [Sample]) -> Vec<&'a Sample> {
            samples.iter().filter(|s| s.started + s.took < self.cut_at).collect()
        }

        /// Requests that were sent when latency had to be normal again.
        fn recovered<'a>(&self, samples: &'a [Sample]) -> Vec<&'a Sample> {
            let from = self.cut_at + RECOVERS;
            samples.iter().filter(|s| s.started >= from && s.started < self.healed_at).collect()
        }
    }

    fn report(samples: &[Sample], phases: &Phases, back: Duration) {
        let slowest = samples.iter().map(|sample| sample.took).max().unwrap_or_default();
        let (before, after) = (usual(&phases.before(samples)), usual(&phases.recovered(samples)));
        println!(
            "{} requests; 95 % within {before:?} before the fault, within {after:?} from {RECOVERS:?} after it; \
             slowest {slowest:?}; the host was back {back:?} after the fault",
            samples.len()
        );
    }

    fn check(fault: Fault, samples: &[Sample], phases: &Phases, back: Duration) {
        for sample in samples {
            let is_ok = matches!(&sample.answer, Ok((StatusCode::OK, body)) if body["host"].is_string());
            assert!(is_ok, "a request was lost {:?} after the fault: {:?}", since(sample, phases), sample.answer);
            assert!(sample.took < limit(), "{:?} after the fault: {:?}", since(sample, phases), sample.took);
        }
        assert!(phases.before(samples).iter().any(|sample| sample.host() == "h1"));
        let recovered = phases.recovered(samples);
        if fault == Fault::Delayed {
            assert!(recovered.iter().any(|sample| sample.host() == "h1"), "the slow host is not used");
            return;
        }
        assert!(recovered.iter().all(|sample| sample.host() != "h1"), "the lost host answered");
        let (before, after) = (usual(&phases.before(samples)), usual(&recovered));
        // Two hosts do the work of three, which wait for time rather than for a processor.
        let slack = limit() / 100;
        assert!(after < before * 3 + slack, "{before:?} before the fault, {after:?} later");
        assert!(back < limit(), "the host was back after {back:?}");
        let is_later = |sample: &&Sample| sample.started > phases.healed_at + back;
        assert!(samples.iter().filter(is_later).any(|sample| sample.host() == "h1"), "the host is not used again");
    }

    fn since(sample: &Sample, phases: &Phases) -> Duration {
        sample.started.saturating_duration_since(phases.cut_at)
    }

    fn open_stream(address: SocketAddr, n: usize) -> Stream {
        let body =
            json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": format!("stream {n}")}]});
        let mut stream = Stream::open(address, "/v1/chat/completions", &body);
        stream.until("\"i\":1}");
        stream
    }

    /// Reads a stream to its end: its worker, its text, and when it ended.
    fn follow(stream: Stream) -> (String, String, Instant) {
        let worker = stream.worker();
        (worker, stream.rest(), Instant::now())
    }

    /// A stream of the lost host ends with an error event, soon; the others go on to their end.
    fn check_stream((worker, text, ended): &(String, String, Instant), cut_at: Instant) {
        let tail = &text[text.len().saturating_sub(300)..];
        if worker == "m@h1" {
            assert!(tail.contains("broke in the middle of the response"), "{tail}");
            let took = ended.saturating_duration_since(cut_at);
            assert!(took < limit(), "the stream ended {took:?} after the fault");
        } else {
            assert!(tail.contains("[DONE]") && !text.contains("broke"), "{worker}: {tail}");
        }
    }
}
