//! Chat with a language model, whatever the dialect: a [`ChatRequest`], which is the superset of
//! all dialects, becomes a [`Conversation`], whose events a dialect writes in its own format.
//!
//! A dialect translates its request into a `ChatRequest`, calls [`begin`], and reads events until
//! `None`. Faults name fields of `ChatRequest`. `/v1/completions` has no messages; it uses the
//! parts that the two share: parameters, the stream of answers, and sequence-to-sequence models.

mod answer_stream;
mod events;
mod latency;
mod messages;
mod params;
mod prompt;
mod reasoning;
mod seq2seq;
mod tool_choice;

pub(crate) use answer_stream::{
    AnswerEvent, AnswerInfo, AnswerStream, Generation, TokenChoice, TokenText, begin as begin_answers,
};
pub(crate) use events::{ChatEvent, ChatFinish, Conversation};
pub(crate) use params::{OutputParams, SharedFields};
pub(crate) use seq2seq::Seq2SeqRequest;

use crate::app::App;
use crate::call::Usage;
use crate::error::{Fault, FaultKind};
use crate::http_context::HttpContext;
use crate::served_model::{RequestKind, ServedModel};
use events::Parsing;
use sconce_api::openai::chat::ChatRequest;
use sconce_engine::{Llm, Loaded, Request, Start, TaskModel};
use std::sync::Arc;
use tool_choice::Choice;

/// Starts the answers to a chat request. `route` is the name of the path in the metrics.
pub(crate) async fn begin(
    app: &Arc<App>,
    context: &Arc<HttpContext>,
    route: &'static str,
    request: ChatRequest,
) -> Result<Conversation, Fault> {
    check(&request, context)?;
    let output = SharedFields::from(&request).output_params()?;
    output.check_answers(1, app.config.max_client_batch)?;
    let call = app.call(route, context, request.model.as_deref(), RequestKind::Generate)?;
    let noted = context.clone();
    let (answers, parsing) = begin_answers((app, context), call, move |served| {
        let llm = chat_model(served)?;
        let params = SharedFields::from(&request).params(llm.params(), llm.plan().vocabulary)?;
        let prompt = prompt::prompt(llm, &request, output.format, &noted)?;
        let parsing = Parsing::of(&prompt);
        let request = Request {
            start: Start::Rendered(prompt.text),
            params: Some(params),
            max_tokens: output.max_tokens,
            stop: output.stop,
            echo: false,
            ignore_end: request.ignore_eos.unwrap_or(false),
            format: prompt.format,
            thoughts: prompt.thoughts,
        };
        Ok((Generation::Decode { requests: vec![request], marks: prompt.marks }, parsing))
    })
    .await?;
    Ok(Conversation::new(answers, &parsing))
}

/// The tokens of a chat request's prompt. The model does not run.
#[allow(dead_code, reason = "for dialects that count tokens")]
pub(crate) async fn count_tokens(
    app: &Arc<App>,
    context: &Arc<HttpContext>,
    route: &'static str,
    request: ChatRequest,
) -> Result<usize, Fault> {
    check(&request, context)?;
    let call = app.call(route, context, request.model.as_deref(), RequestKind::Generate)?;
    let noted = context.clone();
    let counted = call.run(move |served, _| {
        let llm = chat_model(served)?;
        let prompt = prompt::prompt(llm, &request, None, &noted)?;
        let characters = prompt.text.chars().count();
        Ok(Usage { tokens: llm.encode(&Start::Rendered(prompt.text))?.len(), characters })
    });
    let usage = counted.await?;
    call.done(usage);
    Ok(usage.tokens)
}

fn chat_model(served: &ServedModel) -> Result<&Llm, Fault> {
    match &served.model {
        TaskModel::Generate(llm) => Ok(llm),
        _ => {
            let what = format!("the model `{}` does not support chat; use /v1/completions", served.id);
            Err(Fault::new(FaultKind::UnsupportedTask, what).at("model"))
        }
    }
}

/// Refuses unsupported fields, and records those without effect.
fn check(request: &ChatRequest, context: &HttpContext) -> Result<(), Fault> {
    for (field, is_set, instead) in [
        ("functions", request.functions.is_some(), "`tools`"),
        ("function_call", request.function_call.is_some(), "`tool_choice`"),
    ] {
        if is_set {
            return Err(Fault::invalid(format!("`{field}` is not supported; use {instead}")).at(field));
        }
    }
    if request.modalities.iter().flatten().any(|m| m != "text") {
        return Err(Fault::invalid("answers are text only: `modalities` must be [\"text\"]").at("modalities"));
    }
    if request.top_logprobs.is_some_and(|n| n > 0) && !request.logprobs.unwrap_or(false) {
        return Err(Fault::invalid("`top_logprobs` needs `logprobs` to be true").at("top_logprobs"));
    }
    if let Choice::Auto(tools) = Choice::of(request)? {
        // Without `tool_choice: required` no grammar enforces the schema.
        for (i, _) in tools.iter().enumerate().filter(|(_, tool)| tool.function.strict == Some(true)) {
            context.note_ignored(&format!("tools[{i}].function.strict"));
        }
    }
    if request.stream_options.as_ref().and_then(|o| o.include_obfuscation) == Some(true) {
        context.note_ignored("stream_options.include_obfuscation");
    }
    Ok(())
}
