//! Anthropic's Messages API.

mod events;
mod messages;
mod request;

use crate::app::App;
use crate::conversation::{self, ChatEvent, Conversation};
use crate::error::{Fault, FaultKind};
use crate::http_context::{HttpContext, fresh_id};
use crate::json_body::JsonBody;
use crate::sse;
use axum::Json;
use axum::extract::State;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use events::{Accumulator, MessageEvents};
use futures_util::stream;
use sconce_api::anthropic::events::StreamEvent;
use sconce_api::anthropic::message::{Message, OutputTokensDetails, TokenCount, Usage};
use sconce_api::anthropic::request::MessagesRequest;
use sconce_api::openai::chat::ChatRequest;
use std::collections::VecDeque;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Routes of this API.
pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(create)).routes(routes!(count_tokens))
}

/// A message, complete or streamed.
#[utoipa::path(post, path = "/v1/messages", request_body = MessagesRequest, responses(
    (status = 200, description = "The message; a stream of events if `stream` is true", content(
        (Message = "application/json"), (StreamEvent = "text/event-stream")))))]
async fn create(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<MessagesRequest>,
) -> Result<Response, Fault> {
    let (is_stream, max_tokens) = (body.stream.unwrap_or(false), body.max_tokens);
    let shows_thinking = request::shows_thinking(&body);
    let conversation = begin(&app, &context, request::chat_request(body, &context)?).await?;
    let events = MessageEvents::new(format!("msg_{}", fresh_id()), conversation.info().model.clone(), shows_thinking);
    let answer = Answer { conversation, events, max_tokens, context };
    if is_stream {
        return Ok(stream(answer));
    }
    complete(answer).await.map(|message| Json(message).into_response())
}

/// The number of tokens of a message's prompt. The model does not run.
#[utoipa::path(post, path = "/v1/messages/count_tokens", request_body = MessagesRequest, responses(
    (status = 200, description = "The number of tokens", body = TokenCount)))]
async fn count_tokens(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<MessagesRequest>,
) -> Result<Json<TokenCount>, Fault> {
    let chat = request::chat_request(body, &context)?;
    let counted = conversation::count_tokens(&app, &context, "v1/messages/count_tokens", chat).await;
    Ok(Json(TokenCount { input_tokens: counted.map_err(request::renamed)? }))
}

/// Starts the answer. Unlike OpenAI's API, this one takes a `max_tokens` that does not fit into the
/// context: the answer then ends with the context.
async fn begin(app: &Arc<App>, context: &Arc<HttpContext>, chat: ChatRequest) -> Result<Conversation, Fault> {
    const ROUTE: &str = "v1/messages";
    let unlimited = chat.max_tokens.is_some().then(|| ChatRequest { max_tokens: None, ..chat.clone() });
    let begun = match (conversation::begin(app, context, ROUTE, chat).await, unlimited) {
        (Err(fault), Some(unlimited)) if fault.kind == FaultKind::TooLong => {
            conversation::begin(app, context, ROUTE, unlimited).await
        }
        (begun, _) => begun,
    };
    begun.map_err(request::renamed)
}

/// An answer that is being generated.
struct Answer {
    conversation: Conversation,
    events: MessageEvents,
    max_tokens: Option<usize>,
    context: Arc<HttpContext>,
}

impl Answer {
    /// The next events of the message; `None` after the last.
    async fn next(&mut self) -> Option<Result<Vec<StreamEvent>, Fault>> {
        let event = self.conversation.next().await?;
        // The prefix cache is read before the first event, so the usage is right.
        let usage = self.usage();
        Some(match event {
            ChatEvent::Failed(fault) => Err(fault),
            ChatEvent::Part { part, .. } => Ok(self.events.part(part, usage, || self.conversation.call_id("toolu_"))),
            ChatEvent::End { finish, .. } => {
                let is_limited = self.max_tokens.is_some_and(|most| usage.output_tokens >= most);
                Ok(self.events.end(finish, usage, is_limited))
            }
        })
    }

    fn usage(&self) -> Usage {
        let info = self.conversation.info();
        let cached = info.cached_tokens().min(info.prompt_tokens);
        Usage {
            input_tokens: info.prompt_tokens - cached,
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens: self.conversation.completion_tokens(),
            output_tokens_details: OutputTokensDetails { thinking_tokens: self.conversation.reasoning_tokens() },
        }
    }

    /// The last event of a stream that fails.
    fn failure(&self, fault: &Fault) -> StreamEvent {
        let request_id = self.context.id.to_str().ok().map(str::to_owned);
        StreamEvent::Error { error: fault.anthropic(), request_id }
    }
}

/// The complete message.
async fn complete(mut answer: Answer) -> Result<Message, Fault> {
    let mut message = Accumulator::default();
    while let Some(events) = answer.next().await {
        events?.into_iter().for_each(|event| message.add(event));
    }
    let stopped = || Fault::new(FaultKind::Unhealthy, "the model was unloaded or stopped before it answered");
    message.finish().ok_or_else(stopped)
}

/// The streamed message.
fn stream(answer: Answer) -> Response {
    let event = |event: StreamEvent| sse::named(event.name(), &event);
    let state = Some((answer, VecDeque::<Event>::new()));
    let events = stream::unfold(state, move |state| async move {
        let (mut answer, mut ready) = state?;
        loop {
            if let Some(next) = ready.pop_front() {
                return Some((next, Some((answer, ready))));
            }
            match answer.next().await? {
                Ok(events) => ready.extend(events.into_iter().map(event)),
                Err(fault) => return Some((event(answer.failure(&fault)), None)),
            }
        }
    });
    sse::answer_pinging(events, event(StreamEvent::Ping))
}
