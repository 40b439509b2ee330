//! Generation parameters that chats and completions share: validated and converted for the engine.

use crate::error::{Fault, FaultKind};
use sconce_api::openai::chat::ChatRequest;
use sconce_api::openai::common::{OneOrMore, ResponseFormat, StreamOptions, StructuredOutputs};
use sconce_api::openai::completions::CompletionRequest;
use sconce_engine::{Format, GenerationParams};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

/// Most stop strings, as at OpenAI.
const MAX_STOP_STRINGS: usize = 4;
/// Most top logprobs, as in OpenAI's chat.
const MAX_TOP_LOGPROBS: u32 = 20;
/// Most answers per request with structured output.
const MAX_STRUCTURED_ANSWERS: usize = 32;

/// The fields that both request types have.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SharedFields<'a> {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    logit_bias: Option<&'a BTreeMap<String, f32>>,
    seed: Option<i64>,
    n: Option<u32>,
    stop: Option<&'a OneOrMore>,
    response_format: Option<&'a ResponseFormat>,
    structured_outputs: Option<&'a StructuredOutputs>,
    stream: bool,
    stream_options: Option<&'a StreamOptions>,
    max_tokens: Option<usize>,
    echo: bool,
    /// Number of top logprobs, and the field that sets it.
    logprobs: Option<u32>,
    logprobs_field: &'static str,
}

macro_rules! fields {
    ($request:ident, $max_tokens:expr, $echo:expr, $logprobs:expr, $field:literal) => {
        SharedFields {
            temperature: $request.temperature,
            top_p: $request.top_p,
            top_k: $request.top_k,
            min_p: $request.min_p,
            repetition_penalty: $request.repetition_penalty,
            presence_penalty: $request.presence_penalty,
            frequency_penalty: $request.frequency_penalty,
            logit_bias: $request.logit_bias.as_ref(),
            seed: $request.seed,
            n: $request.n,
            stop: $request.stop.as_ref(),
            response_format: $request.response_format.as_ref(),
            structured_outputs: $request.structured_outputs.as_ref(),
            stream: $request.stream.unwrap_or(false),
            stream_options: $request.stream_options.as_ref(),
            max_tokens: $max_tokens,
            echo: $echo,
            logprobs: $logprobs,
            logprobs_field: $field,
        }
    };
}

impl<'a> From<&'a ChatRequest> for SharedFields<'a> {
    fn from(request: &'a ChatRequest) -> SharedFields<'a> {
        let logprobs = request.logprobs.unwrap_or(false).then(|| request.top_logprobs.unwrap_or(0));
        fields!(request, request.max_completion_tokens.or(request.max_tokens), false, logprobs, "top_logprobs")
    }
}

impl<'a> From<&'a CompletionRequest> for SharedFields<'a> {
    fn from(request: &'a CompletionRequest) -> SharedFields<'a> {
        fields!(request, request.max_tokens, request.echo.unwrap_or(false), request.logprobs, "logprobs")
    }
}

impl SharedFields<'_> {
    /// Parameters that can be checked without a model: streaming, stop strings and structured
    /// output.
    pub(crate) fn output_params(&self) -> Result<OutputParams, Fault> {
        if self.stream_options.is_some() && !self.stream {
            return Err(Fault::invalid("`stream_options` needs a stream: set `stream` to true").at("stream_options"));
        }
        let stop = self.stop.cloned().map(OneOrMore::into_vec).unwrap_or_default();
        if stop.len() > MAX_STOP_STRINGS {
            let what = format!("`stop` has {} texts; the limit is {MAX_STOP_STRINGS}", stop.len());
            return Err(Fault::invalid(what).at("stop"));
        }
        if stop.iter().any(String::is_empty) {
            return Err(Fault::invalid("`stop` has an empty text, which would end every answer").at("stop"));
        }
        // With `echo` a request for 0 tokens is useful: it returns the logprobs of the prompt.
        if self.max_tokens == Some(0) && !self.echo {
            return Err(Fault::invalid("`max_tokens` is 0; it must be at least one").at("max_tokens"));
        }
        if self.logprobs.is_some_and(|n| n > MAX_TOP_LOGPROBS) {
            let what = format!("`{}` is more than {MAX_TOP_LOGPROBS}, the limit", self.logprobs_field);
            return Err(Fault::invalid(what).at(self.logprobs_field));
        }
        let include_usage = self.stream_options.and_then(|o| o.include_usage).unwrap_or(false);
        let n = self.n.unwrap_or(1) as usize;
        Ok(OutputParams {
            stop,
            format: self.answer_format()?,
            stream: self.stream,
            include_usage,
            max_tokens: self.max_tokens,
            n,
        })
    }

    /// Sampling parameters; absent fields take the model's `defaults`.
    pub(crate) fn params(&self, defaults: &GenerationParams, vocabulary: usize) -> Result<GenerationParams, Fault> {
        let top_k = match self.top_k {
            None => defaults.top_k,
            Some(0 | -1) => None,
            Some(k) => match u32::try_from(k) {
                Ok(k) => Some(k),
                Err(_) => {
                    return Err(Fault::invalid(format!(
                        "`top_k` is {k}; it must be -1 or more (0 and -1 keep all tokens)"
                    ))
                    .at("top_k"));
                }
            },
        };
        let mut logit_bias = BTreeMap::new();
        for (id, bias) in self.logit_bias.into_iter().flatten() {
            let Ok(id) = id.parse::<u32>() else {
                let what = format!("`logit_bias` has the key `{id}`, which is not a token id");
                return Err(Fault::invalid(what).at("logit_bias"));
            };
            logit_bias.insert(id, *bias);
        }
        let mut params = GenerationParams::default();
        params.temperature = self.temperature.unwrap_or(defaults.temperature);
        params.top_k = top_k;
        params.top_p = self.top_p.unwrap_or(defaults.top_p);
        params.min_p = self.min_p.unwrap_or(defaults.min_p);
        params.repetition_penalty = self.repetition_penalty.unwrap_or(defaults.repetition_penalty);
        params.frequency_penalty = self.frequency_penalty.unwrap_or(defaults.frequency_penalty);
        params.presence_penalty = self.presence_penalty.unwrap_or(defaults.presence_penalty);
        params.penalty_window = defaults.penalty_window;
        params.logit_bias = logit_bias;
        // Without a seed, every answer is different.
        params.seed = self.seed.map_or_else(|| RandomState::new().hash_one(0), i64::cast_unsigned);
        params.n = self.n.unwrap_or(1);
        params.logprobs = self.logprobs;
        params.check(vocabulary).map_err(|invalid| {
            let param = if invalid.parameter == "logprobs" { self.logprobs_field } else { invalid.parameter };
            Fault::invalid(invalid.to_string()).at(param)
        })?;
        Ok(params)
    }

    /// Whether the request sets any sampling parameter.
    pub(crate) fn sets_sampling(&self) -> bool {
        self.temperature.is_some()
            || self.top_p.is_some()
            || self.top_k.is_some()
            || self.min_p.is_some()
            || self.repetition_penalty.is_some()
            || self.presence_penalty.is_some()
            || self.frequency_penalty.is_some()
            || self.logit_bias.is_some()
            || self.logprobs.is_some()
            || self.seed.is_some()
            || self.n.is_some_and(|n| n != 1)
    }

    fn answer_format(&self) -> Result<Option<AnswerFormat>, Fault> {
        let format = match self.response_format {
            None | Some(ResponseFormat::Text) => None,
            Some(ResponseFormat::JsonObject { schema }) => {
                Some(AnswerFormat::Json(schema.clone().unwrap_or_else(any_object)))
            }
            Some(ResponseFormat::JsonSchema { json_schema }) => {
                Some(AnswerFormat::Json(json_schema.schema.clone().unwrap_or_else(any_object)))
            }
        };
        let Some(outputs) = self.structured_outputs else { return Ok(format) };
        let mut all: Vec<AnswerFormat> = format.into_iter().collect();
        if let Some(schema) = &outputs.json {
            let read = |text: &String| serde_json::from_str(text).ok();
            let schema = if let Value::String(text) = schema { read(text) } else { Some(schema.clone()) };
            let wrong = || Fault::invalid("`structured_outputs.json` is not valid JSON").at("structured_outputs");
            all.push(AnswerFormat::Json(schema.ok_or_else(wrong)?));
        }
        all.extend(outputs.regex.clone().map(|regex| AnswerFormat::Other(Format::Regex(regex))));
        all.extend(outputs.grammar.clone().map(|grammar| AnswerFormat::Other(Format::Grammar(grammar))));
        if let Some(choice) = &outputs.choice {
            let each: Vec<String> = choice.iter().map(|text| json!(text).to_string()).collect();
            if each.is_empty() || choice.iter().any(String::is_empty) {
                let what = "`structured_outputs.choice` must be a list of texts that are not empty";
                return Err(Fault::invalid(what).at("structured_outputs"));
            }
            all.push(AnswerFormat::Other(Format::Grammar(format!("start: {}", each.join(" | ")))));
        }
        all.extend(outputs.json_object.filter(|on| *on).map(|_| AnswerFormat::Json(any_object())));
        match all.len() {
            0 | 1 => Ok(all.pop()),
            _ => Err(Fault::invalid(
                "an answer can have only one form: set one of `response_format` and the fields of `structured_outputs`",
            )
            .at("structured_outputs")),
        }
    }
}

fn any_object() -> Value {
    json!({"type": "object"})
}

/// Format of a structured output.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AnswerFormat {
    /// JSON that satisfies a schema.
    Json(Value),
    /// A regex or grammar.
    Other(Format),
}

impl From<AnswerFormat> for Format {
    fn from(form: AnswerFormat) -> Format {
        match form {
            AnswerFormat::Json(schema) => Format::JsonSchema(schema),
            AnswerFormat::Other(format) => format,
        }
    }
}

/// Parameters that hold for every model.
#[derive(Clone, Debug)]
pub(crate) struct OutputParams {
    /// Stop strings.
    pub(crate) stop: Vec<String>,
    /// Structured output.
    pub(crate) format: Option<AnswerFormat>,
    /// Stream the answer.
    pub(crate) stream: bool,
    /// Send the usage in a last chunk.
    pub(crate) include_usage: bool,
    /// Most tokens per answer.
    pub(crate) max_tokens: Option<usize>,
    /// Answers per prompt.
    pub(crate) n: usize,
}

impl OutputParams {
    /// Refuses more answers than a request may have. The limit is lower with structured output,
    /// because each answer holds the state of its grammar.
    pub(crate) fn check_answers(&self, prompts: usize, limit: usize) -> Result<(), Fault> {
        let limit = if self.format.is_some() { limit.min(MAX_STRUCTURED_ANSWERS) } else { limit };
        let answers = prompts.saturating_mul(self.n);
        if answers <= limit {
            return Ok(());
        }
        let what =
            format!("{prompts} prompts with {} answers each are {answers} answers; the limit is {limit}", self.n);
        Err(Fault::new(FaultKind::TooMany, what).at("n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(fields: Value) -> ChatRequest {
        let mut whole = json!({"messages": []});
        whole.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    fn fault(fields: Value) -> (String, String) {
        let request = chat(fields);
        let fields = SharedFields::from(&request);
        let fault = match fields.output_params() {
            Err(fault) => fault,
            Ok(_) => fields.params(&GenerationParams::default(), 100).expect_err("a fault"),
        };
        (fault.param.unwrap_or_default(), fault.message)
    }

    #[test]
    fn every_sampling_field_is_applied() {
        let request = chat(
            json!({"temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "repetition_penalty": 1.5,
            "presence_penalty": 1, "frequency_penalty": -1, "logit_bias": {"5": -100}, "seed": -2, "n": 3, "logprobs": true,
            "top_logprobs": 2, "stop": "x", "max_tokens": 5, "max_completion_tokens": 6}),
        );
        let fields = SharedFields::from(&request);
        let params = fields.params(&GenerationParams::default().with_penalty_window(Some(9)), 100).unwrap();
        let wanted = GenerationParams::default()
            .with_temperature(0.5)
            .with_top_k(Some(7))
            .with_top_p(0.25)
            .with_min_p(0.125)
            .with_repetition_penalty(1.5)
            .with_frequency_penalty(-1.0)
            .with_presence_penalty(1.0)
            .with_penalty_window(Some(9))
            .with_logit_bias([(5, -100.0)].into())
            .with_seed(u64::MAX - 1)
            .with_n(3)
            .with_logprobs(Some(2));
        assert_eq!(params, wanted);
        let output = fields.output_params().unwrap();
        assert_eq!((output.stop, output.max_tokens), (vec!["x".to_owned()], Some(6)));
        assert!(fields.sets_sampling() && !SharedFields::from(&chat(json!({"stop": "x", "n": 1}))).sets_sampling());
    }

    #[test]
    fn unset_fields_use_model_defaults_and_a_random_seed() {
        let defaults = GenerationParams::default().with_temperature(0.7).with_top_k(Some(40));
        let request = chat(json!({}));
        let fields = SharedFields::from(&request);
        let [a, b] = [(), ()].map(|()| fields.params(&defaults, 100).unwrap());
        assert_ne!(a.seed, b.seed);
        assert_eq!(a.with_seed(0), defaults.clone().with_seed(0));
        let all = chat(json!({"top_k": -1}));
        assert_eq!(SharedFields::from(&all).params(&defaults, 100).unwrap().top_k, None);
    }

    #[test]
    fn invalid_fields_are_named_in_errors() {
        let faults = [
            (json!({"stop": ["a", "b", "c", "d", "e"]}), "stop", "5 texts"),
            (json!({"stop": ""}), "stop", "empty"),
            (json!({"stream_options": {"include_usage": true}}), "stream_options", "set `stream`"),
            (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs", "more than 20"),
            (json!({"max_tokens": 0}), "max_tokens", "at least one"),
            (json!({"top_k": -5}), "top_k", "-5"),
            (json!({"logit_bias": {"x": 1}}), "logit_bias", "`x`"),
            (json!({"logit_bias": {"100": 1}}), "logit_bias", "100"),
            (json!({"temperature": -1}), "temperature", "-1"),
            (json!({"n": 0}), "n", "between 1 and 128"),
            (json!({"presence_penalty": 3}), "presence_penalty", "3"),
            (json!({"structured_outputs": {"regex": "a", "grammar": "b"}}), "structured_outputs", "one form"),
            (json!({"structured_outputs": {"choice": []}}), "structured_outputs", "not empty"),
        ];
        for (fields, param, why) in faults {
            let (field, message) = fault(fields.clone());
            assert_eq!(field, param, "{fields}");
            assert!(message.contains(why), "{message}");
        }
    }

    #[test]
    fn response_formats_are_parsed() {
        let format_of = |fields| SharedFields::from(&chat(fields)).output_params().unwrap().format;
        assert_eq!(format_of(json!({"response_format": {"type": "text"}})), None);
        assert_eq!(
            format_of(json!({"response_format": {"type": "json_object"}})),
            Some(AnswerFormat::Json(json!({"type": "object"})))
        );
        let schema = json!({"type": "integer"});
        let with_schema = json!({"response_format": {"type": "json_object", "schema": schema}});
        assert_eq!(format_of(with_schema), Some(AnswerFormat::Json(schema.clone())));
        let named = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
        assert_eq!(format_of(named), Some(AnswerFormat::Json(schema.clone())));
        assert_eq!(
            format_of(json!({"structured_outputs": {"json": schema.to_string()}})),
            Some(AnswerFormat::Json(schema))
        );
        let choice = format_of(json!({"structured_outputs": {"choice": ["a", "\"b\""]}}));
        assert_eq!(choice, Some(AnswerFormat::Other(Format::Grammar("start: \"a\" | \"\\\"b\\\"\"".into()))));
    }
}
