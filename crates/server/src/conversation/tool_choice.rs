//! `tools` and `tool_choice` of a chat request.

use crate::error::Fault;
use sconce_api::openai::chat::ChatRequest;
use sconce_api::openai::tools::{Function, Tool, ToolChoice, ToolMode};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Longest function name, as at OpenAI.
const MAX_NAME_LENGTH: usize = 64;

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

/// Tools as chat templates expect them: each with a schema, and without `strict`.
pub(super) fn template_tools(tools: &[Tool]) -> Value {
    let each = tools.iter().map(|tool| {
        let mut tool = tool.clone();
        tool.function.parameters.get_or_insert_with(|| json!({"type": "object", "properties": {}}));
        tool.function.strict = None;
        json!(tool)
    });
    each.collect()
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
}
