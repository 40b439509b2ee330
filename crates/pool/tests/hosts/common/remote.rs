//! A fake `sconce serve` on another host: a server on threads of its own, which can be stopped,
//! frozen, and made hostile.

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use futures_util::StreamExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

/// What a fake host does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Everything is well.
    Normal,
    /// Nothing is answered and no stream goes on, but connections stay open: as a host behind a
    /// link that drops all packets.
    Frozen,
    /// Answers everything but requests to models, which wait forever.
    Silent,
    /// Answers everything but health checks, which wait forever.
    NoHealth,
    /// Requests to models get this status.
    Status(u16),
    /// Everything but health checks gets status 401.
    WrongKey,
    /// Requests to models are redirected.
    Redirect,
    /// Responses have thousands of headers.
    ManyHeaders,
    /// Responses have one header of 200 kB.
    LongHeader,
    /// `/v1/models` never ends.
    EndlessPage,
    /// Responses of models trickle, a byte at a time.
    Trickle,
}

/// A request that a fake host has received.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

pub(crate) struct FakeState {
    pub(crate) name: String,
    pub(crate) key: Option<String>,
    pub(crate) models: Mutex<Vec<String>>,
    pub(crate) behaviour: Mutex<Behaviour>,
    /// How long a model computes.
    pub(crate) delay: Duration,
    pub(crate) received: Mutex<Vec<Received>>,
}

impl FakeState {
    pub(crate) fn new(name: &str, models: &[&str]) -> FakeState {
        FakeState {
            name: name.into(),
            key: None,
            models: Mutex::new(models.iter().map(ToString::to_string).collect()),
            behaviour: Mutex::new(Behaviour::Normal),
            delay: Duration::ZERO,
            received: Mutex::default(),
        }
    }

    fn behaviour(&self) -> Behaviour {
        *self.behaviour.lock().unwrap()
    }

    /// Waits as long as the host is frozen.
    async fn thaw(&self) {
        while self.behaviour() == Behaviour::Frozen {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A running fake host. Dropping it ends its connections.
pub(crate) struct FakeHost {
    pub(crate) address: SocketAddr,
    pub(crate) state: Arc<FakeState>,
    tls: Option<Arc<ServerConfig>>,
    runtime: Option<Runtime>,
}

impl FakeHost {
    pub(crate) fn new(name: &str, models: &[&str]) -> FakeHost {
        FakeHost::start(FakeState::new(name, models), "127.0.0.1:0", None)
    }

    pub(crate) fn with_key(name: &str, models: &[&str], key: &str) -> FakeHost {
        FakeHost::start(FakeState { key: Some(key.into()), ..FakeState::new(name, models) }, "127.0.0.1:0", None)
    }

    pub(crate) fn start(state: FakeState, address: &str, tls: Option<Arc<ServerConfig>>) -> FakeHost {
        let state = Arc::new(state);
        let (runtime, address) = serve(state.clone(), address.parse().unwrap(), tls.clone());
        FakeHost { address, state, tls, runtime: Some(runtime) }
    }

    pub(crate) fn set(&self, behaviour: Behaviour) {
        *self.state.behaviour.lock().unwrap() = behaviour;
    }

    /// Ends the host and all its connections.
    pub(crate) fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }

    /// Starts it again at the same address.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.runtime = Some(serve(self.state.clone(), self.address, self.tls.clone()).0);
    }

    /// Its requests to models.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.state.received.lock().unwrap().clone()
    }

    /// Its table in a `pool.toml`, with further lines.
    pub(crate) fn toml(&self, models: &str, more: &str) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let (name, address) = (&self.state.name, self.address);
        format!("[[host]]\nname = '{name}'\nurl = '{scheme}://{address}'\nmodels = [{models}]\n{more}\n")
    }
}

impl Drop for FakeHost {
    fn drop(&mut self) {
        self.stop();
    }
}

fn serve(state: Arc<FakeState>, address: SocketAddr, tls: Option<Arc<ServerConfig>>) -> (Runtime, SocketAddr) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    // The port may be in use for a moment after a stop.
    let listener = sconce_testkit::wait_for("a listener", || {
        runtime.block_on(TcpListener::bind(address)).map_err(|e| e.to_string())
    });
    let address = listener.local_addr().unwrap();
    let router = Router::new().fallback(answer).with_state(state.clone());
    runtime.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (router, state, tls) = (router.clone(), state.clone(), tls.clone());
            tokio::spawn(async move {
                state.thaw().await;
                let service = TowerToHyperService::new(router);
                let mut builder = auto::Builder::new(TokioExecutor::new());
                // Large enough for the headers of a hostile host.
                builder.http1().max_buf_size(1 << 20);
                match tls {
                    Some(tls) => {
                        let Ok(stream) = TlsAcceptor::from(tls).accept(stream).await else { return };
                        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                    }
                    None => {
                        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                    }
                }
            });
        }
    });
    (runtime, address)
}

async fn answer(State(fake): State<Arc<FakeState>>, request: Request) -> Response {
    fake.thaw().await;
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_string();
    if path == "/health" {
        while fake.behaviour() == Behaviour::NoHealth {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        return ().into_response();
    }
    let sent = parts.headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
    let is_wrong = fake.key.as_ref().is_some_and(|key| sent != Some(format!("Bearer {key}").as_str()));
    if is_wrong || fake.behaviour() == Behaviour::WrongKey {
        return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")]).into_response();
    }
    let models = fake.models.lock().unwrap().clone();
    match path.as_str() {
        "/v1/models" if fake.behaviour() == Behaviour::EndlessPage => {
            let chunks =
                futures_util::stream::repeat(Ok::<_, std::convert::Infallible>(Bytes::from(vec![b' '; 65_536])));
            return Body::from_stream(chunks).into_response();
        }
        "/v1/models" => {
            let data: Vec<Value> = models.iter().map(|id| json!({"id": id, "object": "model"})).collect();
            return hostile(fake.behaviour(), Json(json!({"object": "list", "data": data})).into_response());
        }
        "/info" => {
            let task = |id: &String| if id.starts_with("embed") { "embed" } else { "generate" };
            let about = |id: &String| json!({"id": id, "state": "ready", "task": task(id), "device": "cpu"});
            return Json(json!({"models": models.iter().map(about).collect::<Vec<_>>()})).into_response();
        }
        "/metrics" => {
            let name = &fake.name;
            return format!(
                "# TYPE fake_host counter\nfake_host{{name=\"{name}\"}} 1\nfake_host{{worker=\"other\"}} 1\n<html>\n"
            )
            .into_response();
        }
        _ => {}
    }
    let body = axum::body::to_bytes(Body::new(body), 16 << 20).await.unwrap_or_default();
    let received = Received { path, headers: parts.headers, body: body.clone() };
    fake.received.lock().unwrap().push(received);
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    if body["model"].as_str().is_some_and(|model| !models.iter().any(|one| one == model)) {
        return (StatusCode::NOT_FOUND, "no such model").into_response();
    }
    tokio::time::sleep(fake.delay).await;
    fake.thaw().await;
    match fake.behaviour() {
        Behaviour::Silent => std::future::pending().await,
        Behaviour::Status(status) => (StatusCode::from_u16(status).unwrap(), "a status").into_response(),
        Behaviour::Redirect => {
            (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, "http://127.0.0.1:1/steal")]).into_response()
        }
        Behaviour::Trickle => trickle(),
        behaviour if body["stream"] == true => hostile(behaviour, events(fake.clone())),
        behaviour => {
            let answer = Json(json!({"host": fake.name, "model": body["model"]})).into_response();
            let mut answer = hostile(behaviour, answer);
            answer.headers_mut().insert(header::SET_COOKIE, HeaderValue::from_static("a=b"));
            answer
        }
    }
}

/// A hundred tokens a second; the stream stands still while the host is frozen.
fn events(fake: Arc<FakeState>) -> Response {
    let events = futures_util::stream::unfold((0, fake), |(i, fake)| async move {
        if i > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        fake.thaw().await;
        let event = match i {
            0..2_000 => format!("data: {{\"host\":\"{}\",\"i\":{i}}}\n\n", fake.name),
            2_000 => "data: [DONE]\n\n".to_string(),
            _ => return None,
        };
        Some((Ok::<_, std::convert::Infallible>(event), (i + 1, fake)))
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events.boxed())).into_response()
}

fn trickle() -> Response {
    let bytes = futures_util::stream::unfold((), |()| async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        Some((Ok::<_, std::convert::Infallible>("."), ()))
    });
    Body::from_stream(bytes.boxed()).into_response()
}

fn hostile(behaviour: Behaviour, mut answer: Response) -> Response {
    match behaviour {
        Behaviour::ManyHeaders => {
            for n in 0..5_000 {
                let name: HeaderName = format!("x-{n}").parse().unwrap();
                answer.headers_mut().insert(name, HeaderValue::from_static("y"));
            }
        }
        Behaviour::LongHeader => {
            let value = HeaderValue::from_str(&"y".repeat(200_000)).unwrap();
            answer.headers_mut().insert(HeaderName::from_static("x-long"), value);
        }
        _ => {}
    }
    answer
}
