//! One line of a batch's input file: `{"custom_id", "method", "url", "body"}`.

use sconce_api::openai::batches::Endpoint;
use serde_json::{Map, Value};

/// The longest `custom_id`, in bytes.
const MAX_ID: usize = 512;

/// A request of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// The client's id, unique in its file.
    pub(crate) custom_id: String,
    /// The path that answers it.
    pub(crate) endpoint: Endpoint,
    /// The body, as JSON.
    pub(crate) body: Vec<u8>,
    /// The model that the body names.
    pub(crate) model: Option<String>,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LineError {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) param: Option<&'static str>,
}

impl LineError {
    pub(crate) fn new(code: &'static str, param: Option<&'static str>, message: impl Into<String>) -> LineError {
        LineError { code, message: message.into(), param }
    }

    fn missing(param: &'static str) -> LineError {
        let what = format!("the required field `{param}` is missing, or has the wrong type");
        LineError::new("missing_required_parameter", Some(param), what)
    }
}

/// What the lines of a file must have in common.
pub(crate) struct Rules<'a> {
    /// The endpoint of all lines; `None`: each line may have another one.
    pub(crate) endpoint: Option<Endpoint>,
    /// Whether there is a model of this name.
    pub(crate) knows_model: &'a (dyn Fn(&str) -> bool + Sync),
}

impl Line {
    /// Parses a line that follows the rules.
    pub(crate) fn parse(bytes: &[u8], rules: &Rules<'_>) -> Result<Line, LineError> {
        let line = Line::read(bytes)?;
        if rules.endpoint.is_some_and(|endpoint| endpoint != line.endpoint) {
            let wanted = rules.endpoint.map_or("", Endpoint::path);
            let what = format!("the `url` is {}, but the batch's `endpoint` is {wanted}", line.endpoint);
            return Err(LineError::new("invalid_url", Some("url"), what));
        }
        if let Some(model) = line.model.as_deref().filter(|model| !(rules.knows_model)(model)) {
            let model: String = model.chars().take(80).collect();
            let what = format!("there is no model `{model}`; use a name of /v1/models (of -m, in `sconce batch`)");
            return Err(LineError::new("model_not_found", Some("body.model"), what));
        }
        Ok(line)
    }

    /// Parses a line.
    pub(crate) fn read(bytes: &[u8]) -> Result<Line, LineError> {
        let invalid = |e: serde_json::Error| {
            LineError::new("invalid_json_line", None, format!("the line is not a JSON object: {e}"))
        };
        let mut line: Map<String, Value> = serde_json::from_slice(bytes).map_err(invalid)?;
        let custom_id = match line.get("custom_id") {
            Some(Value::String(id)) if (1..=MAX_ID).contains(&id.len()) => id.clone(),
            Some(Value::String(_)) => {
                let what = format!("`custom_id` must have 1 to {MAX_ID} bytes");
                return Err(LineError::new("invalid_custom_id", Some("custom_id"), what));
            }
            _ => return Err(LineError::missing("custom_id")),
        };
        match line.get("method") {
            Some(Value::String(method)) if method == "POST" => {}
            Some(Value::String(_)) => {
                return Err(LineError::new("invalid_method", Some("method"), "`method` must be POST"));
            }
            _ => return Err(LineError::missing("method")),
        }
        let Some(Value::String(url)) = line.get("url") else { return Err(LineError::missing("url")) };
        let Some(endpoint) = Endpoint::of(url) else {
            let all = Endpoint::ALL.map(Endpoint::path).join(", ");
            return Err(LineError::new("invalid_url", Some("url"), format!("`url` must be one of {all}")));
        };
        let Some(Value::Object(body)) = line.remove("body") else { return Err(LineError::missing("body")) };
        let model = match body.get("model") {
            None | Some(Value::Null) => None,
            Some(Value::String(model)) => Some(model.clone()),
            Some(_) => return Err(LineError::missing("body.model")),
        };
        if body.get("stream") == Some(&Value::Bool(true)) {
            let what = "a batch has whole responses; leave `stream` out";
            return Err(LineError::new("unsupported_parameter", Some("body.stream"), what));
        }
        let body = serde_json::to_vec(&body).map_err(invalid)?;
        Ok(Line { custom_id, endpoint, body, model })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const RULES: Rules<'static> =
        Rules { endpoint: Some(Endpoint::Embeddings), knows_model: &|model: &str| model == "m" };

    fn line() -> Value {
        json!({"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", "input": "x"}})
    }

    fn error(change: impl Fn(&mut Value)) -> (&'static str, Option<&'static str>) {
        let mut line = line();
        change(&mut line);
        let error = Line::parse(line.to_string().as_bytes(), &RULES).unwrap_err();
        (error.code, error.param)
    }

    #[test]
    fn lines_are_parsed() {
        let parsed = Line::parse(line().to_string().as_bytes(), &RULES).unwrap();
        assert_eq!((parsed.custom_id.as_str(), parsed.model.as_deref()), ("a", Some("m")));
        assert_eq!(parsed.body, br#"{"model":"m","input":"x"}"#);
        let mut other = line();
        other["url"] = json!("/v1/responses");
        let any = Rules { endpoint: None, knows_model: &|_: &str| true };
        assert_eq!(Line::parse(other.to_string().as_bytes(), &any).unwrap().endpoint, Endpoint::Responses);
    }

    #[test]
    fn errors_name_the_field() {
        let missing = |field: &'static str| ("missing_required_parameter", Some(field));
        for field in ["custom_id", "method", "url", "body"] {
            assert_eq!(error(|line| drop(line.as_object_mut().unwrap().remove(field))), missing(field));
            assert_eq!(error(|line| line[field] = json!(7)), missing(field));
        }
        assert_eq!(error(|line| line["custom_id"] = json!("")), ("invalid_custom_id", Some("custom_id")));
        assert_eq!(error(|line| line["custom_id"] = json!("x".repeat(513))), ("invalid_custom_id", Some("custom_id")));
        assert_eq!(error(|line| line["method"] = json!("GET")), ("invalid_method", Some("method")));
        assert_eq!(error(|line| line["url"] = json!("/v1/completions")), ("invalid_url", Some("url")));
        assert_eq!(error(|line| line["url"] = json!("/v1/models")), ("invalid_url", Some("url")));
        assert_eq!(error(|line| line["body"]["model"] = json!("n")), ("model_not_found", Some("body.model")));
        assert_eq!(error(|line| line["body"]["model"] = json!(1)), missing("body.model"));
        assert_eq!(error(|line| line["body"]["stream"] = json!(true)), ("unsupported_parameter", Some("body.stream")));
        for text in ["", "{", "[]", "\"a\"", "{}x", &"[".repeat(10_000)] {
            assert_eq!(Line::parse(text.as_bytes(), &RULES).unwrap_err().code, "invalid_json_line", "{text}");
        }
    }
}
