//! What the Gateway API inference extension reads of `/metrics` (its model server protocol), by a
//! parser that picks a value as its endpoint picker does.

use crate::common::{Running, config, options, request, start};
use sconce_server::ModelSpec;
use sconce_testkit::{materialize_slow_llama, wait_for};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;

/// Tokens of the KV cache: the least that a context of this length may have.
const CACHE_TOKENS: usize = 2048;

type Labels = BTreeMap<String, String>;

/// A metric family: its type, and its samples in the order of the page.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    samples: Vec<(Labels, f64)>,
}

/// The families of a page in Prometheus's text format. Panics at a line that is not in that format,
/// and at a sample without a `TYPE` line of its family before it.
fn parse(page: &str) -> BTreeMap<String, Family> {
    let mut families = BTreeMap::<String, Family>::new();
    for line in page.lines().filter(|line| !line.is_empty() && !line.starts_with("# HELP ")) {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and a type");
            let before = families.insert(name.into(), Family { kind: kind.into(), samples: Vec::new() });
            assert!(before.is_none(), "{name} has two headers");
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line}"));
        let (name, labels) = match series.split_once('{') {
            Some((name, rest)) => (name, labels(rest.strip_suffix('}').expect("a closing brace"))),
            None => (series, Labels::new()),
        };
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(*end)).unwrap_or(name);
        let key = if families.contains_key(name) { name } else { family };
        let family = families.get_mut(key).unwrap_or_else(|| panic!("no type: {line}"));
        family.samples.push((labels, value.parse::<f64>().unwrap_or_else(|e| panic!("{e}: {line}"))));
    }
    families
}

/// `a="b",c="d"`. The test's values have no quotes or backslashes.
fn labels(text: &str) -> Labels {
    let one = |part: &str| {
        let (name, value) = part.split_once("=\"").expect("a label");
        (name.to_string(), value.to_string())
    };
    text.split_terminator("\",").map(|part| one(part.trim_end_matches('"'))).collect()
}

/// What the endpoint picker knows of a server. All numbers of a family are of its first sample: no
/// sample has a time, and the picker takes the first of the latest.
#[derive(Debug, PartialEq)]
struct Picked {
    waiting: f64,
    running: f64,
    usage: f64,
    block_size: usize,
    blocks: usize,
}

impl Picked {
    fn of(page: &str) -> Picked {
        let families = parse(page);
        let first = |name: &str| {
            let family = families.get(name).unwrap_or_else(|| panic!("{name} is missing in\n{page}"));
            assert_eq!(family.kind, "gauge", "{name}");
            assert_eq!(family.samples.len(), 1, "one model: {name}: {family:?}");
            let (labels, value) = &family.samples[0];
            assert_eq!(labels["model_name"], "m", "{name}");
            (labels.clone(), *value)
        };
        let (info, one) = first("vllm:cache_config_info");
        assert_eq!(one, 1.0, "an information");
        let number = |label: &str| info[label].parse::<usize>().unwrap_or_else(|e| panic!("{label}: {e}: {info:?}"));
        assert!(!families.contains_key("vllm:lora_requests_info"), "there are no adapters to route by");
        Picked {
            waiting: first("vllm:num_requests_waiting").1,
            running: first("vllm:num_requests_running").1,
            usage: first("vllm:kv_cache_usage_perc").1,
            block_size: number("block_size"),
            blocks: number("num_gpu_blocks"),
        }
    }
}

/// A language model that answers one request at a time, slowly.
fn serve() -> Running {
    let dir = materialize_slow_llama(CACHE_TOKENS, 16);
    let mut spec = ModelSpec::new(dir.path().to_str().unwrap(), options(dir.path()));
    spec.id = "m".into();
    spec.load.llm = spec.load.llm.with_sequences(1).with_cache_tokens(Some(CACHE_TOKENS));
    let running = start(vec![spec], vec![dir], config());
    running.wait_ready();
    running
}

/// A request whose answer is as long as the context allows.
fn begin(server: &Running) -> TcpStream {
    let body = json!({"prompt": "the cat", "max_tokens": 1900, "ignore_eos": true, "stream": true}).to_string();
    let mut stream = server.connect();
    let head = [("content-type", "application/json")];
    stream.write_all(request("POST", "/v1/completions", &head, &body).as_bytes()).unwrap();
    stream
}

#[test]
fn endpoint_picker_sees_the_queue_and_the_kv_cache_move() {
    let server = serve();
    let page = || Picked::of(&server.get("/metrics").body);
    // The size is known before the first request.
    let idle = Picked { waiting: 0.0, running: 0.0, usage: 0.0, block_size: 16, blocks: CACHE_TOKENS / 16 };
    assert_eq!(page(), idle);
    let mut clients: Vec<TcpStream> = (0..3).map(|_| begin(&server)).collect();
    let busy = wait_for("one request runs and two wait", || {
        let now = page();
        if (now.running, now.waiting) == (1.0, 2.0) && now.usage > 0.0 { Ok(now) } else { Err(format!("{now:?}")) }
    });
    let later = wait_for("the answer takes more blocks", || {
        let now = page();
        if now.running < 1.0 || now.usage > busy.usage { Ok(now) } else { Err(format!("{now:?}")) }
    });
    assert!(later.usage > busy.usage && later.usage <= 1.0, "{busy:?} {later:?}");
    for usage in [busy.usage, later.usage] {
        let blocks = usage * idle.blocks as f64;
        assert!((blocks - blocks.round()).abs() < 1e-3, "{usage} is not a number of blocks");
    }
    assert_eq!((later.block_size, later.blocks), (idle.block_size, idle.blocks));
    // Two clients leave. Their requests and blocks must not be counted any longer.
    clients.truncate(1);
    let mut rest = String::new();
    clients[0].read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{}", &rest[rest.len().saturating_sub(300)..]);
    wait_for("nothing runs, waits or holds blocks", || {
        let now = page();
        if now == idle { Ok(()) } else { Err(format!("{now:?}")) }
    });
}
