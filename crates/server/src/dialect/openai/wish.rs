//! How texts are to be written: what chats and completions ask alike, checked, as the engine takes it.

use crate::error::{Fault, FaultKind};
use sconce_api::openai::chat::ChatRequest;
use sconce_api::openai::common::{OneOrMore, ResponseFormat, StreamOptions, StructuredOutputs};
use sconce_api::openai::completions::CompletionRequest;
use sconce_engine::{Format, GenerationParams};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

/// As many as OpenAI takes.
const MOST_STOPS: usize = 4;
/// As many as OpenAI names in a chat.
const MOST_LOGPROBS: u32 = 20;
/// Answers that must have a form, in one request.
const MOST_FORMED: usize = 32;

/// The fields that both requests have.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Knobs<'a> {
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
    /// How many of the likeliest tokens to name, and the field that says so.
    logprobs: Option<u32>,
    logprobs_field: &'static str,
}

macro_rules! knobs {
    ($request:ident, $max_tokens:expr, $echo:expr, $logprobs:expr, $field:literal) => {
        Knobs {
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

impl<'a> From<&'a ChatRequest> for Knobs<'a> {
    fn from(request: &'a ChatRequest) -> Knobs<'a> {
        let logprobs = request.logprobs.unwrap_or(false).then(|| request.top_logprobs.unwrap_or(0));
        knobs!(request, request.max_completion_tokens.or(request.max_tokens), false, logprobs, "top_logprobs")
    }
}

impl<'a> From<&'a CompletionRequest> for Knobs<'a> {
    fn from(request: &'a CompletionRequest) -> Knobs<'a> {
        knobs!(request, request.max_tokens, request.echo.unwrap_or(false), request.logprobs, "logprobs")
    }
}

impl Knobs<'_> {
    /// What can be said without a model: how a stream is told, texts that end an answer, and the form that it must have.
    pub(super) fn wish(&self) -> Result<Wish, Fault> {
        if self.stream_options.is_some() && !self.stream {
            return Err(Fault::invalid("`stream_options` are for streams: set `stream` to true").at("stream_options"));
        }
        let stop = self.stop.cloned().map(OneOrMore::into_vec).unwrap_or_default();
        if stop.len() > MOST_STOPS {
            let what = format!("`stop` has {} texts; {MOST_STOPS} are the most", stop.len());
            return Err(Fault::invalid(what).at("stop"));
        }
        if stop.iter().any(String::is_empty) {
            return Err(Fault::invalid("`stop` has an empty text, which would end every answer").at("stop"));
        }
        // With the prompt to be shown, and how likely it is, there is something to tell without writing.
        if self.max_tokens == Some(0) && !self.echo {
            return Err(Fault::invalid("`max_tokens` is 0; at least one token is written").at("max_tokens"));
        }
        if self.logprobs.is_some_and(|n| n > MOST_LOGPROBS) {
            let what = format!("`{}` is more than {MOST_LOGPROBS}", self.logprobs_field);
            return Err(Fault::invalid(what).at(self.logprobs_field));
        }
        let include_usage = self.stream_options.and_then(|o| o.include_usage).unwrap_or(false);
        let n = self.n.unwrap_or(1) as usize;
        Ok(Wish { stop, form: self.form()?, stream: self.stream, include_usage, max_tokens: self.max_tokens, n })
    }

    /// How tokens are chosen, where nothing is said as `own` has it, by a model of so many tokens.
    pub(super) fn params(&self, own: &GenerationParams, vocabulary: usize) -> Result<GenerationParams, Fault> {
        let top_k = match self.top_k {
            None => own.top_k,
            Some(0 | -1) => None,
            Some(k) => match u32::try_from(k) {
                Ok(k) => Some(k),
                Err(_) => return Err(Fault::invalid(format!("`top_k` is {k}; 0 and -1 keep all tokens")).at("top_k")),
            },
        };
        let mut logit_bias = BTreeMap::new();
        for (id, bias) in self.logit_bias.into_iter().flatten() {
            let Ok(id) = id.parse::<u32>() else {
                let what = format!("`logit_bias` names `{id}`, which is no token's id");
                return Err(Fault::invalid(what).at("logit_bias"));
            };
            logit_bias.insert(id, *bias);
        }
        let params = GenerationParams {
            temperature: self.temperature.unwrap_or(own.temperature),
            top_k,
            top_p: self.top_p.unwrap_or(own.top_p),
            min_p: self.min_p.unwrap_or(own.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(own.repetition_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(own.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(own.presence_penalty),
            penalty_window: own.penalty_window,
            logit_bias,
            // Who names no seed wants another answer each time.
            seed: self.seed.map_or_else(|| RandomState::new().hash_one(0), i64::cast_unsigned),
            n: self.n.unwrap_or(1),
            logprobs: self.logprobs,
        };
        params.check(vocabulary).map_err(|invalid| {
            let param = if invalid.parameter == "logprobs" { self.logprobs_field } else { invalid.parameter };
            Fault::invalid(invalid.to_string()).at(param)
        })?;
        Ok(params)
    }

    /// Whether anything is said of how tokens are chosen.
    pub(super) fn chooses(&self) -> bool {
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

    fn form(&self) -> Result<Option<Form>, Fault> {
        let format = match self.response_format {
            None | Some(ResponseFormat::Text) => None,
            Some(ResponseFormat::JsonObject { schema }) => Some(Form::Json(schema.clone().unwrap_or_else(any_object))),
            Some(ResponseFormat::JsonSchema { json_schema }) => {
                Some(Form::Json(json_schema.schema.clone().unwrap_or_else(any_object)))
            }
        };
        let Some(outputs) = self.structured_outputs else { return Ok(format) };
        let mut all: Vec<Form> = format.into_iter().collect();
        if let Some(schema) = &outputs.json {
            let read = |text: &String| serde_json::from_str(text).ok();
            let schema = if let Value::String(text) = schema { read(text) } else { Some(schema.clone()) };
            let wrong = || Fault::invalid("`structured_outputs.json` is no JSON").at("structured_outputs");
            all.push(Form::Json(schema.ok_or_else(wrong)?));
        }
        all.extend(outputs.regex.clone().map(|regex| Form::Other(Format::Regex(regex))));
        all.extend(outputs.grammar.clone().map(|grammar| Form::Other(Format::Grammar(grammar))));
        if let Some(choice) = &outputs.choice {
            let each: Vec<String> = choice.iter().map(|text| json!(text).to_string()).collect();
            if each.is_empty() || choice.iter().any(String::is_empty) {
                let what = "`structured_outputs.choice` is a list of texts that are not empty";
                return Err(Fault::invalid(what).at("structured_outputs"));
            }
            all.push(Form::Other(Format::Grammar(format!("start: {}", each.join(" | ")))));
        }
        all.extend(outputs.json_object.filter(|on| *on).map(|_| Form::Json(any_object())));
        match all.len() {
            0 | 1 => Ok(all.pop()),
            _ => Err(Fault::invalid("an answer can have one form: one of `response_format` and `structured_outputs`")
                .at("structured_outputs")),
        }
    }
}

fn any_object() -> Value {
    json!({"type": "object"})
}

/// The form that an answer must have.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Form {
    /// JSON that satisfies a schema.
    Json(Value),
    /// Something else.
    Other(Format),
}

impl From<Form> for Format {
    fn from(form: Form) -> Format {
        match form {
            Form::Json(schema) => Format::JsonSchema(schema),
            Form::Other(format) => format,
        }
    }
}

/// What is asked of every model alike.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    /// Texts that end an answer.
    pub(super) stop: Vec<String>,
    /// What an answer must be.
    pub(super) form: Option<Form>,
    /// Whether it comes piece by piece.
    pub(super) stream: bool,
    /// Whether a last chunk tells what it took.
    pub(super) include_usage: bool,
    /// The most tokens of an answer.
    pub(super) max_tokens: Option<usize>,
    /// Answers to each prompt.
    pub(super) n: usize,
}

impl Wish {
    /// Refuses more answers than a request may have. Those of a form are fewer: each keeps a grammar's state.
    pub(super) fn check_answers(&self, prompts: usize, most: usize) -> Result<(), Fault> {
        let most = if self.form.is_some() { most.min(MOST_FORMED) } else { most };
        let answers = prompts.saturating_mul(self.n);
        if answers <= most {
            return Ok(());
        }
        let what = format!("{prompts} prompts with {} answers each come to {answers}; {most} are the most", self.n);
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
        let knobs = Knobs::from(&request);
        let fault = match knobs.wish() {
            Err(fault) => fault,
            Ok(_) => knobs.params(&GenerationParams::default(), 100).expect_err("a fault"),
        };
        (fault.param.unwrap_or_default(), fault.message)
    }

    #[test]
    fn every_knob_turns_something() {
        let request = chat(
            json!({"temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "repetition_penalty": 1.5,
            "presence_penalty": 1, "frequency_penalty": -1, "logit_bias": {"5": -100}, "seed": -2, "n": 3, "logprobs": true,
            "top_logprobs": 2, "stop": "x", "max_tokens": 5, "max_completion_tokens": 6}),
        );
        let knobs = Knobs::from(&request);
        let params =
            knobs.params(&GenerationParams { penalty_window: Some(9), ..GenerationParams::default() }, 100).unwrap();
        let wanted = GenerationParams {
            temperature: 0.5,
            top_k: Some(7),
            top_p: 0.25,
            min_p: 0.125,
            repetition_penalty: 1.5,
            frequency_penalty: -1.0,
            presence_penalty: 1.0,
            penalty_window: Some(9),
            logit_bias: [(5, -100.0)].into(),
            seed: u64::MAX - 1,
            n: 3,
            logprobs: Some(2),
        };
        assert_eq!(params, wanted);
        let wish = knobs.wish().unwrap();
        assert_eq!((wish.stop, wish.max_tokens), (vec!["x".to_owned()], Some(6)));
        assert!(knobs.chooses() && !Knobs::from(&chat(json!({"stop": "x", "n": 1}))).chooses());
    }

    #[test]
    fn where_nothing_is_said_the_model_has_its_way_but_for_the_seed() {
        let own = GenerationParams { temperature: 0.7, top_k: Some(40), ..GenerationParams::default() };
        let request = chat(json!({}));
        let knobs = Knobs::from(&request);
        let [a, b] = [(), ()].map(|()| knobs.params(&own, 100).unwrap());
        assert_ne!(a.seed, b.seed);
        assert_eq!(GenerationParams { seed: 0, ..a }, GenerationParams { seed: 0, ..own.clone() });
        let all = chat(json!({"top_k": -1}));
        assert_eq!(Knobs::from(&all).params(&own, 100).unwrap().top_k, None);
    }

    #[test]
    fn what_cannot_be_honoured_is_named() {
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
            let (at, said) = fault(fields.clone());
            assert_eq!(at, param, "{fields}");
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn forms() {
        let form = |fields| Knobs::from(&chat(fields)).wish().unwrap().form;
        assert_eq!(form(json!({"response_format": {"type": "text"}})), None);
        assert_eq!(
            form(json!({"response_format": {"type": "json_object"}})),
            Some(Form::Json(json!({"type": "object"})))
        );
        let schema = json!({"type": "integer"});
        let told = json!({"response_format": {"type": "json_object", "schema": schema}});
        assert_eq!(form(told), Some(Form::Json(schema.clone())));
        let named = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
        assert_eq!(form(named), Some(Form::Json(schema.clone())));
        assert_eq!(form(json!({"structured_outputs": {"json": schema.to_string()}})), Some(Form::Json(schema)));
        let choice = form(json!({"structured_outputs": {"choice": ["a", "\"b\""]}}));
        assert_eq!(choice, Some(Form::Other(Format::Grammar("start: \"a\" | \"\\\"b\\\"\"".into()))));
    }
}
