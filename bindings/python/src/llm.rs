//! Language models.

use crate::call::{call, detached, parse};
use crate::model::{Model, wrong_task};
use crate::stream::Stream;
use pyo3::prelude::*;
use sconce_engine::{
    Answer, ChatOptions, Format, GenerationParams, Llm, Loaded, Message, Request, Result, SampledToken,
};
use sconce_engine::{Start, TaskModel};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Sampling parameters that replace those of the model's files.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Sampling {
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    logit_bias: Option<BTreeMap<u32, f32>>,
    seed: Option<u64>,
    n: Option<u32>,
    logprobs: Option<u32>,
}

impl Sampling {
    pub(crate) fn apply(self, mut params: GenerationParams) -> GenerationParams {
        let set = |field: &mut f32, value: Option<f32>| *field = value.unwrap_or(*field);
        set(&mut params.temperature, self.temperature);
        set(&mut params.top_p, self.top_p);
        set(&mut params.min_p, self.min_p);
        set(&mut params.repetition_penalty, self.repetition_penalty);
        set(&mut params.frequency_penalty, self.frequency_penalty);
        set(&mut params.presence_penalty, self.presence_penalty);
        params.top_k = self.top_k.or(params.top_k);
        params.logit_bias = self.logit_bias.unwrap_or(params.logit_bias);
        params.seed = self.seed.unwrap_or(params.seed);
        params.n = self.n.unwrap_or(params.n);
        params.logprobs = self.logprobs.or(params.logprobs);
        params
    }
}

/// A request, a JSON object: one of `prompt`, `tokens` and `messages`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Generate {
    prompt: Option<String>,
    tokens: Option<Vec<u32>>,
    messages: Option<Vec<Message>>,
    tools: Option<Value>,
    #[serde(default)]
    template_options: Map<String, Value>,
    #[serde(default)]
    sampling: Sampling,
    max_tokens: Option<usize>,
    #[serde(default)]
    stop: Vec<String>,
    #[serde(default)]
    ignore_end: bool,
    json_object: Option<bool>,
    schema: Option<Value>,
    regex: Option<String>,
    grammar: Option<String>,
}

impl Generate {
    fn format(&self) -> Option<Format> {
        let object = self.json_object.filter(|is_wanted| *is_wanted).map(|_| Format::JsonObject);
        let schema = self.schema.clone().map(Format::JsonSchema);
        let regex = self.regex.clone().map(Format::Regex);
        schema.or(regex).or(self.grammar.clone().map(Format::grammar)).or(object)
    }

    fn request(self, llm: &Llm) -> Result<Request> {
        let format = self.format();
        let options = ChatOptions::default().with_tools(self.tools).with_extra(self.template_options);
        let start = match (self.messages, self.tokens) {
            (Some(messages), _) => Start::Rendered(llm.render(&messages, &options)?),
            (None, Some(tokens)) => Start::Tokens(tokens),
            (None, None) => Start::Text(self.prompt.unwrap_or_default()),
        };
        Ok(Request {
            start,
            params: Some(self.sampling.apply(llm.params().clone())),
            max_tokens: self.max_tokens,
            stop: self.stop,
            ignore_end: self.ignore_end,
            format,
            ..Request::default()
        })
    }
}

fn llm(model: &TaskModel) -> Result<&Llm> {
    match model {
        TaskModel::Generate(llm) => Ok(llm),
        _ => Err(wrong_task("generate")),
    }
}

/// Names and arguments of functions.
type ToolCalls = Vec<(String, String)>;

/// Starts a generation.
#[pyfunction]
pub(crate) fn generate(py: Python<'_>, model: &Bound<'_, Model>, request: String) -> PyResult<Stream> {
    let model = model.get().get(py)?;
    // Dropping the stream cancels the request, so no context is needed.
    let events = call(py, move |_| {
        let llm = llm(&model)?.with_context(&Default::default());
        llm.stream(&parse::<Generate>(&request)?.request(&llm)?)
    })?;
    Ok(Stream::new(events))
}

/// The prompt that the chat template makes of the messages of a request.
#[pyfunction]
pub(crate) fn render_chat(py: Python<'_>, model: &Bound<'_, Model>, request: String) -> PyResult<String> {
    let model = model.get().get(py)?;
    call(py, move |_| match parse::<Generate>(&request)?.request(llm(&model)?)?.start {
        Start::Rendered(text) | Start::Text(text) => Ok(text),
        Start::Tokens(tokens) => llm(&model)?.decode(&tokens),
    })
}

/// The text of an answer without its calls of these functions, and the calls: names and arguments.
#[pyfunction]
pub(crate) fn parse_tool_calls(
    py: Python<'_>,
    model: &Bound<'_, Model>,
    text: String,
    ids: Vec<u32>,
    functions: Vec<String>,
) -> PyResult<(String, ToolCalls)> {
    let model = model.get().get(py)?;
    let sampled = ids.into_iter().map(|id| SampledToken { id, logprobs: None }).collect();
    let answer = Answer { text, sampled, ..Answer::default() };
    detached(py, || {
        let functions: Vec<&str> = functions.iter().map(String::as_str).collect();
        let (text, calls) = llm(&model)?.parse_tool_calls(&answer, &functions);
        Ok((text, calls.into_iter().map(|call| (call.name, call.arguments)).collect()))
    })
}
