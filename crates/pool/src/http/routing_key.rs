//! The part of a request that decides its route. Pure: from path and body to a routing key. A body
//! that cannot be parsed has an empty key. It still goes to a worker, which reports the error in
//! the API of the path.

use serde::Deserialize;
use serde_json::Value;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Bytes of a prompt or message that are hashed: enough to tell prompts apart, at bounded cost. A
/// prefix that many conversations share and that is shorter than this is not worth routing to one
/// worker.
const PREFIX_BYTES: usize = 1_024;
/// Messages of a conversation that are hashed.
const MAX_MESSAGES: usize = 32;
/// Assumed length of an answer in tokens, if the request sets no limit.
const DEFAULT_ANSWER_TOKENS: u64 = 256;
/// Approximate bytes per token.
const BYTES_PER_TOKEN: u64 = 4;

/// The part of a request that decides its route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoutingKey {
    pub(crate) model: Option<String>,
    /// Tasks of which the model must have one, if the request names no model.
    pub(crate) tasks: &'static [&'static str],
    /// Hashes of the prompt's prefixes, in order of length.
    pub(crate) prefixes: Vec<u64>,
    pub(crate) tokens: u64,
    /// Job id of `/execute` or `/v1/jobs`.
    pub(crate) job: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct BodyFields {
    model: Value,
    prompt: Value,
    messages: Value,
    max_tokens: Value,
    max_completion_tokens: Value,
    n: Value,
    job_id: Value,
}

/// Tasks that serve a path; `None` if the path is not for workers.
pub(crate) fn tasks(path: &str) -> Option<&'static [&'static str]> {
    Some(match path {
        "/embed" | "/v1/embeddings" | "/similarity" => &["embed", "m3", "clip"],
        "/embed_all" => &["embed", "multi", "m3"],
        "/embed_sparse" => &["sparse", "m3"],
        "/predict" | "/v1/classify" => &["classify"],
        "/rerank" | "/v1/rerank" | "/v2/rerank" => &["rerank"],
        "/v1/chat/completions" | "/v1/completions" | "/execute" | "/v1/jobs" => &["generate", "seq2seq"],
        "/v1/messages" | "/v1/messages/count_tokens" => &["generate"],
        "/tag" => &["tag"],
        "/" | "/invocations" | "/tokenize" | "/decode" | "/info" => &[],
        // A pool loads and unloads models by starting and stopping workers, each of which has its
        // own readiness.
        "/v1/models/load" | "/v1/models/unload" | "/v1/ready" | "/v1/loading/progress" => return None,
        // They belong to one server. A client of the pool must not use them with the pool's key.
        p if matches!(p.split('/').nth(2), Some("files" | "batches" | "responses" | "vector_stores")) => return None,
        // About one server, and nobody could say which.
        "/v1/status" | "/v1/plan" => return None,
        p if p.starts_with("/v1/") => &[],
        _ => return None,
    })
}

impl RoutingKey {
    pub(crate) fn new(path: &str, body: &[u8]) -> RoutingKey {
        let tasks = tasks(path).unwrap_or_default();
        let size = body.len() as u64 / BYTES_PER_TOKEN + 1;
        if let Some(id) = path.strip_prefix("/v1/models/") {
            return RoutingKey { model: Some(percent_decode(id)), tasks, tokens: 1, ..RoutingKey::default() };
        }
        let fields: BodyFields = serde_json::from_slice(body).unwrap_or_default();
        let generates = tasks.contains(&"generate");
        let answer = [&fields.max_completion_tokens, &fields.max_tokens].into_iter().find_map(Value::as_u64);
        let answers = fields.n.as_u64().unwrap_or(1).clamp(1, 128);
        // Limits that a client sends must not make a worker look busy forever.
        let answer_tokens = answer.unwrap_or(DEFAULT_ANSWER_TOKENS).min(1 << 20).saturating_mul(answers);
        RoutingKey {
            model: fields.model.as_str().map(String::from),
            tasks,
            prefixes: if generates { prefix_hashes(&fields) } else { Vec::new() },
            tokens: if generates { size + answer_tokens } else { size },
            job: ["/execute", "/v1/jobs"].contains(&path).then(|| fields.job_id.as_str().map(String::from)).flatten(),
        }
    }
}

/// Hashes of the model and the beginning of the prompt; for a conversation one hash per message, so
/// that its next turn, which repeats all messages before it, matches.
fn prefix_hashes(fields: &BodyFields) -> Vec<u64> {
    let mut digest = DefaultHasher::new();
    fields.model.as_str().hash(&mut digest);
    let first = |text: &str| text.len().min(PREFIX_BYTES);
    let prompt = match &fields.prompt {
        Value::Array(all) => all.first().and_then(Value::as_str),
        prompt => prompt.as_str(),
    };
    if let Some(prompt) = prompt {
        prompt.as_bytes()[..first(prompt)].hash(&mut digest);
        return vec![digest.finish()];
    }
    let Value::Array(messages) = &fields.messages else { return Vec::new() };
    let (mut all, mut is_common, mut length) = (Vec::new(), true, 0);
    for message in messages.iter().take(MAX_MESSAGES) {
        let role = message.get("role").and_then(Value::as_str);
        let Some(content) = message.get("content").and_then(text) else { continue };
        (role, content.len(), &content.as_bytes()[..first(content)]).hash(&mut digest);
        length += content.len();
        is_common &= matches!(role, Some("system" | "developer"));
        // Many conversations share a system prompt. If a short one counted, they would all go to
        // one worker.
        if !is_common || length >= PREFIX_BYTES {
            all.push(digest.finish());
        }
    }
    all
}

/// The text of a message, or its first text part.
fn text(content: &Value) -> Option<&str> {
    content.as_str().or_else(|| content.as_array()?.iter().find_map(|part| part.get("text")?.as_str()))
}

/// Percent-decodes a path.
fn percent_decode(path: &str) -> String {
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

    fn key(path: &str, body: Value) -> RoutingKey {
        RoutingKey::new(path, body.to_string().as_bytes())
    }

    fn chat(texts: &[&str]) -> RoutingKey {
        let messages: Vec<Value> = texts.iter().map(|t| json!({"role": "user", "content": t})).collect();
        key("/v1/chat/completions", json!({"model": "m", "messages": messages, "max_tokens": 50}))
    }

    #[test]
    fn routing_key_has_model_and_token_estimate() {
        let embed = key("/v1/embeddings", json!({"model": "e", "input": "x".repeat(400)}));
        assert_eq!((embed.model.as_deref(), embed.prefixes, embed.job), (Some("e"), vec![], None));
        assert!((100..=120).contains(&embed.tokens), "{}", embed.tokens);
        let execute = key("/execute", json!({"job_id": "j", "prompt": "p", "max_tokens": 1000}));
        assert!(execute.job.as_deref() == Some("j") && execute.tokens > 1000 && execute.prefixes.len() == 1);
        assert_eq!(key("/v1/jobs", json!({"job_id": "j", "prompt": "p"})).job.as_deref(), Some("j"));
        assert_eq!(super::tasks("/v1/messages"), Some(&["generate"][..]));
        for path in [
            "/v1/batches",
            "/v1/batches/batch_1/cancel",
            "/v1/responses",
            "/v1/responses/resp_1",
            "/v1/status",
            "/v1/plan",
            "/v1/files",
            "/v1/files/file-1",
            "/v1/vector_stores",
            "/v1/vector_stores/vs_1/search",
        ] {
            assert_eq!(super::tasks(path), None, "{path}");
        }
        assert!(super::tasks("/v1/models/m").is_some());
        assert_eq!(key("/v2/rerank", json!({"query": "q"})).tasks, ["rerank"]);
        let huge = key("/v1/completions", json!({"prompt": "p", "max_tokens": u64::MAX, "n": u64::MAX}));
        assert!(huge.tokens < 1 << 28, "{}", huge.tokens);
        assert_eq!(key("/embed", json!({"inputs": "x"})).tasks, ["embed", "m3", "clip"]);
        for invalid in [&b"\xff{"[..], b"", b"[1]", b"{\"model\": 5}"] {
            assert_eq!(RoutingKey::new("/v1/chat/completions", invalid).model, None);
        }
        assert_eq!(RoutingKey::new("/v1/models/org%2Fname%zz", b"").model.as_deref(), Some("org/name%zz"));
    }

    #[test]
    fn later_turns_extend_the_prefixes_of_earlier_turns() {
        let turns = ["hi", "hello", "how are you", "well"];
        let first = chat(&turns[..1]).prefixes;
        let later = chat(&turns).prefixes;
        assert_eq!((first.len(), later.len()), (1, 4));
        assert_eq!(first[0], later[0]);
        assert_eq!(chat(&turns[..3]).prefixes, later[..3]);
        assert_ne!(chat(&["hi", "hello", "who are you"]).prefixes[2], later[2]);
        assert_ne!(chat(&["hihello"]).prefixes[0], later[1], "message boundaries count");
        assert_eq!(chat(&["x"; 100]).prefixes.len(), MAX_MESSAGES);
        // Long messages differ in their length too.
        let long = "x".repeat(PREFIX_BYTES);
        assert_ne!(chat(&[&long]).prefixes, chat(&[&(long.clone() + "y")]).prefixes);
    }

    #[test]
    fn equal_prompt_prefixes_have_equal_hashes() {
        let prefixes = |system: &str, user: &str| {
            let messages = json!([{"role": "system", "content": system}, {"role": "user", "content": user}]);
            key("/v1/chat/completions", json!({"messages": messages})).prefixes
        };
        let system = "You are a lamp. ".repeat(100);
        let (one, two) = (prefixes(&system, "one"), prefixes(&system, "two"));
        assert!(one.len() == 2 && one[0] == two[0] && one[1] != two[1]);
        let (one, two) = (prefixes("You are a lamp.", "one"), prefixes("You are a lamp.", "two"));
        assert!(one.len() == 1 && one != two, "a common prefix that is too short is not hashed");
        let prompt = |text: &str| key("/v1/completions", json!({"prompt": text})).prefixes;
        assert_eq!(prompt(&(system.clone() + "one")), prompt(&(system.clone() + "two")));
        assert_ne!(prompt("one"), prompt("two"));
        let parts = json!({"messages": [{"content": [{"type": "image_url"}, {"type": "text", "text": "Hi"}]}]});
        assert_eq!(key("/v1/chat/completions", parts).prefixes.len(), 1);
        assert!(key("/v1/chat/completions", json!({"messages": "no"})).prefixes.is_empty());
        // Cut in the middle of a character.
        assert_eq!(chat(&[&"é".repeat(700)]).prefixes.len(), 1);
    }

    #[test]
    fn only_worker_paths_are_routed_to_workers() {
        assert!(tasks("/v1/anything").is_some() && tasks("/rerank").is_some());
        for own in ["/v1/models/load", "/v1/ready", "/v2/state", "/shutdown", "/metrics", "/admin"] {
            assert!(tasks(own).is_none(), "{own}");
        }
    }
}
