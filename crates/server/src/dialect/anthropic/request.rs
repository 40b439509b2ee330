//! Translates requests into chat requests.

use super::messages;
use crate::error::Fault;
use crate::http_context::HttpContext;
use sconce_api::anthropic::request::{
    MessagesRequest, OutputConfig, Thinking, ThinkingDisplay, ThinkingKind, Tool as ToolDefinition,
    ToolChoice as AnthropicToolChoice, ToolChoiceKind,
};
use sconce_api::openai::chat::{ChatRequest, ReasoningEffort};
use sconce_api::openai::common::{NamedSchema, OneOrMore, ResponseFormat};
use sconce_api::openai::tools::{Function, FunctionName, Tool, ToolChoice, ToolKind, ToolMode};
use serde_json::Value;

/// Whether the response has the text of thoughts.
pub(super) fn shows_thinking(request: &MessagesRequest) -> bool {
    request.thinking.as_ref().and_then(|thinking| thinking.display) != Some(ThinkingDisplay::Omitted)
}

/// Translates a request.
pub(super) fn chat_request(request: MessagesRequest, context: &HttpContext) -> Result<ChatRequest, Fault> {
    for (field, is_set) in [("container", request.container.is_some()), ("mcp_servers", request.mcp_servers.is_some())]
    {
        if is_set {
            let what =
                format!("`{field}` is not supported: this server runs no tools; give them as `tools`, and run them");
            return Err(Fault::invalid(what).at(field));
        }
    }
    let OutputConfig { effort, format } = request.output_config.unwrap_or_default();
    let (reasoning_effort, reasoning_budget) = reasoning(request.thinking.as_ref(), effort, request.max_tokens)?;
    let (tool_choice, parallel_tool_calls) = match request.tool_choice {
        Some(choice) => tool_choice(choice)?,
        None => (None, None),
    };
    let tools = request.tools.map(|tools| functions(tools, is_enforced(tool_choice.as_ref()), context)).transpose()?;
    Ok(ChatRequest {
        model: request.model,
        messages: messages::chat_messages(request.system, request.messages)?,
        max_tokens: request.max_tokens,
        temperature: request.temperature,
        top_p: request.top_p,
        top_k: request.top_k,
        min_p: request.min_p,
        seed: request.seed,
        stop: request.stop_sequences.filter(|all| !all.is_empty()).map(OneOrMore::More),
        response_format: format.map(|format| ResponseFormat::JsonSchema { json_schema: named(format.schema) }),
        tools,
        tool_choice,
        parallel_tool_calls,
        reasoning_effort,
        reasoning_budget,
        ..ChatRequest::default()
    })
}

/// How much the model reasons.
fn reasoning(
    thinking: Option<&Thinking>,
    effort: Option<ReasoningEffort>,
    max_tokens: Option<usize>,
) -> Result<(Option<ReasoningEffort>, Option<usize>), Fault> {
    let Some(Thinking { kind, budget_tokens, .. }) = thinking else { return Ok((effort, None)) };
    let invalid = |what: String| Fault::invalid(what).at("thinking.budget_tokens");
    match (kind, budget_tokens) {
        (ThinkingKind::Disabled, None) => Ok((Some(ReasoningEffort::None), None)),
        (ThinkingKind::Adaptive, None) => Ok((effort, None)),
        (ThinkingKind::Enabled, Some(budget)) => match (*budget, max_tokens) {
            (0, _) => {
                Err(invalid("the budget is 0; to answer without a thought, set `thinking.type` to `disabled`".into()))
            }
            (budget, Some(most)) if budget >= most => {
                Err(invalid(format!("the budget is {budget}; it must be less than `max_tokens`, which is {most}")))
            }
            (budget, _) => Ok((Some(effort.unwrap_or(ReasoningEffort::Medium)), Some(budget))),
        },
        (ThinkingKind::Enabled, None) => {
            Err(invalid("`thinking` of type `enabled` needs `budget_tokens`: the most tokens of the thought".into()))
        }
        (ThinkingKind::Disabled | ThinkingKind::Adaptive, Some(_)) => {
            Err(invalid("only `thinking` of type `enabled` has `budget_tokens`".into()))
        }
    }
}

/// The choice, and whether several calls are allowed.
fn tool_choice(choice: AnthropicToolChoice) -> Result<(Option<ToolChoice>, Option<bool>), Fault> {
    let AnthropicToolChoice { kind, name, disable_parallel_tool_use } = choice;
    let translated = match (kind, name) {
        (ToolChoiceKind::Auto, None) => ToolChoice::Mode(ToolMode::Auto),
        (ToolChoiceKind::Any, None) => ToolChoice::Mode(ToolMode::Required),
        (ToolChoiceKind::None, None) => ToolChoice::Mode(ToolMode::None),
        (ToolChoiceKind::Tool, Some(name)) => {
            ToolChoice::Named { kind: ToolKind::Function, function: FunctionName { name } }
        }
        (ToolChoiceKind::Tool, None) => {
            let what = "`tool_choice` of type `tool` needs the `name` of a tool";
            return Err(Fault::invalid(what).at("tool_choice.name"));
        }
        (_, Some(_)) => {
            let what = "only `tool_choice` of type `tool` has a `name`";
            return Err(Fault::invalid(what).at("tool_choice.name"));
        }
    };
    Ok((Some(translated), disable_parallel_tool_use.map(|disabled| !disabled)))
}

/// Whether a grammar enforces the schemas of tools.
fn is_enforced(choice: Option<&ToolChoice>) -> bool {
    matches!(choice, Some(ToolChoice::Named { .. } | ToolChoice::Mode(ToolMode::Required)))
}

fn functions(tools: Vec<ToolDefinition>, is_enforced: bool, context: &HttpContext) -> Result<Vec<Tool>, Fault> {
    let each = tools.into_iter().enumerate().map(|(i, tool)| {
        if let Some(kind) = tool.kind.filter(|kind| kind != "custom") {
            let what = format!("tools of type `{kind}` are not supported; describe the tool with `input_schema`");
            return Err(Fault::invalid(what).at(&format!("tools[{i}].type")));
        }
        if tool.strict == Some(true) && !is_enforced {
            context.note_ignored(&format!("tools[{i}].strict"));
        }
        let Some(schema) = tool.input_schema else {
            let what = format!("the tool `{}` needs an `input_schema`", tool.name);
            return Err(Fault::invalid(what).at(&format!("tools[{i}].input_schema")));
        };
        let parameters = Some(Value::Object(schema));
        let function = Function { name: tool.name, description: tool.description, parameters, strict: None };
        Ok(Tool { kind: ToolKind::Function, function })
    });
    each.collect()
}

fn named(schema: Value) -> NamedSchema {
    NamedSchema { name: None, description: None, schema: Some(schema), strict: None }
}

/// A fault of a chat request, with the names that the fields have in this API.
pub(super) fn renamed(fault: Fault) -> Fault {
    let Some(param) = &fault.param else { return fault };
    let name = match param.as_str() {
        "stop" => "stop_sequences".to_owned(),
        "max_completion_tokens" => "max_tokens".to_owned(),
        "response_format" | "structured_outputs" => "output_config.format".to_owned(),
        "reasoning_effort" => "output_config.effort".to_owned(),
        "reasoning_budget" => "thinking.budget_tokens".to_owned(),
        // The messages of the chat request are not the same ones.
        messages if messages.starts_with("messages[") => "messages".to_owned(),
        tools => tools.replace(".function.parameters", ".input_schema").replace(".function.", "."),
    };
    fault.at(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderMap;
    use serde_json::json;

    fn translated(more: Value) -> Result<ChatRequest, Fault> {
        let mut whole = json!({"max_tokens": 100, "messages": [{"role": "user", "content": "a"}]});
        whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        chat_request(serde_json::from_value(whole).unwrap(), &HttpContext::new(&HeaderMap::new()))
    }

    fn chat(more: Value) -> ChatRequest {
        translated(more).unwrap()
    }

    #[test]
    fn sampling_and_limits_are_passed_on() {
        let chat = chat(json!({"temperature": 0.5, "top_p": 0.25, "top_k": 7, "stop_sequences": ["x", "y"]}));
        assert_eq!(
            (chat.max_tokens, chat.temperature, chat.top_p, chat.top_k),
            (Some(100), Some(0.5), Some(0.25), Some(7))
        );
        assert_eq!(chat.stop, Some(OneOrMore::More(vec!["x".into(), "y".into()])));
        assert_eq!(
            super::chat_request(MessagesRequest { stop_sequences: Some(Vec::new()), ..request() }, &context())
                .unwrap()
                .stop,
            None
        );
    }

    fn request() -> MessagesRequest {
        serde_json::from_value(json!({"messages": [{"role": "user", "content": "a"}]})).unwrap()
    }

    fn context() -> std::sync::Arc<HttpContext> {
        HttpContext::new(&HeaderMap::new())
    }

    #[test]
    fn thinking_decides_effort_and_budget() {
        let of = |more| {
            let chat = chat(more);
            (chat.reasoning_effort, chat.reasoning_budget)
        };
        assert_eq!(of(json!({})), (None, None));
        assert_eq!(of(json!({"thinking": {"type": "disabled"}})), (Some(ReasoningEffort::None), None));
        let enabled = json!({"thinking": {"type": "enabled", "budget_tokens": 50}});
        assert_eq!(of(enabled), (Some(ReasoningEffort::Medium), Some(50)));
        let low = json!({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}});
        assert_eq!(of(low), (Some(ReasoningEffort::Low), None));
        for thinking in [
            json!({"type": "enabled"}),
            json!({"type": "enabled", "budget_tokens": 0}),
            json!({"type": "enabled", "budget_tokens": 100}),
            json!({"type": "disabled", "budget_tokens": 5}),
        ] {
            let fault = translated(json!({"thinking": thinking})).unwrap_err();
            assert_eq!(fault.param.as_deref(), Some("thinking.budget_tokens"), "{thinking}");
        }
        let omitted = json!({"messages": [], "thinking": {"type": "adaptive", "display": "omitted"}});
        assert!(!shows_thinking(&serde_json::from_value(omitted).unwrap()) && shows_thinking(&request()));
    }

    #[test]
    fn tools_and_choices_are_translated() {
        let tools = json!([{"name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": true}]);
        let with = |choice: Value| chat(json!({"tools": tools, "tool_choice": choice}));
        let chat = with(json!({"type": "any", "disable_parallel_tool_use": true}));
        assert_eq!(chat.tool_choice, Some(ToolChoice::Mode(ToolMode::Required)));
        assert_eq!(chat.parallel_tool_calls, Some(false));
        let expected = json!([{"type": "function", "function":
            {"name": "f", "description": "d", "parameters": {"type": "object"}}}]);
        assert_eq!(json!(chat.tools), expected);
        let named = with(json!({"type": "tool", "name": "f"})).tool_choice;
        assert!(matches!(named, Some(ToolChoice::Named { function, .. }) if function.name == "f"));
        assert_eq!(with(json!({"type": "none"})).tool_choice, Some(ToolChoice::Mode(ToolMode::None)));
        assert_eq!(with(json!({"type": "auto"})).tool_choice, Some(ToolChoice::Mode(ToolMode::Auto)));
        for (more, param) in [
            (json!({"tools": [{"type": "bash_20250124", "name": "bash"}]}), "tools[0].type"),
            (json!({"tools": [{"name": "f"}]}), "tools[0].input_schema"),
            (json!({"tools": tools, "tool_choice": {"type": "tool"}}), "tool_choice.name"),
            (json!({"tools": tools, "tool_choice": {"type": "any", "name": "f"}}), "tool_choice.name"),
            (json!({"mcp_servers": []}), "mcp_servers"),
            (json!({"container": "c"}), "container"),
        ] {
            assert_eq!(translated(more.clone()).unwrap_err().param.as_deref(), Some(param), "{more}");
        }
    }

    #[test]
    fn strict_tools_are_reported_unless_a_grammar_enforces_them() {
        let tools = json!([{"name": "f", "input_schema": {}, "strict": true}]);
        for (choice, ignored) in [("auto", Some("tools[0].strict")), ("any", None)] {
            let mut whole = json!({"messages": [{"role": "user", "content": "a"}], "tools": tools});
            whole["tool_choice"] = json!({"type": choice});
            let context = context();
            chat_request(serde_json::from_value(whole).unwrap(), &context).unwrap();
            assert_eq!(context.ignored_header().as_ref().and_then(|v| v.to_str().ok()), ignored);
        }
    }

    #[test]
    fn a_schema_is_a_response_format() {
        let schema = json!({"type": "integer"});
        let chat = chat(json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}}));
        assert!(
            matches!(chat.response_format, Some(ResponseFormat::JsonSchema { json_schema }) if json_schema.schema == Some(schema))
        );
    }

    #[test]
    fn faults_have_the_names_of_this_api() {
        let of = |param: &str| renamed(Fault::invalid("x").at(param)).param.unwrap();
        assert_eq!(of("stop"), "stop_sequences");
        assert_eq!(of("tools[0].function.parameters"), "tools[0].input_schema");
        assert_eq!(of("tools[1].function.name"), "tools[1].name");
        assert_eq!(of("messages[3].content"), "messages");
        assert_eq!((of("temperature"), renamed(Fault::invalid("x")).param), ("temperature".into(), None));
    }
}
