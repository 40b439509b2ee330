//! Renders a conversation and its tools into a prompt.

use super::params::AnswerFormat;
use crate::error::Fault;
use sconce_api::openai::chat::ChatRequest;
use sconce_api::openai::tools::{Function, Tool, ToolChoice, ToolMode};
use sconce_engine::{CallGrammar, ChatOptions, Format, Llm, Message, ToolFunction, ToolSyntax};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Longest function name, as at OpenAI.
const MAX_NAME_LENGTH: usize = 64;

/// A rendered conversation.
pub(super) struct Prompt {
    /// The rendered text.
    pub(super) text: String,
    /// Structured output of the answer.
    pub(super) format: Option<Format>,
    /// How to parse tool calls in the answer; `None` without tools.
    pub(super) calls: Option<Calls>,
    /// Control tokens that mark tool calls.
    pub(super) marks: Vec<(u32, &'static str)>,
}

/// How to parse tool calls in an answer.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    pub(super) syntax: ToolSyntax,
    pub(super) names: Arc<BTreeSet<String>>,
    pub(super) parallel: bool,
}

/// `tools` and `tool_choice` of a request.
#[derive(Debug)]
pub(super) enum Choice<'a> {
    /// No tools, or none may be called.
    None,
    /// Tools may be called.
    Auto(&'a [Tool]),
    /// One of these functions must be called; the prompt shows all tools.
    Required(&'a [Tool], Vec<&'a Function>),
}

impl<'a> Choice<'a> {
    /// Reads and checks the fields; needs no model.
    pub(super) fn of(request: &'a ChatRequest) -> Result<Choice<'a>, Fault> {
        let tools = request.tools.as_deref().unwrap_or_default();
        let mut names = BTreeSet::new();
        for (i, Tool { function, .. }) in tools.iter().enumerate() {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
            if function.parameters.as_ref().is_some_and(|schema| !schema.is_object()) {
                let what = format!("the `parameters` of `{}` must be a JSON schema, which is an object", function.name);
                return Err(Fault::invalid(what).at(&format!("tools[{i}].function.parameters")));
            }
            let name = function.name.as_str();
            if name.is_empty() || name.len() > MAX_NAME_LENGTH || !name.chars().all(allowed) {
                let what =
                    format!("a function name must be 1 to {MAX_NAME_LENGTH} characters of a-z, A-Z, 0-9, _, - and .");
                return Err(Fault::invalid(what).at(&format!("tools[{i}].function.name")));
            }
            if !names.insert(name) {
                let what = format!("two functions have the name `{name}`");
                return Err(Fault::invalid(what).at(&format!("tools[{i}].function.name")));
            }
        }
        let without = |what: &str| {
            let what = format!("`tool_choice` {what}, but the request has no `tools`");
            Err(Fault::invalid(what).at("tool_choice"))
        };
        match &request.tool_choice {
            Some(ToolChoice::Mode(ToolMode::None)) => Ok(Choice::None),
            None | Some(ToolChoice::Mode(ToolMode::Auto)) if tools.is_empty() => Ok(Choice::None),
            None | Some(ToolChoice::Mode(ToolMode::Auto)) => Ok(Choice::Auto(tools)),
            Some(ToolChoice::Mode(ToolMode::Required)) if tools.is_empty() => without("requires a call"),
            Some(ToolChoice::Mode(ToolMode::Required)) => {
                Ok(Choice::Required(tools, tools.iter().map(|tool| &tool.function).collect()))
            }
            Some(ToolChoice::Named { function, .. }) if tools.is_empty() => {
                without(&format!("names `{}`", function.name))
            }
            Some(ToolChoice::Named { function, .. }) => {
                match tools.iter().find(|tool| tool.function.name == function.name) {
                    Some(tool) => Ok(Choice::Required(tools, vec![&tool.function])),
                    None => {
                        let what = format!("`tool_choice` names `{}`, which is not in `tools`", function.name);
                        Err(Fault::invalid(what).at("tool_choice"))
                    }
                }
            }
        }
    }
}

/// Renders the prompt, and derives the answer's grammar.
pub(super) fn prompt(llm: &Llm, request: &ChatRequest, format: Option<AnswerFormat>) -> Result<Prompt, Fault> {
    let choice = Choice::of(request)?;
    let visible_tools = match &choice {
        Choice::None => None,
        Choice::Auto(tools) | Choice::Required(tools, _) => Some(*tools),
    };
    let template = llm.template(visible_tools.is_some());
    let syntax = ToolSyntax::of(template);
    let tools = visible_tools.map(template_tools);
    let has_developer_role = template.is_some_and(|text| text.contains("developer"));
    let messages = normalized(&request.messages, has_developer_role)?;
    let messages = messages.into_iter().enumerate().map(|(i, message)| {
        let invalid = |what: String| Fault::invalid(format!("message {i}: {what}")).at(&format!("messages[{i}]"));
        Message::try_from(message).map_err(invalid).map(Message::with_objects_as_arguments)
    });
    let messages: Vec<Message> = messages.collect::<Result<_, _>>()?;
    let options =
        ChatOptions::default().with_tools(tools).with_extra(request.chat_template_kwargs.clone().unwrap_or_default());
    let text = llm.render(&messages, &options).map_err(|e| Fault::from(e).at("messages"))?;
    let parallel = request.parallel_tool_calls.unwrap_or(true);
    let control = |mark: &str| llm.control(mark);
    let calls_grammar = |functions: &[&Function], instead: Option<&Value>| {
        let of = |f: &&Function| ToolFunction { name: f.name.clone(), parameters: f.parameters.clone() };
        let functions: Vec<ToolFunction> = functions.iter().map(of).collect();
        let grammar = CallGrammar { syntax, functions: &functions, parallel, instead }.grammar(&control);
        grammar.map(Format::Grammar).map_err(|what| Fault::invalid(what).at("tools"))
    };
    let format = match (&choice, format) {
        (Choice::None, format) => format.map(Format::from),
        (Choice::Required(_, functions), _) => Some(calls_grammar(functions, None)?),
        (Choice::Auto(_), None) => None,
        (Choice::Auto(tools), Some(AnswerFormat::Json(schema))) => {
            let functions: Vec<&Function> = tools.iter().map(|tool| &tool.function).collect();
            Some(calls_grammar(&functions, Some(&schema))?)
        }
        (Choice::Auto(_), Some(AnswerFormat::Other(_))) => {
            let what = "tool calls cannot be combined with this structured output; set `tool_choice` to \"none\" or \"required\"";
            return Err(Fault::invalid(what).at("structured_outputs"));
        }
    };
    let names = visible_tools.into_iter().flatten().map(|tool| tool.function.name.clone()).collect();
    let calls = visible_tools.map(|_| Calls { syntax, names: Arc::new(names), parallel });
    let marks = if calls.is_some() { llm.markers(syntax) } else { Vec::new() };
    Ok(Prompt { text, format, calls, marks })
}

/// Tools as chat templates expect them: each with a schema, and without `strict`.
fn template_tools(tools: &[Tool]) -> Value {
    let each = tools.iter().map(|tool| {
        let mut tool = tool.clone();
        tool.function.parameters.get_or_insert_with(|| json!({"type": "object", "properties": {}}));
        tool.function.strict = None;
        json!(tool)
    });
    each.collect()
}

/// Normalizes messages for chat templates: joins content parts, and maps unknown roles.
fn normalized(messages: &[Map<String, Value>], has_developer_role: bool) -> Result<Vec<Map<String, Value>>, Fault> {
    if messages.is_empty() {
        return Err(Fault::invalid("`messages` is empty; send at least one").at("messages"));
    }
    let each = messages.iter().enumerate().map(|(i, message)| {
        let invalid = |field: &str, what: String| Fault::invalid(what).at(&format!("messages[{i}].{field}"));
        for field in ["name", "tool_call_id"] {
            if message.get(field).is_some_and(|value| !value.is_string() && !value.is_null()) {
                return Err(invalid(field, format!("the `{field}` of a message must be a string")));
            }
        }
        if message
            .get("content")
            .is_some_and(|content| !content.is_string() && !content.is_null() && !content.is_array())
        {
            return Err(invalid("content", "the `content` of a message must be a string or a list of parts".into()));
        }
        let calls = message.get("tool_calls").filter(|calls| !calls.is_null());
        // Arguments may be a JSON string, as at OpenAI, or an object: templates read both.
        let is_call = |call: &Value| call["id"].is_string() && call["function"]["name"].is_string();
        if calls.is_some_and(|calls| !calls.as_array().is_some_and(|all| all.iter().all(is_call))) {
            return Err(invalid(
                "tool_calls",
                "each of a message's `tool_calls` needs an `id` and a `function` with a `name`".into(),
            ));
        }
        let mut message = message.clone();
        if !has_developer_role && message.get("role").is_some_and(|role| role == "developer") {
            message.insert("role".into(), json!("system"));
        }
        if let Some(Value::Array(parts)) = message.get("content") {
            let text = joined(parts).map_err(|what| invalid("content", what))?;
            message.insert("content".into(), text.into());
        }
        Ok(message)
    });
    each.collect()
}

/// Joins the text of content parts with line breaks.
fn joined(parts: &[Value]) -> Result<String, String> {
    let texts = parts.iter().map(|part| match part.get("type").and_then(Value::as_str) {
        Some("text") => {
            part.get("text").and_then(Value::as_str).ok_or("a content part of type `text` needs a `text`".to_owned())
        }
        Some("refusal") => part
            .get("refusal")
            .and_then(Value::as_str)
            .ok_or("a content part of type `refusal` needs a `refusal`".to_owned()),
        Some(other) => Err(format!("this model accepts text only, no content part of type `{other}`")),
        None => Err("a content part needs a `type`".into()),
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(fields: Value) -> ChatRequest {
        let mut whole = json!({"messages": []});
        whole.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn tool_choice_is_parsed_and_validated() {
        let tools =
            json!([{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}}]);
        let with = |choice: Value| chat(json!({"tools": tools, "tool_choice": choice}));
        assert!(matches!(Choice::of(&chat(json!({}))), Ok(Choice::None)));
        assert!(matches!(Choice::of(&with(json!("none"))), Ok(Choice::None)));
        assert!(matches!(Choice::of(&with(Value::Null)), Ok(Choice::Auto(_))));
        assert!(matches!(Choice::of(&with(json!("auto"))), Ok(Choice::Auto(_))));
        assert!(matches!(Choice::of(&with(json!("required"))), Ok(Choice::Required(_, both)) if both.len() == 2));
        let named = with(json!({"type": "function", "function": {"name": "g"}}));
        assert!(matches!(Choice::of(&named), Ok(Choice::Required(all, one)) if all.len() == 2 && one[0].name == "g"));
        let bad = [
            (with(json!({"type": "function", "function": {"name": "h"}})), "tool_choice"),
            (chat(json!({"tool_choice": "required"})), "tool_choice"),
            (chat(json!({"tools": [{"type": "function", "function": {"name": "a b"}}]})), "tools[0].function.name"),
            (
                chat(json!({"tools": [{"type": "function", "function": {"name": "a", "parameters": [1]}}]})),
                "tools[0].function.parameters",
            ),
            (
                chat(
                    json!({"tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "f"}}]}),
                ),
                "tools[1].function.name",
            ),
        ];
        for (request, param) in bad {
            assert_eq!(Choice::of(&request).unwrap_err().param.as_deref(), Some(param));
        }
    }

    #[test]
    fn template_tools_omit_strict_and_have_parameters() {
        let tools: Vec<Tool> = serde_json::from_value(json!([
            {"type": "function", "function": {"name": "f", "description": "d", "strict": true}},
        ]))
        .unwrap();
        let visible_tools = json!([{"type": "function", "function": {"name": "f", "description": "d",
            "parameters": {"type": "object", "properties": {}}}}]);
        assert_eq!(template_tools(&tools).to_string(), visible_tools.to_string());
    }

    #[test]
    fn text_parts_are_joined_and_images_refused() {
        let messages = json!([
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ]);
        let messages: Vec<Map<String, Value>> = serde_json::from_value(messages).unwrap();
        let joined = normalized(&messages, false).unwrap();
        assert_eq!((&joined[0]["role"], &joined[1]["content"]), (&json!("system"), &json!("a\nb")));
        assert_eq!(normalized(&messages, true).unwrap()[0]["role"], "developer");
        let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]);
        let fault = normalized(&serde_json::from_value::<Vec<_>>(image).unwrap(), true).unwrap_err();
        assert_eq!(fault.param.as_deref(), Some("messages[0].content"));
        assert!(fault.message.contains("image_url"));
        assert!(normalized(&[], true).is_err());
    }
}
