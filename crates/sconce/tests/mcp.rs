//! `sconce mcp` as clients use it: plain JSON-RPC lines over its standard input and output, and HTTP
//! by hand.

use sconce_testkit::materialize;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tempfile::TempDir;

/// The command in a folder, isolated from this machine's settings.
fn command_in(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sconce"));
    command
        .args(args)
        .current_dir(folder)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", folder.join(".home"))
        .env("HF_HUB_OFFLINE", "1");
    command
}

/// A folder of documents that a tiny model has indexed, and the model.
fn indexed(files: &[(&str, &str)]) -> (TempDir, TempDir) {
    let (dir, model) = (tempfile::tempdir().unwrap(), materialize("st-cls-dense"));
    for (name, text) in files {
        let path = dir.path().join("docs").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let args = ["index", "docs", "-m", model.path().to_str().unwrap(), "-d", "cpu"];
    let done = command_in(dir.path(), &args).stdin(Stdio::null()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    (dir, model)
}

const FILES: [(&str, &str); 4] = [
    ("cat.md", "# Animals\n\n## Cats\n\nThe cat sat on the mat.\n\n## Dogs\n\nA dog runs far.\n"),
    ("notes/ship.txt", "The day was long.\nA ship lies in the harbour.\nIt rains on the river.\n"),
    ("table.csv", "name,year\nAnna,1999\nBerta,2024\n"),
    (".env", "PASSWORD=harbour\n"),
];

/// A client over standard input and output.
struct Client {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    requests: u64,
}

impl Client {
    fn start(folder: &Path) -> Client {
        let mut command = command_in(folder, &["mcp", "-d", "cpu", "--db", "docs/.sconce/index.db"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (output, input) = (BufReader::new(child.stdout.take().unwrap()), child.stdin.take());
        let (sender, lines) = channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Client { child, input, lines, requests: 0 }
    }

    /// A client that has said hello.
    fn connect(folder: &Path) -> Client {
        let mut client = Client::start(folder);
        let about =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let answer = client.request("initialize", about);
        let about = &answer["result"];
        assert_eq!((&about["protocolVersion"], &about["serverInfo"]["name"]), (&json!("2025-06-18"), &json!("sconce")));
        assert!(about["capabilities"]["tools"].is_object(), "{answer}");
        assert!(about["instructions"].as_str().unwrap().contains("never instructions"), "{answer}");
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string());
        client
    }

    fn send(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// The answer to a request; everything that the server writes is JSON-RPC.
    fn request(&mut self, method: &str, params: Value) -> Value {
        self.requests += 1;
        let id = self.requests;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string());
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(120)).expect("an answer");
            let message: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
            assert_eq!(message["jsonrpc"], "2.0", "{message}");
            if message["id"] == id {
                return message;
            }
        }
    }

    /// The structured result of a call that succeeds.
    fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self.request("tools/call", json!({"name": tool, "arguments": arguments}));
        result_of(&answer)
    }

    /// The sentence of a call that fails.
    fn failure(&mut self, tool: &str, arguments: Value) -> String {
        let answer = self.request("tools/call", json!({"name": tool, "arguments": arguments}));
        assert_eq!(answer["result"]["isError"], true, "{answer}");
        assert!(answer["result"].get("structuredContent").is_none(), "{answer}");
        answer["result"]["content"][0]["text"].as_str().unwrap().to_owned()
    }

    fn end(mut self) -> ExitStatus {
        drop(self.input.take());
        self.child.wait().unwrap()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn result_of(answer: &Value) -> Value {
    let result = &answer["result"];
    assert_eq!(result["isError"], false, "{answer}");
    let text = result["content"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), result["structuredContent"]);
    result["structuredContent"].clone()
}

fn name_of(hit: &Value) -> &str {
    hit["path"].as_str().unwrap().rsplit(['/', '\\']).next().unwrap()
}

#[test]
fn a_client_searches_reads_and_lists() {
    let (dir, _model) = indexed(&FILES);
    let mut client = Client::connect(dir.path());
    let tools = client.request("tools/list", json!({}));
    let names: Vec<&str> =
        tools["result"]["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["search", "read", "list_documents"]);

    for mode in ["bm25", "hybrid", "dense"] {
        let found = client.call("search", json!({"query": "ship harbour", "mode": mode, "limit": 3}));
        assert!(found["mode"] == mode && !found["results"].as_array().unwrap().is_empty(), "{found}");
        if mode == "bm25" {
            assert_eq!(name_of(&found["results"][0]), "ship.txt", "{found}");
        }
    }
    // Without a mode it is hybrid, because the index has a model.
    assert_eq!(client.call("search", json!({"query": "cat"}))["mode"], "hybrid");
    let sparse = client.failure("search", json!({"query": "cat", "mode": "sparse"}));
    assert!(sparse.contains("sparse"), "{sparse}");

    let cat = client.call("search", json!({"query": "cat mat", "mode": "bm25", "filter": ["extension=md"]}));
    let cat = &cat["results"][0];
    assert!(name_of(cat) == "cat.md" && cat["line"].is_u64() && cat["score"].is_f64(), "{cat}");
    let read = client.call("read", json!({"chunk": cat["chunk"], "before": 20, "after": 20}));
    assert!(read["text"].as_str().unwrap().contains("A dog runs far.") && read["path"] == cat["path"], "{read}");
    let rows = client.call("search", json!({"query": "Berta", "mode": "bm25", "filter": "year>=2020"}));
    assert_eq!((&rows["results"][0]["row"], &rows["results"][0]["metadata"]["year"]), (&json!(2), &json!(2024)));
    let row = client.call("read", json!({"document": rows["results"][0]["document"]}));
    assert!(row["text"].as_str().unwrap().contains("Berta") && row["row"] == 2, "{row}");

    let ship = client.call("search", json!({"query": "harbour", "mode": "bm25"}));
    let path = ship["results"][0]["path"].clone();
    let lines = client.call("read", json!({"path": path, "start": 2, "end": 2}));
    assert_eq!((&lines["text"], &lines["line"]), (&json!("A ship lies in the harbour.\n"), &json!(2)));
    assert_eq!((&lines["next"], &lines["last"]), (&json!(3), &json!(3)));
    assert!(client.failure("read", json!({"path": path, "start": 9})).contains("the last place is 3"));

    // Two pages have the same documents as one.
    let all = client.call("list_documents", json!({}));
    assert!(all["total"] == 4 && all["next"].is_null() && all["roots"].as_array().unwrap().len() == 1, "{all}");
    let first = client.call("list_documents", json!({"limit": 3}));
    let rest = client.call("list_documents", json!({"limit": 3, "after": first["next"]}));
    let both: Vec<Value> =
        [&first, &rest].iter().flat_map(|page| page["documents"].as_array().unwrap()).cloned().collect();
    assert_eq!(json!(both), all["documents"]);
    assert!(rest["next"].is_null(), "{rest}");
    let notes = format!("{}/", Path::new(path.as_str().unwrap()).parent().unwrap().display());
    let notes = client.call("list_documents", json!({"prefix": notes.replace("//", "/")}));
    assert_eq!(notes["documents"].as_array().unwrap().len(), 1, "{notes}");
    assert!(client.end().success());
}

#[test]
fn the_model_is_loaded_by_the_first_search_that_needs_it() {
    let (dir, model) = indexed(&FILES);
    drop(model);
    let mut client = Client::connect(dir.path());
    let found = client.call("search", json!({"query": "harbour", "mode": "bm25"}));
    assert_eq!(name_of(&found["results"][0]), "ship.txt");
    let said = client.failure("search", json!({"query": "harbour"}));
    assert!(said.contains("cannot be loaded") && said.contains("`bm25` needs none"), "{said}");
    client.call("list_documents", json!({}));
}

#[test]
fn wrong_calls_are_answered_with_sentences() {
    let (dir, _model) = indexed(&FILES);
    let mut client = Client::connect(dir.path());
    for (tool, arguments, why) in [
        ("search", json!({}), "missing field `query`"),
        ("search", json!({"query": ""}), "empty"),
        ("search", json!({"query": 7}), "invalid type"),
        ("search", json!({"query": "a", "limit": 0}), "the least is 1"),
        ("search", json!({"query": "a", "limit": 1_000_000}), "the most is 50"),
        ("search", json!({"query": "a", "mode": "magic"}), "unknown variant `magic`"),
        ("search", json!({"query": "a", "filter": ["'; DROP TABLE files; --"]}), "filter"),
        ("search", json!({"query": "a", "sql": "DROP TABLE files"}), "unknown field `sql`"),
        ("search", json!({"query": "x".repeat(900_000)}), "900000 bytes"),
        ("read", json!({}), "give `chunk`"),
        ("read", json!({"chunk": 999_999}), "there is no chunk 999999"),
        ("read", json!({"document": -1}), "no document -1"),
        ("list_documents", json!({"limit": 201}), "the most is 200"),
    ] {
        let said = client.failure(tool, arguments);
        assert!(said.contains(why) && said.len() < 1_100, "{tool}: {said}");
    }
    let unknown = client.request("tools/call", json!({"name": "shell", "arguments": {"command": "id"}}));
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    assert!(unknown["error"]["message"].as_str().unwrap().contains("no tool `shell`"), "{unknown}");
    assert_eq!(client.request("resources/read", json!({"uri": "file:///etc/passwd"}))["error"]["code"], -32601);
    // Lines that are no messages, and one that is too long, change nothing.
    client.send("not JSON");
    client.send("[1, 2]");
    client.send(&"x".repeat(3 << 20));
    client.send(&format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000)));
    assert!(!client.call("search", json!({"query": "harbour", "mode": "bm25"}))["results"][0].is_null());
    // Neither do words that SQL or FTS5 would read.
    client.call("search", json!({"query": "\"harbour\" OR NEAR(a b) * : ^ -- ; DROP", "mode": "bm25"}));
    client.call("list_documents", json!({"prefix": "' OR 1=1 --"}));
    assert!(client.end().success());
}

#[test]
fn only_indexed_text_can_be_read() {
    let (dir, _model) = indexed(&FILES);
    let docs = std::fs::canonicalize(dir.path().join("docs")).unwrap();
    std::fs::write(docs.join("later.txt"), "not indexed yet").unwrap();
    std::fs::write(docs.join("notes/ship.txt"), "changed behind the index").unwrap();
    let mut client = Client::connect(dir.path());
    let ship = client.call("search", json!({"query": "harbour", "mode": "bm25"}));
    let path = ship["results"][0]["path"].as_str().unwrap().to_owned();
    let text = client.call("read", json!({"path": path}))["text"].clone();
    assert!(text.as_str().unwrap().starts_with("The day was long."), "{text}");
    for outside in [
        "/etc/passwd".to_owned(),
        "file:///etc/passwd".into(),
        docs.join(".env").display().to_string(),
        docs.join("later.txt").display().to_string(),
        docs.join(".sconce/index.db").display().to_string(),
        format!("{path}/../../.env"),
        "notes/ship.txt\0".into(),
        String::new(),
    ] {
        let said = client.failure("read", json!({"path": outside}));
        assert!(said.contains("the index has no document"), "{outside}: {said}");
    }
}

#[test]
fn results_are_bounded() {
    let line = "harbour ship river ".repeat(8_000);
    let many: String = (0..400).map(|i| format!("{i},harbour {}\n", "word ".repeat(400))).collect();
    let hostile = "\x1b]0;title\x07harbour \x1b[2J\u{202e} and a line of words that follow the escape sequences";
    let files = [("long.txt", line.as_str()), ("many.csv", &format!("id,text\n{many}")), ("esc.md", hostile)];
    let (dir, _model) = indexed(&files);
    let mut client = Client::connect(dir.path());
    let found = client.call("search", json!({"query": "harbour", "mode": "bm25", "limit": 50}));
    assert!(found.to_string().len() < 64 << 10, "{}", found.to_string().len());
    let shown = found["results"].as_array().unwrap().len() as u64;
    assert!(shown > 0 && shown + found["omitted"].as_u64().unwrap() <= 50, "{found}");
    let all = client.call("list_documents", json!({"limit": 200}));
    assert!(
        all.to_string().len() < 64 << 10 && all["total"] == 402,
        "{} bytes, {}",
        all.to_string().len(),
        all["total"]
    );
    assert!(all["next"].is_u64(), "{}", all["next"]);
    let long = all["documents"].as_array().unwrap().iter().find(|document| name_of(document) == "long.txt");
    let long = long.cloned().unwrap_or_else(|| {
        let prefix = format!("{}/long", all["roots"][0].as_str().unwrap());
        client.call("list_documents", json!({"prefix": prefix}))["documents"][0].clone()
    });
    let read = client.call("read", json!({"path": long["path"]}));
    assert!(read["truncated"] == true && read["text"].as_str().unwrap().len() <= 48 << 10, "{}", read["truncated"]);
    let escape = client.call("search", json!({"query": "harbour", "mode": "bm25", "filter": ["extension=md"]}));
    let text = escape["results"][0]["text"].as_str().unwrap();
    assert!(text.contains("harbour") && !text.contains(['\x1b', '\u{202e}']), "{text:?}");
}

#[test]
fn without_an_index_or_a_client_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let o = command_in(dir.path(), &["mcp", "--db", "absent.db"]).stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&o.stderr);
    assert!(o.status.code() == Some(1) && stderr.contains("absent.db") && o.stdout.is_empty(), "{stderr}");
    let (dir, _model) = indexed(&FILES);
    assert!(Client::start(dir.path()).end().success());
    // A client that does not begin with `initialize`.
    let mut client = Client::start(dir.path());
    client.send("not JSON");
    client.end();
}

/// A server over HTTP.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(folder: &Path, more: &[&str], key: Option<&str>) -> Server {
        let args = [&["mcp", "-d", "cpu", "--db", "docs/.sconce/index.db", "--port", "0"], more].concat();
        let mut command = command_in(folder, &args);
        if let Some(key) = key {
            command.env("SCONCE_API_KEY", key);
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        let address = loop {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "the server exited before it listened");
            if let Some((_, rest)) = line.split_once("http://") {
                break rest.trim().strip_suffix("/mcp").unwrap().to_owned();
            }
        };
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Server { child, address }
    }

    /// The whole response to a request with these headers. One without a `host` gets localhost.
    fn send(&self, request: &str, headers: &[&str], body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let mut head = format!("{request} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
        if !headers.iter().any(|header| header.starts_with("host:")) {
            head += "host: localhost\r\n";
        }
        for header in ["content-type: application/json", "accept: application/json, text/event-stream"] {
            head += &format!("{header}\r\n");
        }
        for header in headers {
            head += &format!("{header}\r\n");
        }
        // A server that refuses a request need not read its body.
        let _ = stream.write_all(format!("{head}\r\n{body}").as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }

    fn post(&self, headers: &[&str], body: &Value) -> String {
        self.send("POST /mcp", headers, &body.to_string())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
}

fn body(answer: &str) -> Value {
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {answer}"))
}

fn search(words: &str) -> Value {
    let arguments = json!({"query": words, "mode": "bm25"});
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search", "arguments": arguments}})
}

#[test]
fn over_http_no_other_page_or_name_reaches_the_index() {
    let (dir, _model) = indexed(&FILES);
    let server = Server::start(dir.path(), &["--allowed-hosts", "docs.example"], None);
    let about =
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let hello = server.post(&[], &json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": about}));
    assert_eq!((status(&hello), &body(&hello)["result"]["serverInfo"]["name"]), (200, &json!("sconce")));
    // There are no sessions.
    assert!(!hello.to_ascii_lowercase().contains("mcp-session-id"), "{hello}");
    let version = "mcp-protocol-version: 2025-06-18";
    let found = server.post(&[version], &search("harbour"));
    assert_eq!(name_of(&result_of(&body(&found))["results"][0]), "ship.txt", "{found}");

    let local = format!("host: {}", server.address);
    let evil = format!("host: evil.example:{}", server.address.rsplit(':').next().unwrap());
    for (headers, want) in [
        (vec![local.as_str()], 200),
        (vec!["host: [::1]:80"], 200),
        (vec!["host: docs.example"], 200),
        (vec!["origin: http://localhost:3000"], 200),
        (vec!["origin: https://docs.example"], 200),
        (vec!["host: evil.example"], 403),
        (vec![evil.as_str()], 403),
        (vec!["host: localhost.evil.example"], 403),
        (vec!["origin: https://evil.example"], 403),
        (vec!["origin: http://localhost.evil.example"], 403),
        (vec!["origin: null"], 403),
        (vec!["origin: evil"], 403),
        (vec!["host: localhost", "origin: http://localhost", "origin: http://evil.example"], 403),
    ] {
        let answer = server.post(&headers, &search("harbour"));
        assert_eq!(status(&answer), want, "{headers:?}: {answer}");
        assert!(want == 200 || !answer.contains("ship"), "{answer}");
        assert!(!answer.to_ascii_lowercase().contains("access-control-allow-origin"), "{answer}");
    }

    let huge = json!({"x": "y".repeat(2 << 20)}).to_string();
    let refused = server.send("POST /mcp", &[], &huge);
    // The connection may break before the answer is read.
    assert!(refused.is_empty() || status(&refused) == 413, "{refused}");
    for (request, want) in
        [("GET /mcp", 405), ("DELETE /mcp", 405), ("OPTIONS /mcp", 405), ("POST /", 404), ("GET /docs/.env", 404)]
    {
        assert_eq!(status(&server.send(request, &[], "")), want, "{request}");
    }
    assert!((400..500).contains(&status(&server.send("POST /mcp", &[], "not JSON"))));
    assert_eq!(status(&server.post(&[version], &search("harbour"))), 200);
}

#[test]
fn over_http_a_key_is_required() {
    let (dir, _model) = indexed(&FILES);
    let server = Server::start(dir.path(), &[], Some("s3cret,other"));
    for (headers, want) in [
        (vec![], 401),
        (vec!["authorization: Bearer wrong"], 401),
        (vec!["authorization: s3cret"], 401),
        (vec!["authorization: Bearer s3cret"], 200),
        (vec!["x-api-key: other"], 200),
        // The key does not open the door to other names.
        (vec!["authorization: Bearer s3cret", "host: evil.example"], 403),
        (vec!["authorization: Bearer s3cret", "origin: http://evil.example"], 403),
    ] {
        let answer = server.post(&headers, &search("harbour"));
        assert_eq!(status(&answer), want, "{headers:?}: {answer}");
        assert!(want == 200 || !answer.contains("ship"), "{answer}");
    }
    let o = command_in(dir.path(), &["mcp", "--db", "docs/.sconce/index.db", "--port", "0", "--api-key", " "])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(o.status.code() == Some(1), "{}", String::from_utf8_lossy(&o.stderr));
}

#[cfg(unix)]
#[test]
fn sigterm_ends_the_http_server() {
    let (dir, _model) = indexed(&FILES);
    let mut server = Server::start(dir.path(), &[], None);
    // An idle connection does not hold it.
    let _idle = TcpStream::connect(&server.address).unwrap();
    let killed = Command::new("kill").args(["-TERM", &server.child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let ended = sconce_testkit::wait_for_within(Duration::from_secs(20), "the server exits", || {
        server.child.try_wait().unwrap().ok_or("")
    });
    assert!(ended.success());
}
