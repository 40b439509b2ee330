//! Managers that end or crash and are restarted, and the workers they find.

use crate::common::{Running, TestHost, is_alive, signal};
use axum::http::{Method, StatusCode};
use sconce_pool::{Config, ManagerClient};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::Duration;

fn pid(worker: &Value) -> u64 {
    worker["pid"].as_u64().unwrap()
}

/// Sends a worker's ready callback.
fn send_callback(address: SocketAddr, token: &str, id: &str, port: u64) -> (StatusCode, Value) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let manager = ManagerClient { url: format!("http://{address}"), key: Some(token.into()) };
    let uri = format!("http://127.0.0.1:{port}");
    let body = json!({"worker_id": id, "vram_bytes": 1, "uri": uri, "model_ref": "ok", "capabilities": []});
    runtime.block_on(manager.request(Method::POST, "/v2/internal/workers/ready", Some(body))).unwrap()
}

fn read_state(config: &Config) -> Value {
    serde_json::from_slice(&std::fs::read(config.state.join("state.json")).unwrap()).unwrap()
}

/// Waits until the state file satisfies a condition.
fn wait_saved(pool: &Running, what: impl Fn(&Value) -> bool) -> Value {
    pool.wait("the state to be on disk", |p| {
        Some(p.saved_state()).filter(|saved_state| what(&saved_state["workers"][0]))
    })
}

#[test]
fn interrupted_stop_does_not_lose_a_declared_model() {
    let host = TestHost::new();
    let toml = "[[model]]\nmodel = 'slow'";
    let pool = host.run(toml);
    let before = pool.ready(1)[0].clone();
    // The worker has a running request, so it does not end at once; the manager crashes before
    // it does.
    let mut busy = pool.execute("slow", "a");
    busy.until("\"i\":1");
    let (status, _) = pool.post("/v2/workers/stop", json!({"worker_id": before["id"]}));
    assert_eq!(status, StatusCode::ACCEPTED);
    wait_saved(&pool, |w| w["leaving"] == "stop");
    let config = pool.crash();
    let pool = Running::new(config);
    let after = pool.ready(1);
    let served = after.iter().find(|w| w["state"] == "ready").unwrap();
    assert_ne!(served["id"], before["id"], "a worker that is stopping does not count as a declared one");
    pool.wait("the old worker to be gone", |p| p.worker(before["id"].as_str().unwrap()).is_none().then_some(()));
    assert!(!is_alive(pid(&before)));
    assert_eq!(pool.chat("slow", "hi").0, StatusCode::OK);
}

#[test]
fn keep_workers_leaves_workers_running_at_shutdown() {
    let host = TestHost::new();
    let mut config = host.config("[[model]]\nmodel = 'ok'\nreplicas = 2");
    config.keep_workers = true;
    let pool = Running::new(config);
    let pids: Vec<u64> = pool.ready(2).iter().map(pid).collect();
    let mut config = pool.end();
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    config.keep_workers = false;
    let pool = Running::new(config);
    assert_eq!(pool.ready(2).iter().map(pid).collect::<Vec<u64>>(), pids);
    assert_eq!(pool.chat("ok", "hi").0, StatusCode::OK);
    pool.end();
    assert!(!pids.into_iter().any(is_alive), "without keep_workers, the workers end with the manager");
}

#[test]
fn restarted_manager_waits_for_a_loading_worker() {
    let host = TestHost::new();
    let pool = host.run("[[model]]\nmodel = 'late'");
    let before = pool.wait("a process", |p| p.workers().first().filter(|w| w["pid"].is_u64()).cloned());
    wait_saved(&pool, |w| w["process"].is_object());
    let config = pool.crash();
    let pool = Running::new(config);
    // Time for a restart, which must not happen.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!((&pool.workers()[0]["state"], &pool.workers()[0]["pid"]), (&json!("starting"), &before["pid"]));
    assert_eq!(pool.chat("late", "hi").0, StatusCode::SERVICE_UNAVAILABLE);
    std::fs::write(host.path("go"), "").unwrap();
    let after = pool.ready(1)[0].clone();
    assert_eq!((pid(&after), &after["restarts"]), (pid(&before), &json!(0)));
}

#[test]
fn callbacks_of_unknown_workers_are_refused() {
    let host = TestHost::new();
    let pool = host.run("[[model]]\nmodel = 'ok'");
    let worker = pool.ready(1)[0].clone();
    let id = worker["id"].as_str().unwrap();
    let port: u64 = worker["uri"].as_str().unwrap().rsplit(':').next().unwrap().parse().unwrap();
    let token = pool.saved_state()["token"].as_str().unwrap().to_string();
    assert_eq!(send_callback(pool.address, &token, id, port).0, StatusCode::OK);
    for (id, port) in [(id, port + 1), ("ok-unknown", port)] {
        let (status, body) = send_callback(pool.address, &token, id, port);
        assert_eq!((status, &body["error_code"]), (StatusCode::NOT_FOUND, &json!("WORKER_NOT_FOUND")), "{id} {port}");
    }
    // Token of another pool.
    assert_eq!(send_callback(pool.address, "an old token", id, port).0, StatusCode::UNAUTHORIZED);
    assert_eq!(pool.workers()[0]["state"], "ready", "the forged callbacks do not affect the worker");
}

#[test]
fn pool_saves_its_token_without_any_worker() {
    let host = TestHost::new();
    let pool = host.run("");
    assert_eq!(pool.saved_state()["token"].as_str().unwrap().len(), 64);
}

#[test]
fn outdated_state_ends_no_other_process_and_refuses_orphans() {
    let host = TestHost::new();
    let pool = host.run("[[model]]\nmodel = 'ok'");
    let first = pool.ready(1)[0].clone();
    let id = first["id"].as_str().unwrap().to_string();
    let old = wait_saved(&pool, |w| w["been_ready"] == true);
    // Writes to disk fail from now on, and the worker gets another process.
    let blocker = host.path("state/state.json.new");
    std::fs::create_dir(&blocker).unwrap();
    signal(&first, "KILL");
    let second =
        pool.wait("another process", |p| p.worker(&id).filter(|w| w["state"] == "ready" && w["pid"] != first["pid"]));
    let config = pool.crash();
    std::fs::remove_dir(&blocker).unwrap();
    assert_eq!(
        read_state(&config)["workers"][0]["process"],
        old["workers"][0]["process"],
        "the saved state is outdated"
    );
    // The recorded pid is reused: it is that of this test, with another start time.
    let mut outdated = old.clone();
    outdated["workers"][0]["process"]["pid"] = json!(std::process::id());
    std::fs::write(config.state.join("state.json"), outdated.to_string()).unwrap();
    let pool = Running::new(config);
    let third = pool.ready(1)[0].clone();
    assert!(third["id"] == id.as_str() && third["pid"] != second["pid"], "{third}");
    // No manager knows the second process. A real worker ends itself when its callback is refused;
    // this fake must be killed.
    assert!(is_alive(pid(&second)));
    let port: u64 = second["uri"].as_str().unwrap().rsplit(':').next().unwrap().parse().unwrap();
    let (status, body) = send_callback(pool.address, old["token"].as_str().unwrap(), &id, port);
    assert_eq!((status, &body["error_code"]), (StatusCode::NOT_FOUND, &json!("WORKER_NOT_FOUND")));
    signal(&second, "KILL");
    assert_eq!(pool.chat("ok", "hi").0, StatusCode::OK);
}

#[test]
fn worker_at_the_wrong_port_is_ended_and_replaced() {
    let host = TestHost::new();
    let pool = host.run("[[model]]\nmodel = 'ok'\nreplicas = 2");
    let before = pool.ready(2);
    let mut saved_state = wait_saved(&pool, |w| w["been_ready"] == true);
    let config = pool.crash();
    // The saved state has each worker at the port of the other.
    let ports = [saved_state["workers"][1]["port"].clone(), saved_state["workers"][0]["port"].clone()];
    for (n, port) in ports.into_iter().enumerate() {
        (saved_state["workers"][n]["port"], saved_state["workers"][n]["been_ready"]) = (port, json!(true));
    }
    std::fs::write(config.state.join("state.json"), saved_state.to_string()).unwrap();
    let pool = Running::new(config);
    let after = pool.ready(2);
    for (old, new) in before.iter().zip(&after) {
        assert_eq!(old["id"], new["id"]);
        assert!(!is_alive(pid(old)) && is_alive(pid(new)), "{old} {new}");
    }
}
