//! What of a request decides where it goes. Pure: a path and a body in, a summary out. A body that is not understood has none, and
//! goes to a worker all the same, which says what is wrong with it in its own words.

use serde::Deserialize;
use serde_json::Value;
use std::hash::{DefaultHasher, Hash, Hasher};

/// What of a prompt's or a message's beginning is looked at, in bytes: enough to tell them apart, and no work for long ones. What is
/// shared by many conversations and shorter than this is not worth going to the same worker for.
const BEGINNING: usize = 1_024;
/// Messages of a conversation that are looked at.
const MESSAGES: usize = 32;
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
    /// Digests of the beginnings of the prompt, each longer than the one before.
    pub(crate) prefixes: Vec<u64>,
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
            prefixes: if speaks { beginnings(&seen) } else { Vec::new() },
            tokens: if speaks { size + most } else { size },
            job: (path == "/execute").then(|| seen.job_id.as_str().map(String::from)).flatten(),
        }
    }
}

/// Digests of the model and the first part of the prompt; of a conversation one for each message, so that its next turn, which begins
/// with all that was said before, is known again.
fn beginnings(seen: &Seen) -> Vec<u64> {
    let mut digest = DefaultHasher::new();
    seen.model.as_str().hash(&mut digest);
    let first = |text: &str| text.len().min(BEGINNING);
    let prompt = match &seen.prompt {
        Value::Array(all) => all.first().and_then(Value::as_str),
        prompt => prompt.as_str(),
    };
    if let Some(prompt) = prompt {
        prompt.as_bytes()[..first(prompt)].hash(&mut digest);
        return vec![digest.finish()];
    }
    let Value::Array(messages) = &seen.messages else { return Vec::new() };
    let (mut all, mut is_common, mut length) = (Vec::new(), true, 0);
    for message in messages.iter().take(MESSAGES) {
        let role = message.get("role").and_then(Value::as_str);
        let Some(said) = message.get("content").and_then(text) else { continue };
        (role, said.len(), &said.as_bytes()[..first(said)]).hash(&mut digest);
        length += said.len();
        is_common &= matches!(role, Some("system" | "developer"));
        // How an assistant is to behave is the same for everybody. Short as it is, all would go to one worker.
        if !is_common || length >= BEGINNING {
            all.push(digest.finish());
        }
    }
    all
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
        assert_eq!((b.model.as_deref(), b.prefixes, b.job), (Some("e"), vec![], None));
        assert!((100..=120).contains(&b.tokens), "{}", b.tokens);
        let b = brief("/execute", json!({"job_id": "j", "prompt": "p", "max_tokens": 1000}));
        assert!(b.job.as_deref() == Some("j") && b.tokens > 1000 && b.prefixes.len() == 1);
        let b = brief("/v1/completions", json!({"prompt": "p", "max_tokens": u64::MAX, "n": u64::MAX}));
        assert!(b.tokens < 1 << 28, "{}", b.tokens);
        assert_eq!(brief("/embed", json!({"inputs": "x"})).tasks, ["embed", "m3", "clip"]);
        for odd in [&b"\xff{"[..], b"", b"[1]", b"{\"model\": 5}"] {
            assert_eq!(Brief::of("/v1/chat/completions", odd).model, None);
        }
        assert_eq!(Brief::of("/v1/models/org%2Fname%zz", b"").model.as_deref(), Some("org/name%zz"));
    }

    #[test]
    fn a_conversation_begins_with_what_was_said_before() {
        let turns = ["hi", "hello", "how are you", "well"];
        let first = chat(&turns[..1]).prefixes;
        let later = chat(&turns).prefixes;
        assert_eq!((first.len(), later.len()), (1, 4));
        assert_eq!(first[0], later[0]);
        assert_eq!(chat(&turns[..3]).prefixes, later[..3]);
        assert_ne!(chat(&["hi", "hello", "who are you"]).prefixes[2], later[2]);
        assert_ne!(chat(&["hihello"]).prefixes[0], later[1], "who said what counts");
        assert_eq!(chat(&["x"; 100]).prefixes.len(), MESSAGES);
        // Long ones are told apart by their length too.
        let long = "x".repeat(BEGINNING);
        assert_ne!(chat(&[&long]).prefixes, chat(&[&(long.clone() + "y")]).prefixes);
    }

    #[test]
    fn alike_beginnings_are_alike() {
        let asked = |system: &str, user: &str| {
            let messages = json!([{"role": "system", "content": system}, {"role": "user", "content": user}]);
            brief("/v1/chat/completions", json!({"messages": messages})).prefixes
        };
        let system = "You are a lamp. ".repeat(100);
        let (one, two) = (asked(&system, "one"), asked(&system, "two"));
        assert!(one.len() == 2 && one[0] == two[0] && one[1] != two[1]);
        let (one, two) = (asked("You are a lamp.", "one"), asked("You are a lamp.", "two"));
        assert!(one.len() == 1 && one != two, "what everybody says is too short to be worth it");
        let prompt = |text: &str| brief("/v1/completions", json!({"prompt": text})).prefixes;
        assert_eq!(prompt(&(system.clone() + "one")), prompt(&(system.clone() + "two")));
        assert_ne!(prompt("one"), prompt("two"));
        let parts = json!({"messages": [{"content": [{"type": "image_url"}, {"type": "text", "text": "Hi"}]}]});
        assert_eq!(brief("/v1/chat/completions", parts).prefixes.len(), 1);
        assert!(brief("/v1/chat/completions", json!({"messages": "no"})).prefixes.is_empty());
        // Cut in the middle of a character.
        assert_eq!(chat(&[&"é".repeat(700)]).prefixes.len(), 1);
    }

    #[test]
    fn only_paths_of_workers_go_to_workers() {
        assert!(tasks("/v1/anything").is_some() && tasks("/rerank").is_some());
        for own in ["/v1/models/load", "/v1/ready", "/v2/state", "/shutdown", "/metrics", "/admin"] {
            assert!(tasks(own).is_none(), "{own}");
        }
    }
}
