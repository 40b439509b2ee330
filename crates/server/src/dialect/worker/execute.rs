//! `/execute`: a text goes on, as a stream of events.

use super::jobs::Job;
use super::{Member, member};
use crate::app::App;
use crate::asked;
use crate::call::{Call, Usage};
use crate::error::{Fault, FaultKind};
use crate::metrics::Finished;
use crate::served::{Served, Want};
use crate::sse::{answer, data, done};
use axum::extract::{Request as HttpRequest, State};
use axum::response::Response;
use axum::response::sse::Event as Sent;
use futures_util::Stream;
use sconce_api::time::rfc3339;
use sconce_api::worker::{Code, Event, Execute, Failure, MOST_TOKENS, StopReason};
use sconce_engine::TaskModel;
use sconce_engine::{Event as Made, Finish, GenerationParams, Llm, Request, RequestContext, Start};
use serde_json::json;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Instant, SystemTime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Goes on from a text.
#[utoipa::path(post, path = "/execute", request_body = Execute,
    responses((status = 200, description = "Events, the last of which is `end` or `error`", body = Event, content_type = "text/event-stream")))]
pub(super) async fn execute(State(app): State<Arc<App>>, request: HttpRequest) -> Result<Response, Fault> {
    let member = member(&app)?.clone();
    let begun = begin(&app, &member, request).await;
    begun.inspect_err(|fault| member.counted.refused(fault.kind))
}

async fn begin(app: &Arc<App>, member: &Arc<Member>, request: HttpRequest) -> Result<Response, Fault> {
    let (bytes, trail) = asked::body(request, app).await?;
    let (wanted, ignored) = Execute::read(&bytes).map_err(invalid)?;
    ignored.iter().for_each(|field| trail.ignored(field));
    let call = app.call("execute", &trail, wanted.model.as_deref(), Want::Generate)?;
    let (events, made) = unbounded_channel();
    let (job_id, characters) = (wanted.job_id.clone(), wanted.prompt.chars().count());
    let job = Job::begin(member, &job_id);
    let prompt_tokens = call.run(move |served, caller| start(served, caller, &wanted, events)).await?;
    let model = call.served().id.clone();
    let (sender, inbox) = unbounded_channel();
    let started = Event::Started { job_id, model: model.clone(), started_at: rfc3339(SystemTime::now()) };
    let _ = sender.send(data(&started));
    let usage = Usage { tokens: prompt_tokens, characters };
    let telling = Telling { app: app.clone(), member: member.clone(), call, job, model, usage, begun: trail.begun };
    tokio::spawn(telling.run(made, sender));
    Ok(answer(Inbox(inbox)))
}

/// All that is wrong, told at once.
fn invalid(errors: Vec<sconce_api::worker::Violation>) -> Fault {
    let failure = Failure::invalid(errors);
    Fault::invalid(failure.message).details(json!({"errors": failure.errors}))
}

/// Hands a job to the model; the tokens of its prompt.
fn start(
    served: &Served,
    caller: &RequestContext,
    wanted: &Execute,
    events: UnboundedSender<sconce_engine::Result<Made>>,
) -> Result<usize, Fault> {
    let TaskModel::Generate(llm) = &served.model else { return Err(served.unfit(Want::Generate)) };
    let start = Start::Text(wanted.prompt.clone());
    let max_tokens = match wanted.max_tokens {
        Some(most) => most,
        None => room(llm, &start)?,
    };
    let request = Request {
        start,
        params: Some(params(llm.params(), wanted)),
        max_tokens: usize::try_from(max_tokens).ok(),
        stop: wanted.stop.clone(),
        ..Request::default()
    };
    // Nobody takes them if the client has gone; then the caller is cancelled too.
    let started = llm.start(&request, caller, move |event| drop(events.send(event)))?;
    Ok(started.prompt_tokens)
}

/// The most tokens where nobody says: what the contract allows, or what there is room for.
fn room(llm: &Llm, start: &Start) -> Result<u64, Fault> {
    let prompt = llm.encode(start)?.len();
    Ok(MOST_TOKENS.min(llm.context().saturating_sub(prompt).max(1) as u64))
}

/// As the model's makers choose tokens, but for what the job says.
fn params(own: &GenerationParams, wanted: &Execute) -> GenerationParams {
    let mut params = own.clone();
    params.n = 1;
    params.seed = wanted.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    params.temperature = wanted.temperature.unwrap_or(params.temperature);
    params.top_p = wanted.top_p.unwrap_or(params.top_p);
    params.min_p = wanted.min_p.unwrap_or(params.min_p);
    params.repetition_penalty = wanted.repetition_penalty.unwrap_or(params.repetition_penalty);
    if let Some(k) = wanted.top_k {
        params.top_k = (k > 0).then_some(k);
    }
    params
}

/// What makes a client's events of the model's. It holds the call, so that a client that reads slowly holds nothing but its events.
struct Telling {
    app: Arc<App>,
    member: Arc<Member>,
    call: Call,
    job: Job,
    model: String,
    usage: Usage,
    begun: Instant,
}

/// How a job ended.
enum End {
    Finished(Finish),
    Cancelled,
    Failed(Fault),
    /// Nobody listens.
    Gone,
}

impl Telling {
    async fn run(self, mut made: UnboundedReceiver<sconce_engine::Result<Made>>, to: UnboundedSender<Sent>) {
        let (mut events, mut tokens) = (0, 0);
        let (mut first, mut last) = (None::<Instant>, Instant::now());
        let end = loop {
            let event = tokio::select! {
                biased;
                () = self.job.cancelled.notified() => break End::Cancelled,
                () = to.closed() => break End::Gone,
                event = made.recv() => event,
                () = until(self.call.deadline()) => {
                    break End::Failed(Fault::new(FaultKind::Late, "it took longer than --request-timeout allows"));
                }
            };
            match event {
                Some(Ok(Made::Text { text, picks, .. })) => {
                    let now = Instant::now();
                    if first.is_some() {
                        self.app.metrics.language.gap(&self.model, now - last);
                    }
                    (first, last) = (first.or(Some(now)), now);
                    tokens += picks.len();
                    let _ = to.send(data(&Event::Token { t: text, i: events }));
                    events += 1;
                }
                Some(Ok(Made::End { finish, .. })) => break End::Finished(finish),
                Some(Ok(Made::Begun { .. })) => {}
                Some(Err(sconce_engine::Error::Cancelled)) => break End::Cancelled,
                Some(Err(e)) => break End::Failed(e.into()),
                None => {
                    break End::Failed(Fault::new(
                        FaultKind::Internal,
                        "the model forgot the answer; please report it",
                    ));
                }
            }
        };
        let decode = first.map_or(0.0, |first| first.elapsed().as_secs_f64());
        self.tell(&to, &end, tokens, decode);
        self.record(end, tokens, first);
    }

    fn tell(&self, to: &UnboundedSender<Sent>, end: &End, tokens: usize, decode: f64) {
        let (stop_reason, matched) = match end {
            End::Finished(Finish::End) => (StopReason::Eos, None),
            End::Finished(Finish::Stop(text)) => (StopReason::StopSequence, Some(text.clone())),
            End::Finished(Finish::Length) => (StopReason::MaxTokens, None),
            End::Cancelled => (StopReason::Cancelled, None),
            End::Failed(fault) => {
                // What does not fit before it begins is another thing than what runs out in the middle.
                let code = if fault.kind == FaultKind::Memory { Code::VramOom } else { fault.worker_code() };
                let failure = Failure { retriable: fault.is_retriable(), ..Failure::new(code, &fault.message) };
                let _ = to.send(data(&Event::Error(failure)));
                let _ = to.send(done());
                return;
            }
            End::Gone => return,
        };
        if tokens > 1 && decode > 0.0 {
            let tokens_per_sec = (tokens - 1) as f64 / decode;
            let vram_bytes = super::about::bytes(self.call.served());
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

    /// Once, whatever happened.
    fn record(self, end: End, tokens: usize, first: Option<Instant>) {
        let counted = &self.member.counted;
        counted.tokens(tokens);
        counted.took(self.begun.elapsed());
        let (outcome, reason) = match &end {
            End::Finished(Finish::Length) => ("success", "length"),
            End::Finished(_) => ("success", "stop"),
            End::Cancelled | End::Gone => ("cancelled", "abort"),
            End::Failed(_) => ("error", "abort"),
        };
        counted.outcome(outcome);
        let first = first.map(|first| first.duration_since(self.begun));
        let whole = self.begun.elapsed();
        self.app.metrics.language.finished(&self.model, &Finished { reason, tokens, first, whole });
        match end {
            End::Finished(_) => self.call.done(self.usage),
            End::Cancelled | End::Gone => {}
            End::Failed(fault) => drop(self.call.failed(fault)),
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// A client's events. Dropped with the connection, it tells the sender that nobody listens.
struct Inbox(UnboundedReceiver<Sent>);

impl Stream for Inbox {
    type Item = Sent;
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Sent>> {
        self.0.poll_recv(cx)
    }
}
