//! The request of `/execute`. Validation reports all invalid fields at once.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Longest prompt, in characters.
const MAX_PROMPT_CHARACTERS: usize = 32_768;
/// Most tokens per answer.
pub const MOST_TOKENS: u64 = 2_048;
/// Most stop strings.
pub const MOST_STOPS: usize = 4;
/// Longest job id or model name, in characters.
const MAX_NAME_CHARACTERS: usize = 256;

/// A job: a prompt and its parameters. Absent parameters take the model's defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Execute {
    /// Id of the job, for `/cancel`.
    pub job_id: String,
    /// Name of the model; a router of several workers chooses by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The prompt, 1 to 32,768 characters.
    pub prompt: String,
    /// Most new tokens, 1 to 2,048.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Sampling temperature, 0 to 2; 0 takes the most likely token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Nucleus sampling, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// Sample from the `top_k` most likely tokens; 0 means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// Minimum probability relative to the most likely token, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// Repetition penalty, above 0, up to 2; 1 does nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
    /// Up to 4 stop strings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Seed of the random numbers for sampling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// An invalid field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Violation {
    /// Name of the field.
    pub field: String,
    /// Violated constraint: `required`, `type`, `range`, `length`, `syntax`.
    pub constraint: String,
    /// What the field must be.
    pub message: String,
    /// The value, if it is short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
}

const FIELDS: [&str; 11] = [
    "job_id",
    "model",
    "prompt",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "stop",
    "seed",
];

impl Execute {
    /// Parses and validates a body. Returns the request and the names of unknown fields, or all
    /// violations.
    pub fn read(body: &[u8]) -> Result<(Execute, Vec<String>), Vec<Violation>> {
        let body_violation = |constraint: &str, message: String| {
            vec![Violation { field: "body".into(), constraint: constraint.into(), message, value: None }]
        };
        let value: Value =
            serde_json::from_slice(body).map_err(|e| body_violation("syntax", format!("not JSON: {e}")))?;
        let Value::Object(object) = value else { return Err(body_violation("type", "must be a JSON object".into())) };
        let ignored = object.keys().filter(|k| !FIELDS.contains(&k.as_str())).cloned().collect();
        let mut fields = Fields { object, violations: Vec::new() };
        let execute = Execute {
            job_id: fields.required("job_id", MAX_NAME_CHARACTERS),
            model: fields.text("model", MAX_NAME_CHARACTERS),
            prompt: fields.required("prompt", MAX_PROMPT_CHARACTERS),
            max_tokens: fields.integer("max_tokens", 1, MOST_TOKENS),
            temperature: fields.number("temperature", Range::Closed(2.0)),
            top_p: fields.number("top_p", Range::Closed(1.0)),
            top_k: fields.integer("top_k", 0, u64::from(u32::MAX)).map(|k| k as u32),
            min_p: fields.number("min_p", Range::Closed(1.0)),
            repetition_penalty: fields.number("repetition_penalty", Range::Above(2.0)),
            stop: fields.texts("stop"),
            seed: fields.integer("seed", 0, u64::MAX),
        };
        if fields.violations.is_empty() { Ok((execute, ignored)) } else { Err(fields.violations) }
    }
}

/// Allowed range of a number; all begin at 0.
enum Range {
    /// From 0 to this, inclusive.
    Closed(f64),
    /// Above 0, up to this, inclusive.
    Above(f64),
}

struct Fields {
    object: Map<String, Value>,
    violations: Vec<Violation>,
}

impl Fields {
    /// Takes a field; `null` counts as absent.
    fn take(&mut self, field: &str) -> Option<Value> {
        self.object.remove(field).filter(|v| !v.is_null())
    }

    fn violate(&mut self, field: &str, constraint: &str, message: String, value: Option<Value>) {
        let short = |v: &Value| match v {
            Value::String(s) => s.len() <= 64,
            Value::Array(_) | Value::Object(_) => false,
            _ => true,
        };
        let (field, constraint) = (field.to_string(), constraint.to_string());
        self.violations.push(Violation { field, constraint, message, value: value.filter(short) });
    }

    fn required(&mut self, field: &str, most: usize) -> String {
        if self.object.get(field).is_none_or(Value::is_null) {
            self.violate(field, "required", format!("{field} is required"), None);
            return String::new();
        }
        self.text(field, most).unwrap_or_default()
    }

    fn text(&mut self, field: &str, most: usize) -> Option<String> {
        match self.take(field)? {
            Value::String(text) => {
                let length = text.chars().count();
                if (1..=most).contains(&length) {
                    return Some(text);
                }
                let message = format!("{field} must have 1 to {most} characters; it has {length}");
                self.violate(field, "length", message, Some(Value::String(text)));
            }
            other => self.violate(field, "type", format!("{field} must be a string"), Some(other)),
        }
        None
    }

    fn integer(&mut self, field: &str, least: u64, most: u64) -> Option<u64> {
        let value = self.take(field)?;
        let number = value.as_u64().filter(|n| (least..=most).contains(n));
        if number.is_none() {
            let (constraint, what) = if value.is_number() { ("range", "") } else { ("type", "an integer, ") };
            self.violate(field, constraint, format!("{field} must be {what}{least} to {most}"), Some(value));
        }
        number
    }

    fn number(&mut self, field: &str, range: Range) -> Option<f32> {
        let value = self.take(field)?;
        let (fits, words) = match (range, value.as_f64()) {
            (Range::Closed(most), n) => (n.is_some_and(|n| (0.0..=most).contains(&n)), format!("0 to {most}")),
            (Range::Above(most), n) => (n.is_some_and(|n| n > 0.0 && n <= most), format!("above 0 and at most {most}")),
        };
        if fits {
            return value.as_f64().map(|n| n as f32);
        }
        let constraint = if value.is_number() { "range" } else { "type" };
        self.violate(field, constraint, format!("{field} must be a number, {words}"), Some(value));
        None
    }

    fn texts(&mut self, field: &str) -> Vec<String> {
        let texts = match self.take(field) {
            None => return Vec::new(),
            Some(Value::String(one)) => Some(vec![one]),
            Some(Value::Array(all)) => all
                .into_iter()
                .map(|v| match v {
                    Value::String(text) => Some(text),
                    _ => None,
                })
                .collect(),
            Some(_) => None,
        };
        match texts {
            None => self.violate(field, "type", format!("{field} must be a list of strings"), None),
            Some(texts) if texts.len() > MOST_STOPS => {
                let message = format!("{field} may have up to {MOST_STOPS} strings; it has {}", texts.len());
                self.violate(field, "length", message, None);
            }
            Some(texts) if texts.iter().any(String::is_empty) => {
                self.violate(field, "length", format!("{field} contains an empty string"), None);
            }
            Some(texts) => return texts,
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn violations(body: Value) -> Vec<(String, String)> {
        let violations = Execute::read(body.to_string().as_bytes()).expect_err("refused");
        violations.into_iter().map(|v| (v.field, v.constraint)).collect()
    }

    fn pair(field: &str, constraint: &str) -> (String, String) {
        (field.into(), constraint.into())
    }

    #[test]
    fn execute_request_parses_and_lists_ignored_fields() {
        let body = json!({"job_id": "j", "prompt": "Hello", "max_tokens": 2048, "temperature": 0, "top_p": 1.0, "top_k": 40,
            "min_p": 0.05, "repetition_penalty": 1.1, "stop": ["\n"], "seed": 7, "flavour": "mint", "model": null});
        let (request, ignored) = Execute::read(body.to_string().as_bytes()).unwrap();
        let want = Execute {
            job_id: "j".into(),
            model: None,
            prompt: "Hello".into(),
            max_tokens: Some(2048),
            temperature: Some(0.0),
            top_p: Some(1.0),
            top_k: Some(40),
            min_p: Some(0.05),
            repetition_penalty: Some(1.1),
            stop: vec!["\n".into()],
            seed: Some(7),
        };
        assert_eq!((request, ignored), (want.clone(), vec!["flavour".to_string()]));
        assert_eq!(Execute::read(&serde_json::to_vec(&want).unwrap()).unwrap().0, want);
    }

    #[test]
    fn every_violation_is_reported_at_once() {
        let body = json!({"job_id": "", "max_tokens": 2049, "temperature": 2.1, "top_p": -0.1, "top_k": -1, "min_p": "a",
            "repetition_penalty": 0, "stop": ["a", "b", "c", "d", "e"], "seed": 1.5});
        let want = [
            pair("job_id", "length"),
            pair("prompt", "required"),
            pair("max_tokens", "range"),
            pair("temperature", "range"),
            pair("top_p", "range"),
            pair("top_k", "range"),
            pair("min_p", "type"),
            pair("repetition_penalty", "range"),
            pair("stop", "length"),
            pair("seed", "range"),
        ];
        assert_eq!(violations(body), want);
    }

    #[test]
    fn documented_limits_are_enforced() {
        let with = |prompt: String| json!({"job_id": "j", "prompt": prompt});
        let read = |body: Value| Execute::read(body.to_string().as_bytes());
        assert!(read(with("é".repeat(32_768))).is_ok(), "characters, not bytes");
        assert_eq!(violations(with("é".repeat(32_769))), [pair("prompt", "length")]);
        assert_eq!(violations(with(String::new())), [pair("prompt", "length")]);
        assert_eq!(violations(json!({"job_id": "j", "prompt": "p", "max_tokens": 0})), [pair("max_tokens", "range")]);
        assert_eq!(violations(json!({"job_id": "j", "prompt": "p", "stop": ["a", ""]})), [pair("stop", "length")]);
        assert_eq!(violations(json!({"job_id": "j", "prompt": "p", "stop": [1]})), [pair("stop", "type")]);
        assert_eq!(violations(json!([])), [pair("body", "type")]);
        assert_eq!(Execute::read(b"{").unwrap_err()[0].constraint, "syntax");
        let deep = "[".repeat(100_000);
        assert_eq!(Execute::read(deep.as_bytes()).unwrap_err()[0].constraint, "syntax");
    }

    #[test]
    fn violations_include_only_short_values() {
        let value_of = |body: Value| Execute::read(body.to_string().as_bytes()).unwrap_err()[0].value.clone();
        let base = |key: &str, v: Value| {
            let mut body = json!({"job_id": "j", "prompt": "p"});
            body[key] = v;
            body
        };
        assert_eq!(value_of(base("max_tokens", json!(0))), Some(json!(0)));
        assert_eq!(value_of(base("prompt", json!("p".repeat(40_000)))), None);
    }
}
