//! `Sconce::Native::Llm` and the stream of an answer.

use crate::convert::{Text, json, model, numbers, texts};
use crate::error::{argument, failure};
use crate::guard::{function, method};
use crate::gvl::{self, Inbox};
use crate::handle::Handle;
use magnus::{Class, Error, Module, Object, RArray, RModule, Ruby};
use sconce_engine::{
    Answer, ChatOptions, Event, Format, GenerationParams, Llm, Message, Request, RequestContext, SampledToken, Start,
};
use serde_json::Value;
use std::sync::Arc;

#[magnus::wrap(class = "Sconce::Native::Llm", free_immediately)]
struct NativeLlm(Handle<Llm>);

/// An answer while it is generated. Dropping it cancels the request.
#[magnus::wrap(class = "Sconce::Native::Stream", free_immediately)]
struct NativeStream {
    events: Arc<Inbox<Result<Event, String>>>,
    context: RequestContext,
    /// The process whose threads generate the answer.
    process: u32,
}

impl Drop for NativeStream {
    fn drop(&mut self) {
        self.context.cancel();
    }
}

/// Closes the inbox when the engine drops the sink.
struct Closing(Arc<Inbox<Result<Event, String>>>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn load(ruby: &Ruby, name: Text, device: Text) -> Result<NativeLlm, Error> {
    let (reference, options) = model(ruby, &name, &device)?;
    let load = move || Llm::load(&reference, &options, &());
    gvl::run(ruby, &RequestContext::default(), load).map(|model| NativeLlm(Handle::new(model)))
}

/// Starts an answer. `rendered`: the prompt comes from a chat template, so its control tokens are
/// parsed. `options` is JSON, see [`request`].
fn start(ruby: &Ruby, this: &NativeLlm, prompt: Text, rendered: bool, options: Text) -> Result<NativeStream, Error> {
    let model = this.0.get(ruby)?;
    let options = json(ruby, &options)?;
    let context = RequestContext::default();
    let events = Inbox::new();
    let (sender, of_request) = (Closing(events.clone()), context.clone());
    gvl::run(ruby, &context, move || {
        let start = if rendered { Start::Rendered(prompt.0) } else { Start::Text(prompt.0) };
        let room = model.context().saturating_sub(model.encode(&start)?.len()).max(1);
        let request = request(start, &options, room);
        let sink = move |event: sconce_engine::Result<Event>| sender.0.push(event.map_err(|e| e.to_string()));
        model.start(&request, &of_request, sink)
    })?;
    Ok(NativeStream { events, context, process: std::process::id() })
}

/// A request of these options. An answer of more tokens than fit ends where the context ends.
fn request(start: Start, options: &Value, room: usize) -> Request {
    let number = |key: &str| options[key].as_f64().map(|n| n as f32);
    let usual = GenerationParams::default();
    let top_k = options["top_k"].as_u64().and_then(|k| u32::try_from(k).ok());
    let window = options["penalty_window"].as_u64().map(|n| n as usize);
    let params = GenerationParams::default()
        .with_temperature(number("temperature").unwrap_or(usual.temperature))
        .with_top_p(number("top_p").unwrap_or(usual.top_p))
        .with_top_k(top_k)
        .with_repetition_penalty(number("repetition_penalty").unwrap_or(usual.repetition_penalty))
        .with_penalty_window(window)
        .with_seed(options["seed"].as_u64().unwrap_or_default());
    let format = match (&options["schema"], &options["regex"]) {
        (Value::Null, Value::String(pattern)) => Some(Format::Regex(pattern.clone())),
        (Value::Null, _) => None,
        (schema, _) => Some(Format::JsonSchema(schema.clone())),
    };
    let stop = options["stop"].as_array().into_iter().flatten().filter_map(|s| s.as_str().map(str::to_owned));
    Request {
        start,
        params: Some(params),
        max_tokens: options["max_tokens"].as_u64().map(|n| (n as usize).min(room)),
        stop: stop.collect(),
        echo: options["echo"] == true,
        ignore_end: false,
        format,
        thoughts: None,
    }
}

/// The next text with its token ids; nil at the end.
fn next(ruby: &Ruby, this: &NativeStream) -> Result<Option<(String, Vec<u32>)>, Error> {
    if this.process != std::process::id() {
        return Err(failure(
            ruby,
            "this answer was begun before a fork and is generated in the parent only: load the model again and ask it",
        ));
    }
    loop {
        let event = this.events.next().inspect_err(|_| this.context.cancel())?;
        match event {
            None => return Ok(None),
            Some(Err(why)) => return Err(failure(ruby, why)),
            Some(Ok(Event::Text { text, sampled, .. })) => {
                return Ok(Some((text, sampled.into_iter().map(|token| token.id).collect())));
            }
            Some(Ok(Event::Begun { .. } | Event::End { .. })) => {}
        }
    }
}

fn cancel(_: &Ruby, this: &NativeStream) -> Result<(), Error> {
    this.context.cancel();
    Ok(())
}

/// The prompt that the chat template makes of messages and tools, both in JSON.
fn render(ruby: &Ruby, this: &NativeLlm, messages: Text, tools: Option<Text>) -> Result<String, Error> {
    let messages: Vec<Message> =
        serde_json::from_str(&messages).map_err(|e| argument(ruby, format!("messages: {e}")))?;
    let tools = tools.map(|tools| json(ruby, &tools)).transpose()?;
    let options = ChatOptions::default().with_tools(tools);
    let model = this.0.get(ruby)?;
    gvl::run(ruby, &RequestContext::default(), move || model.render(&messages, &options))
}

/// The text of an answer, and the name and the arguments of each call in it.
type ToolCalls = (String, Vec<(String, String)>);

/// The text of an answer without its calls, and `[name, arguments]` of each call of these
/// functions.
fn parse_tool_calls(ruby: &Ruby, this: &NativeLlm, text: Text, ids: RArray, names: RArray) -> Result<ToolCalls, Error> {
    let sampled = numbers::<u32>(ids)?.into_iter().map(|id| SampledToken { id, logprobs: None }).collect();
    let (model, names) = (this.0.get(ruby)?, texts(ruby, names)?);
    let answer = Answer { text: text.0, sampled, ..Answer::default() };
    gvl::run(ruby, &RequestContext::default(), move || {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (text, calls) = model.parse_tool_calls(&answer, &names);
        Ok::<_, String>((text, calls.into_iter().map(|call| (call.name, call.arguments)).collect()))
    })
}

/// The tokens that end an answer.
fn end_tokens(ruby: &Ruby, this: &NativeLlm) -> Result<Vec<String>, Error> {
    let model = this.0.get(ruby)?;
    model
        .end_tokens()
        .map(|id| model.token(id).map(|token| token.text))
        .collect::<Result<_, _>>()
        .map_err(|e| failure(ruby, e))
}

fn context(ruby: &Ruby, this: &NativeLlm) -> Result<usize, Error> {
    Ok(this.0.get(ruby)?.context())
}

fn close(ruby: &Ruby, this: &NativeLlm) -> Result<(), Error> {
    this.0.close(ruby)
}

pub(crate) fn define(ruby: &Ruby, native: RModule) -> Result<(), Error> {
    let class = native.define_class("Llm", ruby.class_object())?;
    class.undef_default_alloc_func();
    class.define_singleton_method("load", function!(load, 2))?;
    class.define_method("start", method!(start, 3))?;
    class.define_method("render", method!(render, 2))?;
    class.define_method("parse_tool_calls", method!(parse_tool_calls, 3))?;
    class.define_method("end_tokens", method!(end_tokens, 0))?;
    class.define_method("context", method!(context, 0))?;
    class.define_method("close", method!(close, 0))?;
    let stream = native.define_class("Stream", ruby.class_object())?;
    stream.undef_default_alloc_func();
    stream.define_method("next", method!(next, 0))?;
    stream.define_method("cancel", method!(cancel, 0))
}
