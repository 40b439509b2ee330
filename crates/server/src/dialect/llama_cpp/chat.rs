//! `POST /chat/completions`: OpenAI's chat with llama.cpp's numbers and rules.

use crate::app::App;
use crate::dialect::openai;
use crate::error::Fault;
use crate::json_body;
use axum::extract::{Request, State};
use axum::response::Response;
use sconce_api::openai::chat::{ChatChunk, ChatCompletion, ChatRequest};
use serde_json::{Map, Value};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(chat_completions))
}

/// Chat completion as in llama.cpp: like `/v1/chat/completions`, but an assistant message at the
/// end is continued, and a `max_tokens` of -1 is no limit.
#[utoipa::path(post, path = "/chat/completions", request_body = ChatRequest, responses(
    (status = 200, description = "The completion; a stream of chunks if `stream` is true", content(
        (ChatCompletion = "application/json"), (ChatChunk = "text/event-stream")))))]
async fn chat_completions(State(app): State<Arc<App>>, request: Request) -> Result<Response, Fault> {
    let (bytes, context) = json_body::read(request, &app).await?;
    let bytes = match serde_json::from_slice::<Map<String, Value>>(&bytes) {
        Ok(mut fields) => {
            translate(&mut fields)?;
            serde_json::to_vec(&fields).unwrap_or(bytes)
        }
        // The parser of the request says what is wrong.
        Err(_) => bytes,
    };
    let body: ChatRequest = json_body::parse(&bytes, &context)?;
    openai::chat_completion(&app, &context, "chat/completions", body).await
}

/// Translates the fields whose values OpenAI's API does not have.
fn translate(fields: &mut Map<String, Value>) -> Result<(), Fault> {
    if let Some(limit) = fields.remove("n_predict") {
        fields.entry("max_tokens").or_insert(limit);
    }
    for field in ["max_tokens", "max_completion_tokens"] {
        if fields.get(field).and_then(Value::as_i64).is_some_and(|limit| limit < 0) {
            fields.remove(field);
        }
    }
    if fields.get("seed").and_then(Value::as_i64).is_some_and(|seed| seed < 0) {
        fields.remove("seed");
    }
    if let Some(Value::Array(pairs)) = fields.get("logit_bias") {
        let pair = |pair: &Value| Some((pair.get(0)?.as_u64()?.to_string(), pair.get(1)?.clone()));
        let map: Option<Map<String, Value>> = pairs.iter().map(pair).collect();
        let what = "a `logit_bias` that is a list has pairs of a token id and a bias";
        let map = map.ok_or_else(|| Fault::invalid(what).at("logit_bias"))?;
        fields.insert("logit_bias".into(), map.into());
    }
    let messages = fields.get("messages").and_then(Value::as_array);
    let is_assistant = |message: &Value| message["role"] == "assistant" && message.get("tool_calls").is_none();
    let trailing = messages.map_or(0, |all| all.iter().rev().take_while(|message| is_assistant(message)).count());
    if trailing > 1 {
        let what = "`messages` ends with several assistant messages; only one can be continued, so join them";
        return Err(Fault::invalid(what).at("messages"));
    }
    let asks = |field: &str| fields.get(field).is_some_and(|value| !value.is_null());
    if trailing == 1 && !asks("continue_final_message") && !asks("add_generation_prompt") {
        fields.insert("continue_final_message".into(), true.into());
        fields.insert("add_generation_prompt".into(), false.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn translated(fields: Value) -> Result<Value, Fault> {
        let Value::Object(mut fields) = fields else { panic!("an object") };
        translate(&mut fields).map(|()| Value::Object(fields))
    }

    #[test]
    fn limits_seeds_and_biases_are_translated() {
        let all = translated(json!({"n_predict": -1, "seed": -1, "logit_bias": [[5, -100]]})).unwrap();
        assert_eq!(all, json!({"logit_bias": {"5": -100}}));
        assert_eq!(translated(json!({"n_predict": 3})).unwrap(), json!({"max_tokens": 3}));
        assert_eq!(translated(json!({"n_predict": 3, "max_tokens": 4})).unwrap(), json!({"max_tokens": 4}));
        let fault = translated(json!({"logit_bias": [["a", 1]]})).unwrap_err();
        assert_eq!(fault.param.as_deref(), Some("logit_bias"));
    }

    #[test]
    fn one_assistant_message_at_the_end_is_continued() {
        let assistant = json!({"role": "assistant", "content": "x"});
        let one = translated(json!({"messages": [{"role": "user"}, assistant]})).unwrap();
        assert_eq!((&one["continue_final_message"], &one["add_generation_prompt"]), (&json!(true), &json!(false)));
        let user = translated(json!({"messages": [assistant, {"role": "user"}]})).unwrap();
        assert!(user.get("continue_final_message").is_none());
        assert!(translated(json!({"messages": [assistant, assistant]})).is_err());
        let own = json!({"messages": [assistant], "add_generation_prompt": true});
        assert_eq!(translated(own.clone()).unwrap(), own);
    }
}
