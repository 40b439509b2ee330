//! `POST /api/pull`: downloads a model and adds it to those of the server.
//!
//! A download goes on when its client disconnects: the files are kept, and another pull of the same
//! model waits for it. So the number of downloads is limited.

use super::{model_name, plain_name};
use crate::app::App;
use crate::dialect::admin::MayManage;
use crate::error::{Dialect, Fault, FaultKind};
use crate::json_body::JsonBody;
use crate::model_manager::ModelSpec;
use crate::ndjson;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures_util::stream;
use sconce_api::ollama::{PullProgress, PullRequest};
use sconce_engine::hub::{Files, Progress, Reference, resolve};
use sconce_engine::{LoadOptions, Task};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Most downloads at once.
const MAX_PULLS: usize = 4;
/// Lines that a slow client may leave unread; further ones are dropped.
const MAX_LINES: usize = 256;
/// How often the progress of a file is reported.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// Downloads that may still begin.
#[derive(Clone, Debug)]
pub(crate) struct PullPermits(Arc<Semaphore>);

impl Default for PullPermits {
    fn default() -> PullPermits {
        PullPermits(Arc::new(Semaphore::new(MAX_PULLS)))
    }
}

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(pull))
}

/// Downloads a model and adds it to those of the server. Only for requests that may load models.
#[utoipa::path(post, path = "/api/pull", request_body = PullRequest, responses(
    (status = 200, description = "The progress; a line for each step unless `stream` is false", content(
        (PullProgress = "application/x-ndjson"), (PullProgress = "application/json")))))]
async fn pull(
    State(app): State<Arc<App>>,
    Extension(may_manage): Extension<MayManage>,
    JsonBody { body, context }: JsonBody<PullRequest>,
) -> Result<Response, Fault> {
    may_manage.check()?;
    let given = body.model.or(body.name).unwrap_or_default();
    let name = model_name(&app, &given)?.to_owned();
    context.set_model(&name);
    let reference = downloadable(&app, &name)?;
    let permit = app.pulls.0.clone().try_acquire_owned().map_err(|_| {
        let what = format!("{MAX_PULLS} models are being downloaded; wait for one of them");
        Fault::new(FaultKind::Overloaded, what)
    })?;
    let mut lines = start(&app, Pull { name, reference, permit })?;
    if body.stream.unwrap_or(true) {
        let lines = stream::unfold(lines, |mut lines| async move {
            let line = match lines.recv().await? {
                Ok(progress) => ndjson::line(&progress),
                Err(fault) => ndjson::line(&fault.body(Dialect::Ollama)),
            };
            Some((line, lines))
        });
        return Ok(ndjson::answer(lines));
    }
    let mut last = Err(internal());
    while let Some(line) = lines.recv().await {
        last = line;
    }
    last.map(|progress| Json(progress).into_response())
}

fn internal() -> Fault {
    Fault::new(FaultKind::Internal, "internal error, please report it; only this request failed")
}

/// What a name means, if it can be downloaded: the reference of the server's model, or the name
/// itself.
fn downloadable(app: &App, name: &str) -> Result<(String, Reference), Fault> {
    let known = app.models.list().into_iter().find(|summary| summary.spec.is_called(name));
    let given = known.map_or_else(|| plain_name(name).to_owned(), |summary| summary.spec.reference);
    let reference: Reference = given.parse().map_err(|e| Fault::invalid(format!("{e}")).at("model"))?;
    match reference {
        Reference::Dir(_) | Reference::Gguf(_) => {
            let what = format!(
                "`{name}` is a folder or file of the server, not a model to download; POST /v1/models/load serves it"
            );
            Err(Fault::invalid(what).at("model"))
        }
        _ => Ok((given, reference)),
    }
}

/// A download that may begin.
struct Pull {
    /// The name that requests will use.
    name: String,
    reference: (String, Reference),
    permit: OwnedSemaphorePermit,
}

type Line = Result<PullProgress, Fault>;

/// Starts the thread that downloads, and returns its progress.
fn start(app: &Arc<App>, pull: Pull) -> Result<Receiver<Line>, Fault> {
    let (sender, lines) = channel(MAX_LINES);
    let app = app.clone();
    let body = move || {
        let Pull { name, reference: (given, reference), permit } = pull;
        let report = Report { lines: sender.clone(), file: Mutex::default() };
        report.status("pulling manifest");
        let load = app.models.defaults();
        let done = catch_unwind(AssertUnwindSafe(|| resolve(&reference, &load.hub_options(), &report)));
        let last = match done {
            Err(_) => Err(internal()),
            Ok(Ok(files)) => {
                report.status(&format!("files: {}", files.origin));
                tracing::info!(model = name, "pulled: {}", files.origin);
                app.models.add_unloaded(spec(name, given, &files, load));
                Ok(PullProgress { status: "success".into(), ..PullProgress::default() })
            }
            Ok(Err(e)) => Err(Fault::invalid(format!("cannot pull `{name}`: {e}")).at("model")),
        };
        drop(permit);
        // Fails only if the client has disconnected.
        let _ = sender.blocking_send(last);
    };
    match std::thread::Builder::new().name("pull".into()).spawn(body) {
        Ok(_) => Ok(lines),
        Err(e) => Err(Fault::new(FaultKind::Unhealthy, format!("cannot start the thread that downloads: {e}"))),
    }
}

/// The server's model of downloaded files.
fn spec(name: String, reference: String, files: &Files, load: LoadOptions) -> ModelSpec {
    let task = Task::detect(files.root()).ok();
    ModelSpec { aliases: vec![reference.clone()], reference, id: name, task, load }
}

/// Sends the progress of a download as lines.
struct Report {
    lines: Sender<Line>,
    file: Mutex<File>,
}

/// The file that is downloaded.
#[derive(Default)]
struct File {
    name: String,
    total: u64,
    done: u64,
    reported: Option<Instant>,
}

impl File {
    fn line(&self) -> PullProgress {
        PullProgress {
            status: format!("pulling {}", self.name),
            digest: Some(self.name.clone()),
            total: (self.total > 0).then_some(self.total),
            completed: Some(self.done),
        }
    }
}

impl Report {
    fn send(&self, line: PullProgress) {
        // A client that reads too slowly loses progress, not the result.
        let _ = self.lines.try_send(Ok(line));
    }

    fn status(&self, status: &str) {
        self.send(PullProgress { status: status.to_owned(), ..PullProgress::default() });
    }

    fn file(&self) -> std::sync::MutexGuard<'_, File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress for Report {
    fn note(&self, line: &str) {
        self.status(line);
    }

    fn begin(&self, what: &str, bytes: u64) {
        let mut file = self.file();
        *file = File { name: what.to_owned(), total: bytes, done: 0, reported: Some(Instant::now()) };
        self.send(file.line());
    }

    fn advance(&self, bytes: u64) {
        let mut file = self.file();
        file.done = file.done.saturating_add(bytes);
        if file.reported.is_none_or(|at| at.elapsed() >= REPORT_EVERY) {
            file.reported = Some(Instant::now());
            self.send(file.line());
        }
    }

    fn end(&self) {
        let file = std::mem::take(&mut *self.file());
        self.send(file.line());
    }
}
