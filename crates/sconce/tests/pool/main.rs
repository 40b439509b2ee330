//! The pool as people run it: the real command, real workers with a tiny model, real signals.
#![cfg(unix)]

mod gateway;
mod harness;
mod tasks;
mod worker;

use harness::{Chat, Manager, Models, is_running, model, post};
use sconce_testkit::{wait_for, wait_until};
use serde_json::{Value, json};
use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[test]
fn workers_outlive_a_killed_manager_and_stop_with_the_next() {
    let model = model();
    let mut manager = Manager::new(model.path());
    let before = manager.wait_for_ready(2);
    assert!(
        before.iter().all(|w| w["model"] == "chat" && w["task"] == "generate" && w["vram_bytes"].as_u64() > Some(0))
    );
    let job = json!({"model": "chat", "job_id": "j", "prompt": "the cat sat", "max_tokens": 8, "temperature": 0});
    let answer = manager.execute(&job);
    assert!(
        answer.contains("\"type\":\"started\"") && answer.contains("MAX_TOKENS") && answer.contains("[DONE]"),
        "{answer}"
    );
    let pids = |all: &[Value]| all.iter().map(|w| w["pid"].as_u64().unwrap()).collect::<Vec<u64>>();
    // The manager is killed; its workers keep running, and the next manager adopts them.
    manager.replace();
    assert!(pids(&before).into_iter().all(is_running));
    let after = manager.wait_for_ready(2);
    assert_eq!(pids(&after), pids(&before));
    assert!(manager.execute(&job).contains("MAX_TOKENS"));
    // A worker is killed, and restarted.
    manager.signal(pids(&after)[0], "-9");
    wait_for("a new process is ready", || {
        let all = manager.workers();
        let is_restarted = all.first().is_some_and(|w| w["state"] == "ready" && w["pid"] != after[0]["pid"]);
        if is_restarted { Ok(()) } else { Err(format!("{all:?}")) }
    });
    // The status table; a third worker started and stopped by hand; errors for impossible requests.
    let (ok, table, _) = manager.sconce(&["status"]);
    assert!(ok && table.contains("chat-") && table.contains("ready") && table.contains("cpu"), "{table}");
    let (ok, out, err) =
        manager.sconce(&["start", model.path().to_str().unwrap(), "--device", "cpu", "--name", "more"]);
    assert!(ok && out.contains("is ready on cpu"), "{out}{err}");
    let third = out.split(' ').next().unwrap().to_string();
    let (ok, out, err) = manager.sconce(&["stop", &third]);
    assert!(ok && out.contains("draining"), "{out}{err}");
    let (ok, _, err) = manager.sconce(&["start", "/no/such/model"]);
    assert!(!ok && err.contains("MODEL_NOT_FOUND"), "{err}");
    let (ok, _, err) = manager.sconce(&["start", model.path().to_str().unwrap(), "--device", "cuda:7"]);
    assert!(!ok && err.contains("GPU_UNAVAILABLE"), "{err}");
    // On SIGTERM the manager stops its workers first.
    let last = pids(&manager.wait_for_ready(2));
    assert!(manager.end().success());
    assert!(!last.into_iter().any(is_running));
}

/// Two workers of SmolLM2: slow enough for something to happen in the middle of an answer.
fn smollm() -> Manager {
    Manager::with("model = 'smollm'\nreplicas = 2\nflags = { context = 512 }\n", Models::Known)
}

#[test]
fn killed_worker_ends_its_stream_with_an_error_and_restarts() {
    let manager = smollm();
    manager.wait_for_ready(2);
    let (mut first, mut second) =
        (Chat::begin(&manager, "Count to a thousand.", 300), Chat::begin(&manager, "Tell me a tale.", 60));
    first.events(4);
    second.events(4);
    let (victim, other) = (first.worker(), second.worker());
    assert_ne!(victim, other, "the second stream goes to the idle worker");
    let before = manager.wait_for_worker(&victim, |_| true);
    manager.signal(before["pid"].as_u64().unwrap(), "-9");
    // All events are complete, and the last one is the error.
    let text = first.rest();
    let events: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("data: ")).collect();
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(last["error"]["message"].as_str().is_some_and(|m| m.contains(&victim)), "{last}");
    assert!(events.iter().all(|e| serde_json::from_str::<Value>(e).is_ok()), "an event is incomplete: {text}");
    // The other stream runs to its end.
    let text = second.rest();
    assert!(text.contains("\"finish_reason\":\"") && text.contains("data: [DONE]"), "{text}");
    let after = manager.wait_for_worker(&victim, |w| w["state"] == "ready" && w["pid"] != before["pid"]);
    assert_eq!(after["restarts"], 1);
    assert_eq!(manager.wait_for_worker(&other, |_| true)["restarts"], 0);
}

#[test]
fn frozen_worker_is_replaced_and_its_requests_are_retried() {
    let manager = smollm();
    let all = manager.wait_for_ready(2);
    let frozen = all[0].clone();
    manager.signal(frozen["pid"].as_u64().unwrap(), "-STOP");
    // Some requests go to the stopped worker. It has sent nothing of their answers, so the other
    // worker gets them once it fails its probes.
    let chats: Vec<_> = (0..4).map(|n| Chat::begin(&manager, &format!("Number {n}."), 4)).collect();
    for chat in chats {
        let text = chat.rest();
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("data: [DONE]"), "{text}");
    }
    let id = frozen["id"].as_str().unwrap();
    let after = manager.wait_for_worker(id, |w| w["state"] == "ready" && w["pid"] != frozen["pid"]);
    assert!(after["why"].as_str().unwrap().contains("probes"), "{after}");
    assert!(!is_running(frozen["pid"].as_u64().unwrap()));
}

#[test]
fn manager_restart_under_load_fails_requests_only_while_down() {
    let model = model();
    let mut manager = Manager::new(model.path());
    let before = manager.wait_for_ready(2);
    let (port, over) = (manager.port, Arc::new(AtomicBool::new(false)));
    // Number of requests of each client.
    let request_counts: [Arc<AtomicUsize>; 4] = Default::default();
    let load: Vec<_> = (0..4)
        .map(|n| {
            let (over, request_counts) = (over.clone(), request_counts[n].clone());
            std::thread::spawn(move || {
                let mut all = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let job = json!({"model": "chat", "job_id": format!("j-{n}-{}", all.len()), "prompt": "the cat sat",
                        "max_tokens": 4, "temperature": 0});
                    let began = Instant::now();
                    let answer = TcpStream::connect(("127.0.0.1", port)).ok().map(|mut socket| {
                        let mut text = Vec::new();
                        post(&mut socket, "/execute", &job);
                        let _ = socket.read_to_end(&mut text);
                        String::from_utf8_lossy(&text).into_owned()
                    });
                    let ok = answer.as_ref().is_some_and(|text| text.contains("\"type\":\"end\""));
                    all.push((began, Instant::now(), ok, answer));
                    request_counts.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(10));
                }
                all
            })
        })
        .collect();
    // Waits until each client has made `more` further requests.
    let wait_for_requests = |more: usize| {
        let before: Vec<usize> = request_counts.iter().map(|n| n.load(Ordering::Relaxed)).collect();
        let has_more = |(n, before): (&Arc<AtomicUsize>, &usize)| n.load(Ordering::Relaxed) >= before + more;
        wait_until("each client has made more requests", || request_counts.iter().zip(&before).all(has_more));
    };
    wait_for_requests(2);
    let killed_at = Instant::now();
    manager.replace();
    let after = manager.wait_for_ready(2);
    let ready_at = Instant::now();
    let pids = |all: &[Value]| all.iter().map(|w| w["pid"].as_u64().unwrap()).collect::<Vec<u64>>();
    assert_eq!(pids(&after), pids(&before), "the same processes");
    wait_for_requests(2);
    over.store(true, Ordering::Relaxed);
    for thread in load {
        let all = thread.join().unwrap();
        let wrong: Vec<_> =
            all.iter().filter(|(began, ended, ok, _)| !ok && (*ended < killed_at || *began > ready_at)).collect();
        assert!(wrong.is_empty(), "requests failed while a manager ran: {wrong:?}");
        assert!(all.iter().any(|(began, ..)| *began > ready_at) && all.iter().any(|(_, ended, ..)| *ended < killed_at));
    }
}
