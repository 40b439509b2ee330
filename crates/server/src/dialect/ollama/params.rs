//! Translates requests into the superset that conversations take.

use crate::error::Fault;
use crate::http_context::HttpContext;
use crate::served_model::ServedModel;
use sconce_api::ollama::{AnswerFormat, Message, MessageCall, OllamaTool, Options, Think, ThinkLevel};
use sconce_api::openai::chat::{ChatRequest, ReasoningEffort};
use sconce_api::openai::common::{NamedSchema, OneOrMore, ResponseFormat};
use sconce_api::openai::tools::Tool;
use sconce_engine::TaskModel;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;

/// The parameters that chats and completions share.
pub(super) struct SharedParams {
    pub(super) options: Option<Options>,
    pub(super) format: Option<AnswerFormat>,
    pub(super) think: Option<Think>,
    pub(super) logprobs: Option<bool>,
    pub(super) top_logprobs: Option<u32>,
}

impl SharedParams {
    /// A request without messages.
    pub(super) fn request(self, model: &str, context: &HttpContext) -> Result<ChatRequest, Fault> {
        let options = self.options.unwrap_or_default();
        if options.num_ctx.is_some() {
            // The context was chosen when the model was loaded.
            context.note_ignored("options.num_ctx");
        }
        let (reasoning_effort, chat_template_kwargs) = self.think.map(reasoning).unwrap_or_default();
        Ok(ChatRequest {
            model: Some(model.to_owned()),
            // As at Ollama, 0 and below set no limit.
            max_tokens: options.num_predict.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0),
            temperature: options.temperature,
            top_p: options.top_p,
            top_k: options.top_k.map(|k| k.max(0)),
            min_p: options.min_p,
            repetition_penalty: options.repeat_penalty,
            presence_penalty: options.presence_penalty,
            frequency_penalty: options.frequency_penalty,
            seed: options.seed,
            stop: options.stop.filter(|stop| !stop.is_empty()).map(OneOrMore::More),
            logprobs: self.logprobs,
            top_logprobs: self.top_logprobs.filter(|n| *n > 0),
            response_format: self.format.map(response_format).transpose()?.flatten(),
            reasoning_effort,
            chat_template_kwargs,
            ..ChatRequest::default()
        })
    }
}

fn response_format(format: AnswerFormat) -> Result<Option<ResponseFormat>, Fault> {
    match format {
        AnswerFormat::Name(name) if name.is_empty() => Ok(None),
        AnswerFormat::Name(name) if name == "json" => Ok(Some(ResponseFormat::JsonObject { schema: None })),
        AnswerFormat::Name(name) => {
            Err(Fault::invalid(format!("`format` is \"{name}\"; it must be \"json\" or a JSON schema")).at("format"))
        }
        AnswerFormat::Schema(schema) => Ok(Some(ResponseFormat::JsonSchema {
            json_schema: NamedSchema { name: None, description: None, schema: Some(schema.into()), strict: None },
        })),
    }
}

/// `think` without a level switches thinking on in the chat template and sets no limit.
fn reasoning(think: Think) -> (Option<ReasoningEffort>, Option<Map<String, Value>>) {
    let effort = match think {
        Think::Switch(true) => return (None, Some(Map::from_iter([("enable_thinking".into(), true.into())]))),
        Think::Switch(false) => ReasoningEffort::None,
        Think::Level(ThinkLevel::Low) => ReasoningEffort::Low,
        Think::Level(ThinkLevel::Medium) => ReasoningEffort::Medium,
        Think::Level(ThinkLevel::High) => ReasoningEffort::High,
    };
    (Some(effort), None)
}

/// What of `think` has an effect on this model: nothing if it does not reason.
pub(super) fn think_of(served: &ServedModel, think: Option<Think>, context: &HttpContext) -> Option<Think> {
    let reasons = matches!(&served.model, TaskModel::Generate(llm) if llm.reasoning().is_some());
    if !reasons && think.is_some_and(|think| think != Think::Switch(false)) {
        context.note_ignored("think");
    }
    think.filter(|_| reasons)
}

pub(super) fn tools(tools: Vec<OllamaTool>) -> Option<Vec<Tool>> {
    let tool = |tool: OllamaTool| Tool { kind: tool.kind, function: tool.function };
    (!tools.is_empty()).then(|| tools.into_iter().map(tool).collect())
}

/// Refuses images: no model here reads them in a conversation.
pub(super) fn refuse_images(images: Option<&Vec<String>>, param: &str) -> Result<(), Fault> {
    match images.is_some_and(|images| !images.is_empty()) {
        false => Ok(()),
        true => {
            let what =
                "language models here read text only: leave out `images`; a CLIP model embeds images at /v1/embeddings";
            Err(Fault::invalid(what).at(param))
        }
    }
}

/// Messages with OpenAI's fields, which chat templates read. Ollama's tool calls need no ids, and
/// their results name the tool; the ids that templates need are made here.
pub(super) fn messages(messages: Vec<Message>) -> Result<Vec<Map<String, Value>>, Fault> {
    let mut calls = Calls::default();
    let each = messages.into_iter().enumerate().map(|(i, message)| {
        refuse_images(message.images.as_ref(), &format!("messages[{i}].images"))?;
        let mut fields = Map::new();
        fields.insert("role".into(), message.role.into());
        fields.insert("content".into(), message.content.map_or(Value::Null, Value::String));
        if let Some(thinking) = message.thinking.filter(|thinking| !thinking.is_empty()) {
            fields.insert("reasoning_content".into(), thinking.into());
        }
        let made: Vec<Value> = message.tool_calls.into_iter().flatten().map(|call| calls.add(call)).collect();
        if !made.is_empty() {
            fields.insert("tool_calls".into(), made.into());
        }
        if fields.get("role").is_some_and(|role| role == "tool") {
            let id = calls.answered(message.tool_call_id, message.tool_name.as_deref());
            fields.extend(id.map(|id| ("tool_call_id".to_owned(), Value::String(id))));
            fields.extend(message.tool_name.map(|name| ("name".to_owned(), Value::String(name))));
        }
        Ok(fields)
    });
    each.collect()
}

/// Tool calls of a conversation that have no result yet.
#[derive(Default)]
struct Calls {
    open: VecDeque<(String, String)>,
    count: usize,
}

impl Calls {
    /// The call in OpenAI's format. Its arguments stay an object.
    fn add(&mut self, call: MessageCall) -> Value {
        self.count += 1;
        // Mistral's templates only accept ids of nine letters and digits.
        let id = call.id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("call{:05}", self.count % 100_000));
        let (name, arguments) = (call.function.name, call.function.arguments);
        self.open.push_back((id.clone(), name.clone()));
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    }

    /// The id of the call whose result a message is: the one that it names, the first call of that
    /// tool, or the first call.
    fn answered(&mut self, id: Option<String>, name: Option<&str>) -> Option<String> {
        let id = id.filter(|id| !id.is_empty());
        let at = match (&id, name) {
            (Some(id), _) => self.open.iter().position(|(open, _)| open == id),
            (None, Some(name)) => self.open.iter().position(|(_, open)| open == name),
            (None, None) => (!self.open.is_empty()).then_some(0),
        };
        let open = at.and_then(|at| self.open.remove(at)).map(|(id, _)| id);
        id.or(open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderMap;

    fn request(params: Value) -> Result<ChatRequest, Fault> {
        let field = |name: &str| params.get(name).cloned().unwrap_or_default();
        let shared = SharedParams {
            options: serde_json::from_value(field("options")).unwrap(),
            format: serde_json::from_value(field("format")).unwrap(),
            think: serde_json::from_value(field("think")).unwrap(),
            logprobs: None,
            top_logprobs: Some(0),
        };
        shared.request("m", &HttpContext::new(&HeaderMap::new()))
    }

    #[test]
    fn options_become_sampling_parameters() {
        let options = json!({"temperature": 0.5, "top_k": -3, "top_p": 0.25, "min_p": 0.125, "repeat_penalty": 1.5,
            "presence_penalty": 1.0, "frequency_penalty": -1.0, "seed": 7, "num_predict": 9, "stop": ["x"]});
        let request = request(json!({"options": options, "think": false})).unwrap();
        let want = ChatRequest {
            model: Some("m".into()),
            max_tokens: Some(9),
            temperature: Some(0.5),
            top_k: Some(0),
            top_p: Some(0.25),
            min_p: Some(0.125),
            repetition_penalty: Some(1.5),
            presence_penalty: Some(1.0),
            frequency_penalty: Some(-1.0),
            seed: Some(7),
            stop: Some(OneOrMore::More(vec!["x".into()])),
            reasoning_effort: Some(ReasoningEffort::None),
            ..ChatRequest::default()
        };
        assert_eq!(request, want);
    }

    #[test]
    fn num_predict_format_and_think_are_translated() {
        assert_eq!(request(json!({"options": {"num_predict": -1, "stop": []}})).unwrap().max_tokens, None);
        assert_eq!(request(json!({"format": ""})).unwrap().response_format, None);
        let json_mode = request(json!({"format": "json"})).unwrap().response_format;
        assert_eq!(json_mode, Some(ResponseFormat::JsonObject { schema: None }));
        let schema = request(json!({"format": {"type": "integer"}})).unwrap().response_format;
        assert!(
            matches!(schema, Some(ResponseFormat::JsonSchema { json_schema }) if json_schema.schema == Some(json!({"type": "integer"})))
        );
        let thinking = request(json!({"think": true})).unwrap();
        let switch = thinking.chat_template_kwargs.unwrap();
        assert_eq!((thinking.reasoning_effort, &switch["enable_thinking"]), (None, &json!(true)));
        assert_eq!(request(json!({"format": "xml"})).unwrap_err().param.as_deref(), Some("format"));
    }

    #[test]
    fn tool_calls_and_their_results_get_ids() {
        let given = json!([
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "thinking": "t", "tool_calls": [
                {"function": {"name": "f", "arguments": {"x": 1}}}, {"function": {"name": "g", "arguments": {}}}]},
            {"role": "tool", "content": "2", "tool_name": "g"},
            {"role": "tool", "content": "1"},
        ]);
        let made = messages(serde_json::from_value(given).unwrap()).unwrap();
        let calls = made[1]["tool_calls"].as_array().unwrap();
        assert_eq!(made[1]["reasoning_content"], "t");
        assert_eq!(calls[0]["function"], json!({"name": "f", "arguments": {"x": 1}}));
        assert_eq!((&made[2]["tool_call_id"], &made[3]["tool_call_id"]), (&calls[1]["id"], &calls[0]["id"]));
        assert_eq!((&made[2]["name"], made[3].get("name")), (&json!("g"), None));
        assert!(calls.iter().all(|call| call["id"].as_str().unwrap().len() == 9));
    }

    #[test]
    fn images_are_refused_by_name() {
        let given = json!([{"role": "user", "content": "a", "images": ["AAEC"]}]);
        let fault = messages(serde_json::from_value(given).unwrap()).unwrap_err();
        assert_eq!(fault.param.as_deref(), Some("messages[0].images"));
        assert!(messages(serde_json::from_value(json!([{"role": "user", "images": []}])).unwrap()).is_ok());
    }
}
