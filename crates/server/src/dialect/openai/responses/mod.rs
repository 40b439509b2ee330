//! `/v1/responses`: conversations as lists of items, which the server may keep.

mod events;
mod items;
mod request;
mod stored;

use super::chat::token;
use super::{id, now};
use crate::app::App;
use crate::conversation::{self, ChatEvent, Conversation};
use crate::error::{Fault, FaultKind};
use crate::http_context::HttpContext;
use crate::json_body::JsonBody;
use crate::owner::Owner;
use crate::sse;
use crate::storage::blocking;
use crate::storage::responses::StoredResponse;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response as HttpResponse};
use events::{Options, ResponseEvents};
use futures_util::stream;
use sconce_api::openai::chat::ChatRequest;
use sconce_api::openai::responses::events::ResponseStreamEvent;
use sconce_api::openai::responses::input::InputItem;
use sconce_api::openai::responses::request::{ResponseRequest, Truncation};
use sconce_api::openai::responses::response::{
    InputTokens, InputTokensDetails, OutputTokensDetails, Response, ResponseUsage,
};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::SemaphorePermit;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(create)).routes(routes!(input_tokens)).merge(stored::routes())
}

/// A response, complete or streamed.
#[utoipa::path(post, path = "/v1/responses", request_body = ResponseRequest, responses(
    (status = 200, description = "The response; a stream of events if `stream` is true", content(
        (Response = "application/json"), (ResponseStreamEvent = "text/event-stream")))))]
async fn create(
    State(app): State<Arc<App>>,
    owner: Owner,
    JsonBody { body: mut request, context }: JsonBody<ResponseRequest>,
) -> Result<HttpResponse, Fault> {
    let Prepared { chat, input, permit } = prepare(&app, &owner, &mut request, &context).await?;
    let truncation = request.truncation.unwrap_or_default();
    let conversation = begin(&app, &context, chat, truncation).await.map_err(request::renamed)?;
    drop(permit);
    let options =
        Options { has_summaries: request::has_summaries(&request), has_logprobs: request::has_logprobs(&request) };
    let is_stream = request.stream.unwrap_or(false);
    let response = request::new_response(request, id("resp_"), now(), conversation.info().model.clone());
    let events = ResponseEvents::new(response, options);
    let answer = Answer { app, owner, conversation, events, input, is_over: false };
    if is_stream {
        return Ok(stream(answer));
    }
    complete(answer).await.map(|response| Json(response).into_response())
}

/// The number of tokens of a response's prompt. The model does not run.
#[utoipa::path(post, path = "/v1/responses/input_tokens", request_body = ResponseRequest, responses(
    (status = 200, description = "The number of tokens", body = InputTokens)))]
async fn input_tokens(
    State(app): State<Arc<App>>,
    owner: Owner,
    JsonBody { body: mut request, context }: JsonBody<ResponseRequest>,
) -> Result<Json<InputTokens>, Fault> {
    let Prepared { chat, permit: _permit, .. } = prepare(&app, &owner, &mut request, &context).await?;
    let counted = conversation::count_tokens(&app, &context, "v1/responses/input_tokens", chat).await;
    let input_tokens = counted.map_err(request::renamed)?;
    Ok(Json(InputTokens { object: "response.input_tokens".into(), input_tokens }))
}

/// A request that was checked and translated.
struct Prepared<'a> {
    chat: ChatRequest,
    /// The request's own input as it is stored.
    input: Vec<InputItem>,
    /// Held while a stored conversation is in memory.
    permit: Option<SemaphorePermit<'a>>,
}

async fn prepare<'a>(
    app: &'a Arc<App>,
    owner: &Owner,
    request: &mut ResponseRequest,
    context: &HttpContext,
) -> Result<Prepared<'a>, Fault> {
    request::check(request, context)?;
    let input = items::normalized(request.input.take())?;
    let (history, permit) = match &request.previous_response_id {
        None => (Vec::new(), None),
        Some(previous) => {
            // A small request may bring a long conversation into memory, before it counts as one of
            // the concurrent requests.
            let permit = app.histories.acquire().await.ok();
            let (app, owner, previous) = (app.clone(), owner.clone(), previous.clone());
            let all = blocking(move || app.responses.conversation(&owner, &previous)).await?;
            (items::history(all), permit)
        }
    };
    if history.is_empty() && input.is_empty() {
        return Err(Fault::invalid("there is no `input`; send a text or at least one item").at("input"));
    }
    let messages = items::chat_messages(request.instructions.as_deref(), &history, &input)?;
    Ok(Prepared { chat: request::chat_request(request, messages, context)?, input, permit })
}

/// Starts the answer. With `truncation` `auto` it leaves out the oldest turns, more each time, until
/// the conversation fits into the context.
async fn begin(
    app: &Arc<App>,
    context: &Arc<HttpContext>,
    mut chat: ChatRequest,
    truncation: Truncation,
) -> Result<Conversation, Fault> {
    const ROUTE: &str = "v1/responses";
    if truncation == Truncation::Disabled {
        return conversation::begin(app, context, ROUTE, chat).await;
    }
    let all = std::mem::take(&mut chat.messages);
    let turns = items::later_turns(&all);
    let mut left_out = 0;
    loop {
        let messages = items::without_oldest(&all, &turns, left_out);
        match conversation::begin(app, context, ROUTE, ChatRequest { messages, ..chat.clone() }).await {
            Err(fault) if fault.kind == FaultKind::TooLong && left_out < turns.len() => {
                left_out = (2 * left_out).max(1).min(turns.len());
            }
            begun => return begun,
        }
    }
}

/// A response that is being generated.
struct Answer {
    app: Arc<App>,
    owner: Owner,
    conversation: Conversation,
    events: ResponseEvents,
    input: Vec<InputItem>,
    is_over: bool,
}

impl Answer {
    /// The next events. The last is that of the response's end, before which it is stored.
    async fn next(&mut self) -> Result<Vec<ResponseStreamEvent>, Fault> {
        match self.conversation.next().await {
            Some(ChatEvent::Part { part, logprobs, .. }) => {
                let logprobs = logprobs.into_iter().map(token).collect();
                Ok(self.events.part(part, logprobs, || self.conversation.call_id("call_")))
            }
            Some(ChatEvent::End { finish, .. }) => {
                let mut events = self.events.end(&finish, self.usage(), now());
                self.is_over = true;
                self.store().await?;
                events.push(self.events.last());
                Ok(events)
            }
            Some(ChatEvent::Failed(fault)) => Err(fault),
            None => Err(Fault::new(FaultKind::Unhealthy, "the model was unloaded or stopped before it answered")),
        }
    }

    fn usage(&self) -> ResponseUsage {
        let info = self.conversation.info();
        let output_tokens = self.conversation.completion_tokens();
        ResponseUsage {
            input_tokens: info.prompt_tokens,
            input_tokens_details: InputTokensDetails { cached_tokens: info.cached_tokens(), cache_write_tokens: 0 },
            output_tokens,
            output_tokens_details: OutputTokensDetails { reasoning_tokens: self.conversation.reasoning_tokens() },
            total_tokens: info.prompt_tokens + output_tokens,
        }
    }

    async fn store(&mut self) -> Result<(), Fault> {
        let response = self.events.response();
        if !response.store {
            return Ok(());
        }
        let stored = StoredResponse { input: std::mem::take(&mut self.input), response: response.clone() };
        let (app, owner) = (self.app.clone(), self.owner.clone());
        blocking(move || app.responses.put(&owner, &stored)).await
    }

    /// The last event of a stream that fails.
    fn fail(&mut self, fault: &Fault) -> Vec<ResponseStreamEvent> {
        self.is_over = true;
        let usage = self.usage();
        self.events.fail(fault, usage)
    }
}

/// The complete response.
async fn complete(mut answer: Answer) -> Result<Response, Fault> {
    while !answer.is_over {
        answer.next().await?;
    }
    Ok(answer.events.into_response())
}

/// The streamed response.
fn stream(mut answer: Answer) -> HttpResponse {
    let ready = VecDeque::from(answer.events.start());
    sse::answer(stream::unfold((answer, ready), |(mut answer, mut ready)| async move {
        loop {
            if let Some(next) = ready.pop_front() {
                return Some((sse::named(next.event.name(), &next), (answer, ready)));
            }
            if answer.is_over {
                return None;
            }
            let events = match answer.next().await {
                Ok(events) => events,
                Err(fault) => answer.fail(&fault),
            };
            ready.extend(events);
        }
    }))
}
