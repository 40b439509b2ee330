//! Load test of `sconce serve`: many concurrent requests of all kinds, and clients that disconnect
//! in the middle.
//!
//! Nothing may be lost: every accepted request is answered once, with the answer it would get
//! alone. Nothing may leak: memory is flat in the second half, and at the end no connection,
//! request or KV cache block is in use. And health checks are answered at once, however busy the
//! server is.
//!
//! The long run is `cargo test --release -p sconce --test load -- --ignored --nocapture`.

use sconce_testkit::{Rng, wait_for_within};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest time to an answer, however long the queue.
const TIMEOUT: Duration = Duration::from_secs(150);

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start() -> Server {
        let args = ["serve", "-m", "minilm", "-m", "smollm", "--context", "512", "--port", "0"];
        let mut child = Command::new(env!("CARGO_BIN_EXE_sconce"))
            .args(args)
            .env("RUST_LOG", "info")
            .stderr(Stdio::piped())
            .spawn()
            .expect("a server");
        let mut log = BufReader::new(child.stderr.take().expect("its log"));
        let mut line = String::new();
        let address = loop {
            line.clear();
            assert!(log.read_line(&mut line).expect("its log") > 0, "the server exited before it listened");
            if let Some(at) = line.find("127.0.0.1:") {
                let rest = &line[at..];
                break rest[..rest.find(|c: char| c != '.' && c != ':' && !c.is_ascii_digit()).unwrap_or(rest.len())]
                    .to_string();
            }
        };
        // Without a reader the pipe would fill up and block the server.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        let server = Server { child, address };
        // It may download a model first.
        wait_for_within(Duration::from_secs(300), "the server is healthy", || match server.get("/health") {
            (200, _) => Ok(()),
            (status, body) => Err(format!("{status} {body}")),
        });
        server
    }

    fn get(&self, path: &str) -> (u16, String) {
        let mut stream = std::net::TcpStream::connect(&self.address).expect("a connection");
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").expect("a request");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("an answer");
        let reply = Reply::of(&all).expect("an answer");
        (reply.status, reply.body)
    }

    /// A number of /proc/PID/status, in KiB or unitless.
    fn status(&self, key: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("its status");
        let line = text.lines().find(|line| line.starts_with(key)).expect("a line");
        line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
    }

    /// The sum of a metric over its labels.
    fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").1;
        let of = |line: &&str| line.starts_with(name) && line[name.len()..].starts_with(['{', ' ']);
        text.lines().filter(of).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Reply {
    fn of(all: &[u8]) -> Option<Reply> {
        let split = all.windows(4).position(|w| w == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&all[..split]).to_ascii_lowercase();
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let mut body = &all[split + 4..];
        let mut whole = Vec::new();
        if head.contains("transfer-encoding: chunked") {
            loop {
                let line = body.windows(2).position(|w| w == b"\r\n")?;
                let size = usize::from_str_radix(std::str::from_utf8(&body[..line]).ok()?, 16).ok()?;
                whole.extend_from_slice(body.get(line + 2..line + 2 + size)?);
                body = body.get(line + 4 + size..)?;
                if size == 0 {
                    break;
                }
            }
        } else {
            let length = head.lines().find_map(|l| l.strip_prefix("content-length: "))?.trim().parse::<usize>().ok()?;
            whole.extend_from_slice(body.get(..length)?);
        }
        Some(Reply { status, head, body: String::from_utf8(whole).ok()? })
    }
}

/// A request, and how to read its answer.
#[derive(Clone)]
struct TestRequest {
    path: &'static str,
    body: Value,
    read: fn(&str) -> Value,
}

impl TestRequest {
    fn all() -> Vec<TestRequest> {
        let mut all = Vec::new();
        let numbers = |body: &str| serde_json::from_str::<Value>(body).expect("JSON");
        let vectors = |body: &str| {
            let all: Value = serde_json::from_str(body).expect("JSON");
            all["data"].as_array().expect("vectors").iter().map(|one| one["embedding"].clone()).collect()
        };
        let content =
            |body: &str| serde_json::from_str::<Value>(body).expect("JSON")["choices"][0]["message"]["content"].clone();
        let streamed = |body: &str| {
            assert!(body.trim_end().ends_with("data: [DONE]"), "the stream has no [DONE]: {body}");
            let of = |line: &str| {
                Some(
                    serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok()?["choices"][0]["delta"]["content"]
                        .as_str()?
                        .to_string(),
                )
            };
            Value::String(body.lines().filter_map(of).collect())
        };
        for i in 0..12 {
            let words = ["river", "engine", "violin", "harbour", "winter", "bread"];
            let text = |n: usize| format!("number {n} of the {}s by the {}", words[n % 6], words[(n / 6 + i) % 6]);
            all.push(TestRequest { path: "/embed", body: json!({"inputs": text(i)}), read: numbers });
            let texts: Vec<String> = (0..3 * i + 1).map(text).collect();
            all.push(TestRequest {
                path: "/v1/embeddings",
                body: json!({"model": "minilm", "input": texts}),
                read: vectors,
            });
            all.push(TestRequest { path: "/tokenize", body: json!({"inputs": text(i)}), read: numbers });
            let chat = |stream: bool| json!({"model": "smollm", "messages": [{"role": "user", "content": text(i)}], "max_tokens": 4 + i, "temperature": 0.7, "seed": i, "stream": stream});
            all.push(TestRequest { path: "/v1/chat/completions", body: chat(false), read: content });
            all.push(TestRequest { path: "/v1/chat/completions", body: chat(true), read: streamed });
        }
        all
    }

    fn bytes(&self) -> Vec<u8> {
        let body = self.body.to_string();
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.path,
            body.len()
        );
        [head.into_bytes(), body.into_bytes()].concat()
    }

    async fn send(&self, address: &str) -> Result<Reply, String> {
        let exchange = async {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(&self.bytes()).await?;
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await?;
            Ok::<_, std::io::Error>(all)
        };
        let all = tokio::time::timeout(TIMEOUT, exchange).await.map_err(|_| "no answer".to_string())?;
        let all = all.map_err(|e| e.to_string())?;
        Reply::of(&all).ok_or_else(|| format!("an incomplete answer: {}", String::from_utf8_lossy(&all)))
    }

    /// Sends the request and disconnects after a while.
    async fn send_and_disconnect(&self, address: &str, after: Duration) {
        if let Ok(mut stream) = TcpStream::connect(address).await {
            let _ = stream.write_all(&self.bytes()).await;
            tokio::time::sleep(after).await;
        }
    }
}

/// Numbers match up to the rounding of another batch, texts exactly.
fn nearly_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| nearly_equal(a, b)),
        (Value::Number(a), Value::Number(b)) => (a.as_f64().unwrap_or(0.0) - b.as_f64().unwrap_or(1.0)).abs() < 1e-5,
        (a, b) => a == b,
    }
}

#[derive(Default)]
struct Results {
    outcomes: BTreeMap<String, u64>,
    wrong: Vec<String>,
}

fn run_load(clients: usize, time: Duration, health: Duration) {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let requests = Rc::new(TestRequest::all());
    let answer_alone = |q: &TestRequest| {
        let reply = runtime.block_on(q.send(&server.address)).expect("an answer");
        assert_eq!(reply.status, 200, "{}: {}", q.path, reply.body);
        (q.read)(&reply.body)
    };
    let expected: Rc<Vec<Value>> = Rc::new(requests.iter().map(answer_alone).collect());

    let stop = Arc::new(AtomicBool::new(false));
    let latencies = Arc::new(Mutex::new(Vec::new()));
    // How much longer than requested the prober slept: the delay that other load on the machine
    // adds to every wait.
    let delays = Arc::new(Mutex::new(Vec::new()));
    let prober = {
        let (stop, latencies, address) = (stop.clone(), latencies.clone(), server.address.clone());
        let delays = delays.clone();
        std::thread::spawn(move || {
            let mut stream = std::net::TcpStream::connect(address).expect("a connection");
            stream.set_nodelay(true).expect("no delay");
            let mut answer = [0; 4096];
            while !stop.load(Ordering::Relaxed) {
                let begun = Instant::now();
                stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("a request");
                let n = stream.read(&mut answer).expect("an answer");
                assert!(answer[..n].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer[..n]));
                latencies.lock().expect("latencies").push(begun.elapsed());
                let (begun, pause) = (Instant::now(), Duration::from_millis(20));
                std::thread::sleep(pause);
                delays.lock().expect("delays").push(begun.elapsed() - pause);
            }
        })
    };

    let results = Rc::new(RefCell::new(Results::default()));
    let mut memory = Vec::new();
    let begun = Instant::now();
    let local = tokio::task::LocalSet::new();
    for client in 0..clients {
        let (requests, expected, results) = (requests.clone(), expected.clone(), results.clone());
        let address = server.address.clone();
        local.spawn_local(async move {
            let mut rng = Rng::new(client as u64);
            while begun.elapsed() < time {
                let i = rng.below(requests.len());
                let q = &requests[i];
                if rng.below(4) == 0 {
                    q.send_and_disconnect(&address, Duration::from_millis(rng.below(400) as u64)).await;
                    *results.borrow_mut().outcomes.entry("disconnected".into()).or_default() += 1;
                    continue;
                }
                let outcome = match q.send(&address).await {
                    Err(why) => Err(format!("{}: {why}", q.path)),
                    Ok(r) if r.status == 429 || r.status == 503 => {
                        let has_retry_after = r.head.contains("retry-after: ");
                        tokio::time::sleep(Duration::from_millis(300 + rng.below(900) as u64)).await;
                        if has_retry_after {
                            Ok("refused with Retry-After")
                        } else {
                            Err("refused without Retry-After".into())
                        }
                    }
                    Ok(r) if r.status != 200 => Err(format!("{}: {} {}", q.path, r.status, r.body)),
                    Ok(r) if !nearly_equal(&(q.read)(&r.body), &expected[i]) => {
                        Err(format!("{} {}: {} under load, {} alone", q.path, q.body, r.body, expected[i]))
                    }
                    Ok(_) => Ok("answered"),
                };
                let mut results = results.borrow_mut();
                match outcome {
                    Ok(what) => *results.outcomes.entry(what.into()).or_default() += 1,
                    Err(why) => results.wrong.push(why),
                }
            }
        });
    }
    runtime.block_on(local.run_until(async {
        while begun.elapsed() < time {
            tokio::time::sleep(Duration::from_millis(500)).await;
            memory.push(server.status("VmRSS"));
        }
    }));
    runtime.block_on(local);
    stop.store(true, Ordering::Relaxed);
    prober.join().expect("every /health was answered");

    let [mut latencies, mut delays] = [latencies, delays].map(|all| all.lock().expect("times").clone());
    latencies.sort_unstable();
    delays.sort_unstable();
    let [p99, delay] = [&latencies, &delays].map(|all| all[all.len() * 99 / 100]);
    let half = &memory[memory.len() / 2..];
    let (least, most) = (half.iter().min().expect("memory"), half.iter().max().expect("memory"));
    let Results { outcomes, wrong } = results.take();
    println!(
        "{outcomes:?}; /health p50 {:?}, p99 {p99:?} (sleeps overran by {delay:?}), worst {:?} of {}",
        latencies[latencies.len() / 2],
        latencies[latencies.len() - 1],
        latencies.len()
    );
    println!("memory in the second half {least} to {most} KiB; after {:?}", begun.elapsed());
    assert!(wrong.is_empty(), "{} requests failed, such as {}", wrong.len(), wrong[0]);
    assert!(outcomes["answered"] > 0 && outcomes["disconnected"] > 0);
    assert!(p99 < health + 4 * delay, "/health took {p99:?}; sleeps overran by {delay:?}");
    // Caches fill at first.
    assert!(time < Duration::from_secs(60) || (most - least) * 20 <= *least, "memory grew");
    // Requests of disconnected clients are dropped soon and leave nothing behind.
    let busy = ["te_queue_size", "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"];
    wait_for_within(Duration::from_secs(20), "no request or KV cache block is in use", || {
        let left = busy.map(|name| (name, server.metric(name)));
        if left.iter().all(|(_, value)| *value <= 0.0) { Ok(()) } else { Err(format!("{left:?}")) }
    });
    wait_for_within(Duration::from_secs(20), "files are closed", || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", server.child.id())).expect("its files").count();
        if open < 64 { Ok(()) } else { Err(format!("{open} are open")) }
    });
}

#[test]
fn concurrent_clients_are_served_without_leaks() {
    // With so few samples the 99th percentile is a matter of luck on a shared machine; the long run
    // checks the promised limit.
    run_load(200, Duration::from_secs(6), Duration::from_millis(40));
}

#[test]
#[ignore = "two minutes; run it by name"]
fn thousand_clients_are_served_for_two_minutes() {
    run_load(1000, Duration::from_secs(120), Duration::from_millis(10));
}
