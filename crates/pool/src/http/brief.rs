//! What of a request decides where it goes. Pure: a path and a body in, a summary out. A body that is not understood has none, and
//! goes to a worker all the same, which says what is wrong with it in its own words.

use serde::Deserialize;
use serde_json::Value;
use std::hash::{DefaultHasher, Hash, Hasher};

/// What of a prompt's beginning is looked at, in bytes: enough to tell system prompts apart, and no work for long ones.
const BEGINNING: usize = 1_024;
/// Tokens of an answer where nobody says.
const ANSWER: u64 = 256;
/// Bytes of a token, about.
const TOKEN: u64 = 4;

/// What of a request decides where it goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Brief {
    pub(crate) model: Option<String>,
    /// What the model must do, where none is named.
    pub(crate) tasks: &'static [&'static str],
    pub(crate) prefix: Option<u64>,
    pub(crate) tokens: u64,
    /// Of `/execute`.
    pub(crate) job: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Seen {
    model: Value,
    prompt: Value,
    messages: Value,
    max_tokens: Value,
    max_completion_tokens: Value,
    n: Value,
    job_id: Value,
}

/// What a path asks of a model; `None` where it is not for workers.
pub(crate) fn tasks(path: &str) -> Option<&'static [&'static str]> {
    Some(match path {
        "/embed" | "/v1/embeddings" | "/similarity" => &["embed", "m3", "clip"],
        "/embed_all" => &["embed", "multi", "m3"],
        "/embed_sparse" => &["sparse", "m3"],
        "/predict" | "/v1/classify" | "/rerank" | "/v1/rerank" | "/v2/rerank" => &["classify"],
        "/v1/chat/completions" | "/v1/completions" | "/execute" => &["generate", "seq2seq"],
        "/tag" => &["tag"],
        "/" | "/invocations" | "/tokenize" | "/decode" | "/info" => &[],
        // Models of a pool come and go with their workers, each of which is ready by itself.
        "/v1/models/load" | "/v1/models/unload" | "/v1/ready" | "/v1/loading/progress" => return None,
        p if p.starts_with("/v1/") => &[],
        _ => return None,
    })
}

impl Brief {
    pub(crate) fn of(path: &str, body: &[u8]) -> Brief {
        let tasks = tasks(path).unwrap_or_default();
        let size = body.len() as u64 / TOKEN + 1;
        if let Some(id) = path.strip_prefix("/v1/models/") {
            return Brief { model: Some(decoded(id)), tasks, tokens: 1, ..Brief::default() };
        }
        let seen: Seen = serde_json::from_slice(body).unwrap_or_default();
        let speaks = tasks.contains(&"generate");
        let answer = [&seen.max_completion_tokens, &seen.max_tokens].into_iter().find_map(Value::as_u64);
        let answers = seen.n.as_u64().unwrap_or(1).clamp(1, 128);
        // What a client claims must not make a worker look busy for ever.
        let most = answer.unwrap_or(ANSWER).min(1 << 20).saturating_mul(answers);
        Brief {
            model: seen.model.as_str().map(String::from),
            tasks,
            prefix: speaks.then(|| beginning(&seen)).flatten(),
            tokens: if speaks { size + most } else { size },
            job: (path == "/execute").then(|| seen.job_id.as_str().map(String::from)).flatten(),
        }
    }
}

/// A digest of the model and the first part of the prompt.
fn beginning(seen: &Seen) -> Option<u64> {
    let mut left = BEGINNING;
    let mut digest = DefaultHasher::new();
    seen.model.as_str().hash(&mut digest);
    let texts: Vec<&str> = match (&seen.prompt, &seen.messages) {
        (Value::String(text), _) => vec![text],
        (Value::Array(all), _) => all.first().and_then(Value::as_str).into_iter().collect(),
        (_, Value::Array(messages)) => messages.iter().filter_map(|m| m.get("content")).filter_map(text).collect(),
        _ => return None,
    };
    for text in &texts {
        let part = &text.as_bytes()[..text.len().min(left)];
        part.hash(&mut digest);
        left -= part.len();
        if left == 0 {
            break;
        }
    }
    (!texts.is_empty()).then(|| digest.finish())
}

/// The text of a message, or the first of its parts.
fn text(content: &Value) -> Option<&str> {
    content.as_str().or_else(|| content.as_array()?.iter().find_map(|part| part.get("text")?.as_str()))
}

/// `%2F` and its kind.
fn decoded(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = (*first == b'%').then(|| after.get(..2)).flatten();
        let byte = hex.and_then(|h| u8::from_str_radix(std::str::from_utf8(h).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn brief(path: &str, body: Value) -> Brief {
        Brief::of(path, body.to_string().as_bytes())
    }

    fn chat(texts: &[&str]) -> Brief {
        let messages: Vec<Value> = texts.iter().map(|t| json!({"role": "user", "content": t})).collect();
        brief("/v1/chat/completions", json!({"model": "m", "messages": messages, "max_tokens": 50}))
    }

    #[test]
    fn a_request_says_its_model_and_its_size() {
        let b = brief("/v1/embeddings", json!({"model": "e", "input": "x".repeat(400)}));
        assert_eq!((b.model.as_deref(), b.prefix, b.job), (Some("e"), None, None));
        assert!((100..=120).contains(&b.tokens), "{}", b.tokens);
        let b = brief("/execute", json!({"job_id": "j", "prompt": "p", "max_tokens": 1000}));
        assert!(b.job.as_deref() == Some("j") && b.tokens > 1000 && b.prefix.is_some());
        let b = brief("/v1/completions", json!({"prompt": "p", "max_tokens": u64::MAX, "n": u64::MAX}));
        assert!(b.tokens < 1 << 28, "{}", b.tokens);
        assert_eq!(brief("/embed", json!({"inputs": "x"})).tasks, ["embed", "m3", "clip"]);
        for odd in [&b"\xff{"[..], b"", b"[1]", b"{\"model\": 5}"] {
            assert_eq!(Brief::of("/v1/chat/completions", odd).model, None);
        }
        assert_eq!(Brief::of("/v1/models/org%2Fname%zz", b"").model.as_deref(), Some("org/name%zz"));
    }

    #[test]
    fn alike_beginnings_are_alike() {
        let system = "You are a lamp. ".repeat(100);
        assert_eq!(chat(&[&system, "one"]).prefix, chat(&[&system, "two"]).prefix);
        assert_ne!(chat(&["short", "one"]).prefix, chat(&["short", "two"]).prefix);
        assert_eq!(chat(&["short"]).prefix, chat(&["short"]).prefix);
        let parts = json!({"messages": [{"content": [{"type": "image_url"}, {"type": "text", "text": "Hi"}]}]});
        assert!(brief("/v1/chat/completions", parts).prefix.is_some());
        assert_eq!(brief("/v1/chat/completions", json!({"messages": "no"})).prefix, None);
        // Cut in the middle of a character.
        assert!(chat(&[&"é".repeat(700)]).prefix.is_some());
    }

    #[test]
    fn only_paths_of_workers_go_to_workers() {
        assert!(tasks("/v1/anything").is_some() && tasks("/rerank").is_some());
        for own in ["/v1/models/load", "/v1/ready", "/v2/state", "/shutdown", "/metrics", "/admin"] {
            assert!(tasks(own).is_none(), "{own}");
        }
    }
}
