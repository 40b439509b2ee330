//! `/execute` and `/v1/jobs`: generate text as a stream of events.

use super::jobs::Job;
use super::{Member, member};
use crate::app::App;
use crate::call::{Call, Usage};
use crate::error::{Fault, FaultKind};
use crate::json_body;
use crate::metrics::FinishedAnswer;
use crate::served_model::{RequestKind, ServedModel};
use crate::sse::{answer, data, done};
use axum::Json;
use axum::extract::{Path, Request as HttpRequest, State};
use axum::response::Response;
use axum::response::sse::Event as SseEvent;
use futures_util::Stream;
use sconce_api::time::rfc3339;
use sconce_api::worker::{Code, Event, Execute, Failure, JobCreated, MOST_TOKENS, StopReason};
use sconce_engine::TaskModel;
use sconce_engine::{Event as EngineEvent, Finish, GenerationParams, Llm, Request, RequestContext, Start};
use serde_json::json;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Instant, SystemTime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Generates text from a prompt.
#[utoipa::path(post, path = "/execute", request_body = Execute,
    responses((status = 200, description = "Events; the last is `end` or `error`", body = Event, content_type = "text/event-stream")))]
pub(super) async fn execute(State(app): State<Arc<App>>, request: HttpRequest) -> Result<Response, Fault> {
    let member = member(&app)?.clone();
    let begun = begin(&app, &member, request, |_| Ok(())).await;
    let (_, events) = begun.inspect_err(|fault| member.metrics.refused(fault.kind))?;
    Ok(answer(events))
}

/// Starts to generate text from a prompt. The events wait for `GET /v1/jobs/{id}/stream`.
#[utoipa::path(post, path = "/v1/jobs", request_body = Execute,
    responses((status = 200, description = "The job has started", body = JobCreated),
              (status = 409, description = "A job with this id waits for its stream to be taken")))]
pub(super) async fn create(State(app): State<Arc<App>>, request: HttpRequest) -> Result<Json<JobCreated>, Fault> {
    let member = member(&app)?.clone();
    let begun = begin(&app, &member, request, |id| member.jobs.check_waiting(id)).await;
    let (id, events) = begun.inspect_err(|fault| member.metrics.refused(fault.kind))?;
    member.wait_for_client(&id, events)?;
    Ok(Json(JobCreated::new(&id)))
}

/// The events of a job of `POST /v1/jobs`. Closing the connection cancels the job.
#[utoipa::path(get, path = "/v1/jobs/{id}/stream", params(("id" = String, Path, description = "Id of the job")),
    responses((status = 200, description = "Events; the last is `end` or `error`", body = Event, content_type = "text/event-stream"),
              (status = 404, description = "There is no such job, or its events were streamed already"),
              (status = 409, description = "Another client streams the job's events")))]
pub(super) async fn stream(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, Fault> {
    let member = member(&app)?;
    Ok(answer(member.jobs.collect(&id, member.membership.job_lifetime)?))
}

/// Starts the job of a request and returns its id and events. `check` may refuse the id before
/// anything runs.
async fn begin(
    app: &Arc<App>,
    member: &Arc<Member>,
    request: HttpRequest,
    check: impl FnOnce(&str) -> Result<(), Fault>,
) -> Result<(String, EventReceiver), Fault> {
    let (bytes, context) = json_body::read(request, app).await?;
    let (request, ignored) = Execute::read(&bytes).map_err(invalid)?;
    ignored.iter().for_each(|field| context.note_ignored(field));
    check(&request.job_id)?;
    let call = app.call("execute", &context, request.model.as_deref(), RequestKind::Generate)?;
    let (events, engine_events) = unbounded_channel();
    let (job_id, characters) = (request.job_id.clone(), request.prompt.chars().count());
    let job = Job::begin(member, &job_id);
    let prompt_tokens = call.run(move |served, caller| start(served, caller, &request, events)).await?;
    let model = call.served().id.clone();
    let (sender, receiver) = unbounded_channel();
    let started =
        Event::Started { job_id: job_id.clone(), model: model.clone(), started_at: rfc3339(SystemTime::now()) };
    let _ = sender.send(data(&started));
    let usage = Usage { tokens: prompt_tokens, characters };
    let stream =
        JobStream { app: app.clone(), member: member.clone(), call, job, model, usage, started_at: context.started_at };
    tokio::spawn(stream.run(engine_events, sender));
    Ok((job_id, EventReceiver(receiver)))
}

/// One error that lists all invalid fields.
fn invalid(errors: Vec<sconce_api::worker::Violation>) -> Fault {
    let failure = Failure::invalid(errors);
    Fault::invalid(failure.message).details(json!({"errors": failure.errors}))
}

/// Starts a job on the model; returns the number of prompt tokens.
fn start(
    served: &ServedModel,
    caller: &RequestContext,
    request: &Execute,
    events: UnboundedSender<sconce_engine::Result<EngineEvent>>,
) -> Result<usize, Fault> {
    let TaskModel::Generate(llm) = &served.model else { return Err(served.unsupported(RequestKind::Generate)) };
    let start = Start::Text(request.prompt.clone());
    let max_tokens = match request.max_tokens {
        Some(limit) => limit,
        None => default_max_tokens(llm, &start)?,
    };
    let request = Request {
        start,
        params: Some(params(llm.params(), request)),
        max_tokens: usize::try_from(max_tokens).ok(),
        stop: request.stop.clone(),
        ..Request::default()
    };
    // Sending fails only if the client has disconnected; then the request is cancelled too.
    let started = llm.start(&request, caller, move |event| drop(events.send(event)))?;
    Ok(started.prompt_tokens)
}

/// Default of `max_tokens`: the contract's limit, or the free context if that is less.
fn default_max_tokens(llm: &Llm, start: &Start) -> Result<u64, Fault> {
    let prompt = llm.encode(start)?.len();
    Ok(MOST_TOKENS.min(llm.context().saturating_sub(prompt).max(1) as u64))
}

/// The model's default sampling parameters, overridden by the job.
fn params(defaults: &GenerationParams, request: &Execute) -> GenerationParams {
    let mut params = defaults.clone();
    params.n = 1;
    params.seed = request.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    params.temperature = request.temperature.unwrap_or(params.temperature);
    params.top_p = request.top_p.unwrap_or(params.top_p);
    params.min_p = request.min_p.unwrap_or(params.min_p);
    params.repetition_penalty = request.repetition_penalty.unwrap_or(params.repetition_penalty);
    if let Some(k) = request.top_k {
        params.top_k = (k > 0).then_some(k);
    }
    params
}

/// Turns the engine's events into the client's. It holds the call, so that a slow reader holds only
/// its own events.
struct JobStream {
    app: Arc<App>,
    member: Arc<Member>,
    call: Call,
    job: Job,
    model: String,
    usage: Usage,
    started_at: Instant,
}

/// How a job ended.
enum JobEnd {
    Finished(Finish),
    Cancelled,
    Failed(Fault),
    /// The client disconnected.
    Disconnected,
}

impl JobStream {
    async fn run(
        self,
        mut engine_events: UnboundedReceiver<sconce_engine::Result<EngineEvent>>,
        to: UnboundedSender<SseEvent>,
    ) {
        let (mut events, mut tokens) = (0, 0);
        let (mut first, mut last) = (None::<Instant>, Instant::now());
        let end = loop {
            let event = tokio::select! {
                biased;
                () = self.job.cancelled.notified() => break JobEnd::Cancelled,
                () = to.closed() => break JobEnd::Disconnected,
                event = engine_events.recv() => event,
                () = until(self.call.deadline()) => {
                    break JobEnd::Failed(Fault::new(FaultKind::Timeout, "the job took longer than --request-timeout"));
                }
            };
            match event {
                Some(Ok(EngineEvent::Text { text, sampled, .. })) => {
                    let now = Instant::now();
                    if first.is_some() {
                        self.app.metrics.llm.inter_token(&self.model, now - last);
                    }
                    (first, last) = (first.or(Some(now)), now);
                    tokens += sampled.len();
                    let _ = to.send(data(&Event::Token { t: text, i: events }));
                    events += 1;
                }
                Some(Ok(EngineEvent::End { finish, .. })) => break JobEnd::Finished(finish),
                Some(Ok(EngineEvent::Begun { .. } | EngineEvent::Progress { .. })) => {}
                Some(Err(sconce_engine::Error::Cancelled)) => break JobEnd::Cancelled,
                Some(Err(e)) => break JobEnd::Failed(e.into()),
                None => {
                    break JobEnd::Failed(Fault::new(
                        FaultKind::Internal,
                        "internal error: the model ended without a result; please report it",
                    ));
                }
            }
        };
        let decode = first.map_or(0.0, |first| first.elapsed().as_secs_f64());
        self.send_end(&to, &end, tokens, decode);
        self.record(end, tokens, first);
    }

    fn send_end(&self, to: &UnboundedSender<SseEvent>, end: &JobEnd, tokens: usize, decode: f64) {
        let (stop_reason, matched) = match end {
            JobEnd::Finished(Finish::End) => (StopReason::Eos, None),
            JobEnd::Finished(Finish::Stop(text)) => (StopReason::StopSequence, Some(text.clone())),
            JobEnd::Finished(Finish::Length) => (StopReason::MaxTokens, None),
            JobEnd::Cancelled => (StopReason::Cancelled, None),
            JobEnd::Failed(fault) => {
                // Out of memory during a job has another code than a model that does not fit.
                let code = if fault.kind == FaultKind::Memory { Code::VramOom } else { fault.worker_code() };
                let failure = Failure { retriable: fault.is_retriable(), ..Failure::new(code, &fault.message) };
                let _ = to.send(data(&Event::Error(failure)));
                let _ = to.send(done());
                return;
            }
            JobEnd::Disconnected => return,
        };
        if tokens > 1 && decode > 0.0 {
            let tokens_per_sec = (tokens - 1) as f64 / decode;
            let vram_bytes = super::health::bytes(self.call.served());
            let _ = to.send(data(&Event::Metrics { tokens_per_sec, vram_bytes }));
        }
        let _ = to.send(data(&Event::End {
            tokens_out: tokens as u64,
            decode_time_ms: (decode * 1e3).round() as u64,
            stop_reason,
            stop_sequence_matched: matched,
        }));
        let _ = to.send(done());
    }

    /// Records the outcome, exactly once.
    fn record(self, end: JobEnd, tokens: usize, first: Option<Instant>) {
        let metrics = &self.member.metrics;
        metrics.tokens(tokens);
        metrics.took(self.started_at.elapsed());
        let (outcome, reason) = match &end {
            JobEnd::Finished(Finish::Length) => ("success", "length"),
            JobEnd::Finished(_) => ("success", "stop"),
            JobEnd::Cancelled | JobEnd::Disconnected => ("cancelled", "abort"),
            JobEnd::Failed(_) => ("error", "abort"),
        };
        metrics.outcome(outcome);
        let time_to_first_token = first.map(|first| first.duration_since(self.started_at));
        let latency = self.started_at.elapsed();
        self.app.metrics.llm.finished(&self.model, &FinishedAnswer { reason, tokens, time_to_first_token, latency });
        match end {
            JobEnd::Finished(_) => self.call.done(self.usage),
            JobEnd::Cancelled | JobEnd::Disconnected => {}
            JobEnd::Failed(fault) => drop(self.call.failed(fault)),
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// The client's events. Dropped with the connection, which closes the channel for the sender.
/// Unread events are bounded by the job's `max_tokens`.
pub(super) struct EventReceiver(UnboundedReceiver<SseEvent>);

impl Stream for EventReceiver {
    type Item = SseEvent;
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<SseEvent>> {
        self.0.poll_recv(cx)
    }
}
