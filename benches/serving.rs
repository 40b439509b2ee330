//! The cost of HTTP: `/v1/embeddings` against a direct call of the engine, alternating in one
//! process.
//!
//!     cargo bench -p sconce-server --bench serving
//!
//! Prints the throughput of 32 concurrent callers that each embed one short text after another, and
//! the latency of one caller; for the engine, for the server, and their ratio and difference.
//! Reports the median round, so that noise of the machine affects both alike.

use sconce_engine::hub::Reference;
use sconce_engine::{Embedder, LoadOptions, Prompt};
use sconce_server::{Bound, Config, Listen, ModelSpec, Server, Stop};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const CALLERS: usize = 32;
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_secs(2);

fn text(n: usize) -> String {
    format!("Number {n} of the short texts that somebody wants to find again.")
}

/// A keep-alive connection.
struct Client(TcpStream);

impl Client {
    fn new(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        Client(stream)
    }

    /// Sends a request and returns the size of the response in bytes.
    fn embed(&mut self, text: &str, format: &str) -> usize {
        let body = format!("{{\"model\":\"minilm\",\"input\":\"{text}\",\"encoding_format\":\"{format}\"}}");
        let length = body.len();
        write!(
            self.0,
            "POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .expect("a request");
        let (mut answer, mut buffer) = (Vec::new(), [0; 16 << 10]);
        loop {
            let read = self.0.read(&mut buffer).expect("an answer");
            assert!(read > 0, "the server closed the connection");
            answer.extend_from_slice(&buffer[..read]);
            let Some(head) = answer.windows(4).position(|w| w == b"\r\n\r\n") else { continue };
            let head_text = std::str::from_utf8(&answer[..head]).expect("a head");
            assert!(head_text.starts_with("HTTP/1.1 200"), "{head_text}");
            let length = head_text.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
            if answer.len() == head + 4 + length.parse::<usize>().expect("a number") {
                return answer.len();
            }
        }
    }
}

/// Texts per second of all callers together; `caller` makes the function that one thread calls.
fn rate<C: FnMut(&str)>(caller: impl Fn() -> C + Sync) -> f64 {
    let (stop_flag, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for n in 0..CALLERS {
            let (stop_flag, done, caller) = (&stop_flag, &done, &caller);
            scope.spawn(move || {
                let mut call = caller();
                let mut n = n;
                while !stop_flag.load(Ordering::Relaxed) {
                    call(&text(n));
                    n += CALLERS;
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(ROUND);
        stop_flag.store(true, Ordering::Relaxed);
    });
    done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
}

/// The median latency of a call.
fn latency(mut call: impl FnMut(&str)) -> Duration {
    let mut all: Vec<Duration> = (0..200)
        .map(|n| {
            let text = text(n);
            let start = Instant::now();
            call(&text);
            start.elapsed()
        })
        .collect();
    all.sort_unstable();
    all[all.len() / 2]
}

fn median<T: PartialOrd + Copy>(mut all: Vec<T>) -> T {
    all.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
    all[all.len() / 2]
}

fn main() {
    let options = LoadOptions::from_env().expect("an environment");
    let reference: Reference = "minilm".parse().expect("a name");
    let embedder = Embedder::load(&reference, &options, &()).expect("the default model");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let stop = Stop::default();
    let address = runtime.block_on(async {
        let config = Config { listen: Listen::Tcp { host: "127.0.0.1".into(), port: 0 }, ..Config::default() };
        let server =
            Server::bind(config, vec![ModelSpec::new("minilm", options)], stop.clone()).await.expect("a server");
        let Bound::Tcp { address, .. } = server.bound().clone() else { unreachable!() };
        let app = server.app.clone();
        tokio::spawn(server.run());
        app.models.settled().await;
        app.models.ready().expect("the model is there");
        address
    });
    let engine = |text: &str| drop(embedder.embed(&[text], &Prompt::Default).expect("a vector"));
    let over_http = |format: &'static str| {
        move || {
            let mut client = Client::new(address);
            move |text: &str| assert!(client.embed(text, format) > 1000)
        }
    };
    let (mut engines, mut floats, mut base64s) = (Vec::new(), Vec::new(), Vec::new());
    let (mut shares, mut shares64, mut costs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (direct, float, base64) = (rate(|| engine), rate(over_http("float")), rate(over_http("base64")));
        shares.push(float / direct);
        shares64.push(base64 / direct);
        engines.push(direct);
        floats.push(float);
        base64s.push(base64);
        let (direct, served) = (latency(engine), latency(over_http("float")()));
        costs.push((direct, served, served.as_secs_f64() - direct.as_secs_f64()));
    }
    println!("{CALLERS} callers: texts per second, and the ratio to the engine:");
    println!("  engine            {:8.1}", median(engines));
    println!("  /v1/embeddings    {:8.1}  {:.3}", median(floats), median(shares));
    println!("    as base64       {:8.1}  {:.3}", median(base64s), median(shares64));
    let direct = median(costs.iter().map(|c| c.0).collect());
    let served = median(costs.iter().map(|c| c.1).collect());
    let cost = median(costs.iter().map(|c| c.2).collect());
    println!(
        "one caller, median of 200 calls: engine {direct:.2?}, served {served:.2?}, HTTP costs {:.3} ms",
        cost * 1e3
    );
    stop.now();
    runtime.shutdown_timeout(Duration::from_secs(1));
}
