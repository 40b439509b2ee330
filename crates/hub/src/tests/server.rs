//! A local hub server: repository info, files with the hub's headers, large ones behind a redirect
//! to a "CDN" on another port, ranges, tokens, and failures of all of these.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};

/// A repository at one commit, and the revisions that point to it.
pub(crate) struct Repo {
    pub(crate) id: &'static str,
    pub(crate) commit: &'static str,
    pub(crate) revisions: &'static [&'static str],
    pub(crate) files: BTreeMap<String, Vec<u8>>,
}

/// A failure for paths that contain a given text.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    Status(u16),
    /// This many bytes of the body, then the connection closes.
    DropAfter(usize),
    /// The right length, the wrong content.
    WrongBytes,
    /// More bytes than announced, without a length.
    Endless,
    /// No answer ever.
    Hang,
    /// This many bytes of the body, then nothing.
    Stall(usize),
    /// A range request gets the whole file.
    IgnoreRange,
    /// This ETag instead.
    Etag(&'static str),
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) cdn: bool,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) authorization: Option<String>,
    pub(crate) range: Option<String>,
}

struct State {
    repos: Vec<Repo>,
    token: Option<&'static str>,
    cdn: String,
    /// Path part, fault, remaining times.
    faults: Mutex<Vec<(&'static str, Fault, usize)>>,
    seen: Mutex<Vec<Seen>>,
    closed: AtomicBool,
}

/// Runs until it is dropped.
pub(crate) struct HubServer {
    pub(crate) endpoint: String,
    state: Arc<State>,
}

impl HubServer {
    /// With a token, every request to the hub itself must carry it.
    pub(crate) fn start(repos: Vec<Repo>, token: Option<&'static str>) -> Self {
        let hub = TcpListener::bind("127.0.0.1:0").unwrap();
        let cdn = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = Arc::new(State {
            repos,
            token,
            cdn: format!("http://{}", cdn.local_addr().unwrap()),
            faults: Mutex::default(),
            seen: Mutex::default(),
            closed: AtomicBool::new(false),
        });
        let endpoint = format!("http://{}", hub.local_addr().unwrap());
        for (listener, is_cdn) in [(hub, false), (cdn, true)] {
            let state = state.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    if state.closed.load(Ordering::SeqCst) {
                        break;
                    }
                    let (state, stream) = (state.clone(), stream.unwrap());
                    // A client that disconnects is not a failure.
                    std::thread::spawn(move || state.serve(stream, is_cdn).ok());
                }
            });
        }
        Self { endpoint, state }
    }

    /// `fault` for the next `times` requests whose path contains `part`. A file's bytes are at
    /// `/cdn/…` if it is large.
    pub(crate) fn fault(&self, part: &'static str, fault: Fault, times: usize) {
        self.state.faults.lock().unwrap().push((part, fault, times));
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }
}

impl Drop for HubServer {
    fn drop(&mut self) {
        self.state.closed.store(true, Ordering::SeqCst);
        for url in [&self.endpoint, &self.state.cdn] {
            let _ = TcpStream::connect(url.trim_start_matches("http://"));
        }
    }
}

impl State {
    fn serve(&self, mut stream: TcpStream, cdn: bool) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().unwrap_or(Ok(String::new()))?;
        let mut words = first.split(' ').map(str::to_owned);
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let mut headers = BTreeMap::new();
        for line in lines {
            let line = line?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        let (authorization, range) = (headers.get("authorization").cloned(), headers.get("range").cloned());
        let seen = Seen { cdn, method, path, authorization, range };
        self.seen.lock().unwrap().push(seen.clone());

        let fault = self.faults.lock().unwrap().iter_mut().find_map(|(part, fault, times)| {
            let hit = *times > 0 && seen.path.contains(*part);
            *times -= usize::from(hit);
            hit.then_some(*fault)
        });
        if fault == Some(Fault::Hang) {
            return self.hang();
        }
        if let Some(Fault::Status(status)) = fault {
            return answer(&mut stream, status, &["X-Error-Code: Injected".to_owned()], b"", &seen.method);
        }
        if !cdn && self.token.is_some_and(|token| seen.authorization != Some(format!("Bearer {token}"))) {
            return answer(&mut stream, 401, &["X-Error-Code: RepoNotFound".to_owned()], b"", &seen.method);
        }
        self.route(&mut stream, &seen, fault)
    }

    fn route(&self, stream: &mut TcpStream, seen: &Seen, fault: Option<Fault>) -> std::io::Result<()> {
        for repo in &self.repos {
            // An old name without an organisation, as the hub redirects `gpt2`.
            let old = repo.id.rsplit('/').next().unwrap_or_default();
            for start in [format!("/api/models/{old}/"), format!("/{old}/resolve/")] {
                if let Some(rest) = seen.path.strip_prefix(&start) {
                    let to = format!("Location: {}{rest}", start.replace(old, repo.id));
                    return answer(stream, 307, &[to], b"", &seen.method);
                }
            }
            let is_revision = |text: &str| {
                let text = text.replace("%2F", "/");
                text == repo.commit || repo.revisions.contains(&text.as_str())
            };
            if let Some(revision) = seen.path.strip_prefix(&format!("/api/models/{}/revision/", repo.id))
                && is_revision(revision)
            {
                let names: Vec<String> = repo.files.keys().map(|name| format!("{{\"rfilename\":{name:?}}}")).collect();
                let info =
                    format!("{{\"id\":{:?},\"sha\":{:?},\"siblings\":[{}]}}", repo.id, repo.commit, names.join(","));
                return answer(stream, 200, &[], info.as_bytes(), &seen.method);
            }
            let rest = seen.path.strip_prefix(&format!("/{}/resolve/", repo.id));
            if let Some((_, name)) = rest.and_then(|rest| rest.split_once('/')).filter(|(at, _)| is_revision(at))
                && let Some(bytes) = repo.files.get(name)
            {
                let hash: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
                let large = [".safetensors", ".bin", ".pt", ".model", ".gguf"].iter().any(|end| name.ends_with(end));
                let mut etag = if large { &hash[..] } else { &hash[..40] };
                if let Some(Fault::Etag(other)) = fault {
                    etag = other;
                }
                let mut headers = vec![format!("X-Repo-Commit: {}", repo.commit)];
                if !large {
                    headers.push(format!("ETag: \"{etag}\""));
                    return body(self, stream, seen, fault, headers, bytes);
                }
                headers.push(format!("X-Linked-Etag: \"{etag}\""));
                headers.push(format!("X-Linked-Size: {}", bytes.len()));
                headers.push(format!("Location: {}/cdn/{}/{name}?signature=secret", self.cdn, repo.id));
                return answer(stream, 302, &headers, b"Found. Redirecting", &seen.method);
            }
            if let Some(name) = seen.path.strip_prefix(&format!("/cdn/{}/", repo.id)).filter(|_| seen.cdn)
                && let Some(bytes) = repo.files.get(name.split('?').next().unwrap_or_default())
            {
                return body(self, stream, seen, fault, Vec::new(), bytes);
            }
        }
        answer(stream, 404, &["X-Error-Code: EntryNotFound".to_owned()], b"", &seen.method)
    }

    fn hang(&self) -> std::io::Result<()> {
        sconce_testkit::wait_until("the server is closed", || self.closed.load(Ordering::SeqCst));
        Ok(())
    }
}

fn body(
    state: &State,
    stream: &mut TcpStream,
    seen: &Seen,
    fault: Option<Fault>,
    mut headers: Vec<String>,
    bytes: &[u8],
) -> std::io::Result<()> {
    let start = seen.range.as_ref().filter(|_| fault != Some(Fault::IgnoreRange));
    let start = start.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    if start.is_some_and(|start| start >= bytes.len()) {
        return answer(stream, 416, &headers, b"", &seen.method);
    }
    let mut rest = bytes[start.unwrap_or(0)..].to_vec();
    let status = match start {
        Some(start) => {
            headers.push(format!("Content-Range: bytes {start}-{}/{}", bytes.len() - 1, bytes.len()));
            206
        }
        None => 200,
    };
    match fault.filter(|_| seen.method == "GET") {
        Some(Fault::WrongBytes) => rest.iter_mut().for_each(|byte| *byte ^= 1),
        Some(Fault::DropAfter(n) | Fault::Stall(n)) => {
            head(stream, status, &headers, Some(rest.len()))?;
            stream.write_all(&rest[..n.min(rest.len())])?;
            return if matches!(fault, Some(Fault::Stall(_))) { state.hang() } else { Ok(()) };
        }
        Some(Fault::Endless) => {
            head(stream, status, &headers, None)?;
            while !state.closed.load(Ordering::SeqCst) {
                stream.write_all(&rest)?;
            }
            return Ok(());
        }
        _ => {}
    }
    answer(stream, status, &headers, &rest, &seen.method)
}

fn answer(stream: &mut TcpStream, status: u16, headers: &[String], body: &[u8], method: &str) -> std::io::Result<()> {
    head(stream, status, headers, Some(body.len()))?;
    if method != "HEAD" {
        stream.write_all(body)?;
    }
    stream.flush()
}

fn head(stream: &mut TcpStream, status: u16, headers: &[String], length: Option<usize>) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 {status} X\r\nConnection: close\r\n")?;
    if let Some(length) = length {
        write!(stream, "Content-Length: {length}\r\n")?;
    }
    for header in headers {
        write!(stream, "{header}\r\n")?;
    }
    stream.write_all(b"\r\n")
}
