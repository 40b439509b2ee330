//! Translates requests into chat requests, and begins their responses.

use crate::dialect::openai::metadata;
use crate::error::Fault;
use crate::http_context::HttpContext;
use sconce_api::openai::chat::ChatRequest;
use sconce_api::openai::common::{NamedSchema, ResponseFormat};
use sconce_api::openai::responses::request::{
    AllowedTool, FunctionTool, ReasoningConfig, ResponseRequest, ResponseToolChoice, TextConfig, TextFormat,
};
use sconce_api::openai::responses::response::{Response, ResponseStatus};
use sconce_api::openai::tools::{Function, FunctionName, Tool, ToolChoice, ToolKind, ToolMode};
use sconce_api::text_or::TextOr;
use serde_json::{Map, Value};

/// The part of the response that `include` can ask for.
const LOGPROBS: &str = "message.output_text.logprobs";
/// Asks for thoughts that clients can keep. Ours can be read anyway.
const ENCRYPTED_THOUGHTS: &str = "reasoning.encrypted_content";

/// Whether the response has logprobs.
pub(super) fn has_logprobs(request: &ResponseRequest) -> bool {
    request.include.iter().flatten().any(|part| part == LOGPROBS)
}

/// Whether thoughts are given as summaries.
pub(super) fn has_summaries(request: &ResponseRequest) -> bool {
    request.reasoning.as_ref().is_some_and(|reasoning| reasoning.summary.or(reasoning.generate_summary).is_some())
}

/// Refuses unsupported fields, and records those without effect.
pub(super) fn check(request: &ResponseRequest, context: &HttpContext) -> Result<(), Fault> {
    if request.background == Some(true) {
        let what = "`background` is not supported: set `stream` to true, or wait for the response";
        return Err(Fault::invalid(what).at("background"));
    }
    for (field, is_set, instead) in [
        ("conversation", request.conversation.is_some(), "`previous_response_id`"),
        ("prompt", request.prompt.is_some(), "`instructions` and `input`"),
    ] {
        if is_set {
            return Err(Fault::invalid(format!("`{field}` is not supported; use {instead}")).at(field));
        }
    }
    if request.max_output_tokens == Some(0) {
        return Err(Fault::invalid("`max_output_tokens` is 0; it must be at least one").at("max_output_tokens"));
    }
    request.metadata.as_ref().map(metadata::check).transpose()?;
    let has_other_parts = request.include.iter().flatten().any(|part| part != LOGPROBS && part != ENCRYPTED_THOUGHTS);
    let verbosity = request.text.as_ref().and_then(|text| text.verbosity.as_deref());
    let obfuscation = request.stream_options.as_ref().and_then(|options| options.include_obfuscation);
    for (field, is_ignored) in [
        ("include", has_other_parts),
        ("text.verbosity", verbosity.is_some_and(|verbosity| verbosity != "medium")),
        ("stream_options.include_obfuscation", obfuscation == Some(true)),
        ("top_logprobs", request.top_logprobs.is_some_and(|n| n > 0) && !has_logprobs(request)),
    ] {
        if is_ignored {
            context.note_ignored(field);
        }
    }
    Ok(())
}

/// The chat request with these messages.
pub(super) fn chat_request(
    request: &ResponseRequest,
    messages: Vec<Map<String, Value>>,
    context: &HttpContext,
) -> Result<ChatRequest, Fault> {
    let (tool_choice, allowed) = request.tool_choice.as_ref().map(tool_choice).transpose()?.unwrap_or_default();
    let is_enforced = matches!(tool_choice, Some(ToolChoice::Named { .. } | ToolChoice::Mode(ToolMode::Required)));
    let mut tools = request.tools.as_deref().map(|tools| functions(tools, is_enforced, context)).transpose()?;
    if let (Some(tools), Some(allowed)) = (&mut tools, allowed) {
        // Tools that may not be called are not shown.
        tools.retain(|tool| allowed.contains(&tool.function.name.as_str()));
    }
    let logprobs = has_logprobs(request);
    Ok(ChatRequest {
        model: request.model.clone(),
        messages,
        max_tokens: request.max_output_tokens,
        temperature: request.temperature,
        top_p: request.top_p,
        top_k: request.top_k,
        min_p: request.min_p,
        seed: request.seed,
        logprobs: Some(logprobs),
        top_logprobs: request.top_logprobs.filter(|_| logprobs),
        response_format: request.text.as_ref().and_then(|text| text.format.as_ref()).and_then(response_format),
        tools,
        tool_choice,
        parallel_tool_calls: request.parallel_tool_calls,
        reasoning_effort: request.reasoning.as_ref().and_then(|reasoning| reasoning.effort),
        ..ChatRequest::default()
    })
}

fn response_format(format: &TextFormat) -> Option<ResponseFormat> {
    match format {
        TextFormat::Text => None,
        TextFormat::JsonObject => Some(ResponseFormat::JsonObject { schema: None }),
        TextFormat::JsonSchema { name, schema, strict, .. } => {
            let (name, schema) = (Some(name.clone()), Some(schema.clone()));
            let json_schema = NamedSchema { name, description: None, schema, strict: *strict };
            Some(ResponseFormat::JsonSchema { json_schema })
        }
    }
}

/// The choice, and the names of the tools that may be called if not all may.
fn tool_choice(choice: &TextOr<ResponseToolChoice>) -> Result<(Option<ToolChoice>, Option<Vec<&str>>), Fault> {
    let ResponseToolChoice { kind, name, mode, tools } = match choice {
        TextOr::Text(mode) => return Ok((Some(ToolChoice::Mode(tool_mode(mode, "tool_choice")?)), None)),
        TextOr::Other(choice) => choice,
    };
    let invalid = |what: &str, field: &str| Fault::invalid(what).at(&format!("tool_choice.{field}"));
    match (kind.as_str(), name) {
        ("function", Some(name)) => {
            let function = FunctionName { name: name.clone() };
            Ok((Some(ToolChoice::Named { kind: ToolKind::Function, function }), None))
        }
        ("function", None) => Err(invalid("`tool_choice` of type `function` needs the `name` of a function", "name")),
        ("allowed_tools", _) => {
            let mode = tool_mode(mode.as_deref().unwrap_or("auto"), "tool_choice.mode")?;
            let names = tools.iter().flatten().map(|AllowedTool { kind, name }| match (kind.as_str(), name) {
                ("function", Some(name)) => Ok(name.as_str()),
                _ => Err(invalid("`allowed_tools` need the type `function` and a `name`", "tools")),
            });
            Ok((Some(ToolChoice::Mode(mode)), Some(names.collect::<Result<_, _>>()?)))
        }
        (other, _) => Err(invalid(&format!("`tool_choice` of type `{other}` is not supported"), "type")),
    }
}

fn tool_mode(mode: &str, param: &str) -> Result<ToolMode, Fault> {
    match mode {
        "none" => Ok(ToolMode::None),
        "auto" => Ok(ToolMode::Auto),
        "required" => Ok(ToolMode::Required),
        other => {
            let what = format!("`{other}` is no choice of tools; use `none`, `auto` or `required`");
            Err(Fault::invalid(what).at(param))
        }
    }
}

fn functions(tools: &[FunctionTool], is_enforced: bool, context: &HttpContext) -> Result<Vec<Tool>, Fault> {
    let each = tools.iter().enumerate().map(|(i, tool)| {
        if tool.kind != "function" {
            let what =
                format!("tools of type `{}` are not supported: this server runs no tools; use `function`", tool.kind);
            return Err(Fault::invalid(what).at(&format!("tools[{i}].type")));
        }
        if tool.strict == Some(true) && !is_enforced {
            context.note_ignored(&format!("tools[{i}].strict"));
        }
        let function = Function {
            name: tool.name.clone(),
            description: tool.description.clone(),
            parameters: tool.parameters.clone().map(Value::Object),
            strict: None,
        };
        Ok(Tool { kind: ToolKind::Function, function })
    });
    each.collect()
}

/// The response to a request, before anything is generated.
pub(super) fn new_response(request: ResponseRequest, id: String, created_at: u64, model: String) -> Response {
    let TextConfig { format, verbosity } = request.text.unwrap_or_default();
    let ReasoningConfig { effort, summary, generate_summary } = request.reasoning.unwrap_or_default();
    Response {
        id,
        object: "response".into(),
        created_at,
        completed_at: None,
        status: ResponseStatus::InProgress,
        background: false,
        error: None,
        incomplete_details: None,
        instructions: request.instructions,
        max_output_tokens: request.max_output_tokens,
        metadata: request.metadata.unwrap_or_default(),
        model,
        output: Vec::new(),
        parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
        previous_response_id: request.previous_response_id,
        reasoning: ReasoningConfig { effort, summary: summary.or(generate_summary), generate_summary: None },
        store: request.store.unwrap_or(true),
        temperature: request.temperature,
        text: TextConfig { format: Some(format.unwrap_or(TextFormat::Text)), verbosity },
        tool_choice: request.tool_choice.unwrap_or_else(|| TextOr::Text("auto".into())),
        tools: request.tools.unwrap_or_default(),
        top_logprobs: request.top_logprobs.unwrap_or(0),
        top_p: request.top_p,
        truncation: request.truncation.unwrap_or_default(),
        usage: None,
        user: request.user,
    }
}

/// A fault of a chat request, with the names that the fields have in this API.
pub(super) fn renamed(fault: Fault) -> Fault {
    let Some(param) = &fault.param else { return fault };
    let name = match param.as_str() {
        "max_tokens" | "max_completion_tokens" => "max_output_tokens".to_owned(),
        "response_format" | "structured_outputs" => "text.format".to_owned(),
        "reasoning_effort" => "reasoning.effort".to_owned(),
        // The messages of the chat request are not the items of this one.
        messages if messages == "messages" || messages.starts_with("messages[") => "input".to_owned(),
        tools => tools.replace(".function.", "."),
    };
    fault.at(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderMap;
    use serde_json::json;

    fn request(fields: Value) -> ResponseRequest {
        serde_json::from_value(fields).unwrap()
    }

    fn translated(fields: Value) -> Result<ChatRequest, Fault> {
        let (request, context) = (request(fields), HttpContext::new(&HeaderMap::new()));
        check(&request, &context)?;
        chat_request(&request, Vec::new(), &context)
    }

    #[test]
    fn fields_are_translated() {
        let chat = translated(json!({"max_output_tokens": 9, "temperature": 0.5, "top_p": 0.25, "seed": 3,
            "reasoning": {"effort": "low"}, "include": ["message.output_text.logprobs"], "top_logprobs": 2,
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "integer"}, "strict": true}}}))
        .unwrap();
        assert_eq!(
            (chat.max_tokens, chat.temperature, chat.top_p, chat.seed),
            (Some(9), Some(0.5), Some(0.25), Some(3))
        );
        assert_eq!((chat.logprobs, chat.top_logprobs), (Some(true), Some(2)));
        assert_eq!(json!(chat.reasoning_effort), "low");
        let Some(ResponseFormat::JsonSchema { json_schema }) = chat.response_format else { panic!("no schema") };
        assert_eq!(json_schema.schema, Some(json!({"type": "integer"})));
        let plain = translated(json!({"text": {"format": {"type": "text"}}, "top_logprobs": 2})).unwrap();
        assert_eq!((plain.response_format, plain.top_logprobs, plain.logprobs), (None, None, Some(false)));
    }

    #[test]
    fn tools_and_choices_are_translated() {
        let tools = json!([
            {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": true},
            {"type": "function", "name": "g", "parameters": null},
        ]);
        let with = |choice: Value| translated(json!({"tools": tools, "tool_choice": choice})).unwrap();
        let chat = with(json!("required"));
        assert_eq!(chat.tool_choice, Some(ToolChoice::Mode(ToolMode::Required)));
        let expected = json!([
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}},
            {"type": "function", "function": {"name": "g"}},
        ]);
        assert_eq!(json!(chat.tools), expected);
        let named = with(json!({"type": "function", "name": "g"})).tool_choice;
        assert!(matches!(named, Some(ToolChoice::Named { function, .. }) if function.name == "g"));
        let allowed =
            with(json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}));
        assert_eq!(allowed.tool_choice, Some(ToolChoice::Mode(ToolMode::Required)));
        assert_eq!(allowed.tools.unwrap().iter().map(|tool| tool.function.name.as_str()).collect::<Vec<_>>(), ["g"]);
    }

    #[test]
    fn unsupported_fields_are_refused_by_name() {
        for (fields, param) in [
            (json!({"background": true}), "background"),
            (json!({"conversation": "conv_1"}), "conversation"),
            (json!({"prompt": {"id": "p"}}), "prompt"),
            (json!({"max_output_tokens": 0}), "max_output_tokens"),
            (json!({"metadata": {"a": "x".repeat(513)}}), "metadata"),
            (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
            (json!({"tools": [{"type": "mcp", "server_label": "s"}]}), "tools[0].type"),
            (json!({"tool_choice": "any"}), "tool_choice"),
            (json!({"tool_choice": {"type": "file_search"}}), "tool_choice.type"),
            (json!({"tool_choice": {"type": "function"}}), "tool_choice.name"),
            (json!({"tool_choice": {"type": "allowed_tools", "tools": [{"type": "mcp"}]}}), "tool_choice.tools"),
        ] {
            assert_eq!(translated(fields.clone()).unwrap_err().param.as_deref(), Some(param), "{fields}");
        }
        translated(json!({"background": false, "conversation": null})).unwrap();
    }

    #[test]
    fn fields_without_effect_are_reported() {
        let ignored = |fields| {
            let context = HttpContext::new(&HeaderMap::new());
            check(&request(fields), &context).unwrap();
            context.ignored_header().map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(ignored(json!({"include": ["reasoning.encrypted_content", LOGPROBS], "top_logprobs": 1})), None);
        assert_eq!(ignored(json!({"include": ["file_search_call.results"]})).as_deref(), Some("include"));
        assert_eq!(ignored(json!({"text": {"verbosity": "low"}})).as_deref(), Some("text.verbosity"));
        assert_eq!(ignored(json!({"top_logprobs": 3})).as_deref(), Some("top_logprobs"));
    }

    #[test]
    fn responses_repeat_the_request() {
        let request = request(json!({"instructions": "i", "metadata": {"a": "b"}, "store": false, "user": "u",
            "reasoning": {"effort": "high", "generate_summary": "auto"}}));
        assert!(has_summaries(&request) && !has_logprobs(&request));
        let response = json!(new_response(request, "resp_1".into(), 5, "m".into()));
        let expected = json!({"id": "resp_1", "object": "response", "created_at": 5, "completed_at": null,
            "status": "in_progress", "background": false, "error": null, "incomplete_details": null, "instructions": "i",
            "max_output_tokens": null, "metadata": {"a": "b"}, "model": "m", "output": [], "parallel_tool_calls": true,
            "previous_response_id": null, "reasoning": {"effort": "high", "summary": "auto"}, "store": false,
            "temperature": null, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
            "top_logprobs": 0, "top_p": null, "truncation": "disabled", "usage": null, "user": "u"});
        assert_eq!(response, expected);
    }

    #[test]
    fn faults_have_the_names_of_this_api() {
        let of = |param: &str| renamed(Fault::invalid("x").at(param)).param.unwrap();
        assert_eq!((of("max_tokens"), of("messages[2].content")), ("max_output_tokens".into(), "input".into()));
        assert_eq!((of("tools[0].function.name"), of("model")), ("tools[0].name".into(), "model".into()));
    }
}
