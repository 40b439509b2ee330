//! The metrics of the Gateway API inference extension behind a pool: those of each worker, with its
//! name, and the values of that worker.

use crate::harness::{Chat, Manager, Models};
use sconce_testkit::wait_for;
use std::io::{Read, Write};

impl Manager {
    fn metrics(&self) -> String {
        let mut socket = self.socket();
        write!(socket, "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
        let mut page = String::new();
        socket.read_to_string(&mut page).unwrap();
        page
    }
}

/// The value of a family's sample of a worker.
fn value(page: &str, name: &str, worker: &str) -> f64 {
    let series = format!("{name}{{worker=\"{worker}\",model_name=\"chat\"");
    let found: Vec<&str> = page.lines().filter(|line| line.starts_with(&series)).collect();
    assert_eq!(found.len(), 1, "{series} in\n{page}");
    found[0].rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{found:?}"))
}

#[test]
fn pool_metrics_show_queue_and_kv_cache_of_each_worker() {
    let manager = Manager::with(
        "model = 'smollm'\nreplicas = 2\nflags = { context = 512, kv_cache_tokens = 2048 }\n",
        Models::Known,
    );
    let workers = manager.wait_for_ready(2);
    let ids: Vec<&str> = workers.iter().map(|worker| worker["id"].as_str().unwrap()).collect();
    let page = manager.metrics();
    for name in
        ["vllm:cache_config_info", "vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"]
    {
        let header = format!("# TYPE {name} gauge");
        assert_eq!(page.lines().filter(|line| *line == header).count(), 1, "{name} in\n{page}");
    }
    for id in &ids {
        assert_eq!(value(&page, "vllm:cache_config_info", id), 1.0);
        let info = page.lines().find(|l| l.starts_with(&format!("vllm:cache_config_info{{worker=\"{id}\"")));
        let info = info.unwrap_or_default();
        assert!(info.contains("block_size=\"16\"") && info.contains("num_gpu_blocks=\"128\""), "{info}");
        assert_eq!(value(&page, "vllm:num_requests_running", id), 0.0);
    }
    let mut chat = Chat::begin(&manager, "Count to a thousand.", 400);
    chat.events(2);
    let busy = chat.worker();
    let idle = ids.iter().copied().find(|id| *id != busy).expect("another worker");
    let page = wait_for("the metrics of the busy worker move", || {
        let page = manager.metrics();
        let now = ["running", "waiting"].map(|what| value(&page, &format!("vllm:num_requests_{what}"), &busy));
        let usage = value(&page, "vllm:kv_cache_usage_perc", &busy);
        if now == [1.0, 0.0] && usage > 0.0 { Ok(page) } else { Err(format!("{now:?} {usage}")) }
    });
    assert_eq!(value(&page, "vllm:num_requests_running", idle), 0.0);
    assert_eq!(value(&page, "vllm:kv_cache_usage_perc", idle), 0.0);
    drop(chat);
    wait_for("the request of a client that left ends", || {
        let running = value(&manager.metrics(), "vllm:num_requests_running", &busy);
        if running == 0.0 { Ok(()) } else { Err(running) }
    });
}
