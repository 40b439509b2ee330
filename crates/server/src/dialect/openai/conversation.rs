//! A conversation and its tools, as a model reads them.

use super::tools::{Demand, Style, tell};
use super::wish::Form;
use crate::error::Fault;
use sconce_api::openai::chat::ChatRequest;
use sconce_api::openai::tools::{Function, Tool, ToolChoice, ToolMode};
use sconce_engine::{ChatOptions, Format, Llm, Message};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The longest name of a function, as OpenAI has it.
const LONGEST_NAME: usize = 64;

/// A conversation, ready to be answered.
pub(super) struct Prompt {
    /// What the model reads.
    pub(super) text: String,
    /// What its answer must be.
    pub(super) format: Option<Format>,
    /// How calls are found in it; `None`: there are none.
    pub(super) calls: Option<Calls>,
    /// Control tokens by which calls are written.
    pub(super) marks: Vec<(u32, &'static str)>,
}

/// How calls are found in an answer.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    pub(super) style: Style,
    pub(super) names: Arc<BTreeSet<String>>,
    pub(super) parallel: bool,
}

/// What a request says of tools.
#[derive(Debug)]
pub(super) enum Choice<'a> {
    /// Nothing, or that none may be called.
    None,
    /// They may be called.
    Auto(&'a [Tool]),
    /// One of these must be called; all are shown.
    Demanded(&'a [Tool], Vec<&'a Function>),
}

impl<'a> Choice<'a> {
    /// What can be said without a model.
    pub(super) fn of(request: &'a ChatRequest) -> Result<Choice<'a>, Fault> {
        let tools = request.tools.as_deref().unwrap_or_default();
        let mut names = BTreeSet::new();
        for (i, Tool { function, .. }) in tools.iter().enumerate() {
            let sound = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
            if function.parameters.as_ref().is_some_and(|schema| !schema.is_object()) {
                let what = format!("the `parameters` of `{}` are no JSON schema: an object is one", function.name);
                return Err(Fault::invalid(what).at(&format!("tools[{i}].function.parameters")));
            }
            let name = function.name.as_str();
            if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(sound) {
                let what = format!("a function's name is 1 to {LONGEST_NAME} of a-z, A-Z, 0-9, _, - and .");
                return Err(Fault::invalid(what).at(&format!("tools[{i}].function.name")));
            }
            if !names.insert(name) {
                let what = format!("two functions are called `{name}`");
                return Err(Fault::invalid(what).at(&format!("tools[{i}].function.name")));
            }
        }
        let without = |what: &str| {
            let what = format!("`tool_choice` {what}, and there are no `tools` to choose from");
            Err(Fault::invalid(what).at("tool_choice"))
        };
        match &request.tool_choice {
            Some(ToolChoice::Mode(ToolMode::None)) => Ok(Choice::None),
            None | Some(ToolChoice::Mode(ToolMode::Auto)) if tools.is_empty() => Ok(Choice::None),
            None | Some(ToolChoice::Mode(ToolMode::Auto)) => Ok(Choice::Auto(tools)),
            Some(ToolChoice::Mode(ToolMode::Required)) if tools.is_empty() => without("demands a call"),
            Some(ToolChoice::Mode(ToolMode::Required)) => {
                Ok(Choice::Demanded(tools, tools.iter().map(|tool| &tool.function).collect()))
            }
            Some(ToolChoice::Named { function, .. }) if tools.is_empty() => {
                without(&format!("names `{}`", function.name))
            }
            Some(ToolChoice::Named { function, .. }) => {
                match tools.iter().find(|tool| tool.function.name == function.name) {
                    Some(tool) => Ok(Choice::Demanded(tools, vec![&tool.function])),
                    None => {
                        let what = format!("`tool_choice` names `{}`, which is none of the tools", function.name);
                        Err(Fault::invalid(what).at("tool_choice"))
                    }
                }
            }
        }
    }
}

/// What `llm` is to read and may answer.
pub(super) fn prompt(llm: &Llm, request: &ChatRequest, form: Option<Form>) -> Result<Prompt, Fault> {
    let choice = Choice::of(request)?;
    let shown = match &choice {
        Choice::None => None,
        Choice::Auto(tools) | Choice::Demanded(tools, _) => Some(*tools),
    };
    let template = llm.template(shown.is_some());
    let style = Style::of(template);
    let tools = shown.map(described);
    let developers = template.is_some_and(|text| text.contains("developer"));
    let mut messages = plain(&request.messages, developers)?;
    let told = style == Style::Told;
    if told {
        messages = tell(messages, tools.as_ref());
    }
    let messages = messages.into_iter().enumerate().map(|(i, message)| {
        let wrong = |what: String| Fault::invalid(format!("message {i}: {what}")).at(&format!("messages[{i}]"));
        Message::try_from(message).map_err(wrong).map(Message::with_objects_as_arguments)
    });
    let messages: Vec<Message> = messages.collect::<Result<_, _>>()?;
    let options =
        ChatOptions { tools: tools.filter(|_| !told), extra: request.chat_template_kwargs.clone().unwrap_or_default() };
    let text = llm.render(&messages, &options).map_err(|e| Fault::from(e).at("messages"))?;
    let parallel = request.parallel_tool_calls.unwrap_or(true);
    let control = |mark: &str| llm.control(mark);
    let format = |functions: &[&Function], instead: Option<&Value>| {
        let grammar = Demand { style, functions, parallel, instead }.grammar(&control);
        grammar.map(Format::Grammar).map_err(|what| Fault::invalid(what).at("tools"))
    };
    let format = match (&choice, form) {
        (Choice::None, form) => form.map(Format::from),
        (Choice::Demanded(_, functions), _) => Some(format(functions, None)?),
        (Choice::Auto(_), None) => None,
        (Choice::Auto(tools), Some(Form::Json(schema))) => {
            let functions: Vec<&Function> = tools.iter().map(|tool| &tool.function).collect();
            Some(format(&functions, Some(&schema))?)
        }
        (Choice::Auto(_), Some(Form::Other(_))) => {
            let what =
                "an answer that must have this form cannot call tools; set `tool_choice` to \"none\" or \"required\"";
            return Err(Fault::invalid(what).at("structured_outputs"));
        }
    };
    let names = shown.into_iter().flatten().map(|tool| tool.function.name.clone()).collect();
    let calls = shown.map(|_| Calls { style, names: Arc::new(names), parallel });
    let marks = calls.iter().flat_map(|_| style.marks()).filter_map(|mark| Some((control(mark)?, *mark))).collect();
    Ok(Prompt { text, format, calls, marks })
}

/// Tools as templates know them: each with a schema, and with nothing that is for us alone.
fn described(tools: &[Tool]) -> Value {
    let each = tools.iter().map(|tool| {
        let mut tool = tool.clone();
        tool.function.parameters.get_or_insert_with(|| json!({"type": "object", "properties": {}}));
        tool.function.strict = None;
        json!(tool)
    });
    each.collect()
}

/// The messages in the forms that templates know: texts in one piece, and no roles that they have not heard of.
fn plain(messages: &[Map<String, Value>], developers: bool) -> Result<Vec<Map<String, Value>>, Fault> {
    if messages.is_empty() {
        return Err(Fault::invalid("`messages` is empty; a chat needs at least one").at("messages"));
    }
    let each = messages.iter().enumerate().map(|(i, message)| {
        let wrong = |field: &str, what: String| Fault::invalid(what).at(&format!("messages[{i}].{field}"));
        for field in ["name", "tool_call_id"] {
            if message.get(field).is_some_and(|value| !value.is_string() && !value.is_null()) {
                return Err(wrong(field, format!("the `{field}` of a message is a text")));
            }
        }
        if message.get("content").is_some_and(|said| !said.is_string() && !said.is_null() && !said.is_array()) {
            return Err(wrong("content", "what a message says is a text, or a list of parts".into()));
        }
        let calls = message.get("tool_calls").filter(|calls| !calls.is_null());
        // Arguments in a text, as at OpenAI, or as they are: templates read both.
        let is_call = |call: &Value| call["id"].is_string() && call["function"]["name"].is_string();
        if calls.is_some_and(|calls| !calls.as_array().is_some_and(|all| all.iter().all(is_call))) {
            return Err(wrong("tool_calls", "a message tells of calls each with an `id` and a `function`".into()));
        }
        let mut message = message.clone();
        if !developers && message.get("role").is_some_and(|role| role == "developer") {
            message.insert("role".into(), json!("system"));
        }
        if let Some(Value::Array(parts)) = message.get("content") {
            let text = joined(parts).map_err(|what| wrong("content", what))?;
            message.insert("content".into(), text.into());
        }
        Ok(message)
    });
    each.collect()
}

/// The text of parts, one a line.
fn joined(parts: &[Value]) -> Result<String, String> {
    let texts = parts.iter().map(|part| match part.get("type").and_then(Value::as_str) {
        Some("text") => {
            part.get("text").and_then(Value::as_str).ok_or("a part of type `text` needs a `text`".to_owned())
        }
        Some("refusal") => part.get("refusal").and_then(Value::as_str).ok_or("a refusal needs its text".to_owned()),
        Some(other) => Err(format!("this model reads text, and no part of type `{other}`")),
        None => Err("a part of a message needs a `type`".into()),
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
    fn which_tools_may_and_must_be_called() {
        let tools =
            json!([{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}}]);
        let with = |choice: Value| chat(json!({"tools": tools, "tool_choice": choice}));
        assert!(matches!(Choice::of(&chat(json!({}))), Ok(Choice::None)));
        assert!(matches!(Choice::of(&with(json!("none"))), Ok(Choice::None)));
        assert!(matches!(Choice::of(&with(Value::Null)), Ok(Choice::Auto(_))));
        assert!(matches!(Choice::of(&with(json!("auto"))), Ok(Choice::Auto(_))));
        assert!(matches!(Choice::of(&with(json!("required"))), Ok(Choice::Demanded(_, both)) if both.len() == 2));
        let named = with(json!({"type": "function", "function": {"name": "g"}}));
        assert!(matches!(Choice::of(&named), Ok(Choice::Demanded(all, one)) if all.len() == 2 && one[0].name == "g"));
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
    fn tools_as_templates_know_them() {
        let tools: Vec<Tool> = serde_json::from_value(json!([
            {"type": "function", "function": {"name": "f", "description": "d", "strict": true}},
        ]))
        .unwrap();
        let shown = json!([{"type": "function", "function": {"name": "f", "description": "d",
            "parameters": {"type": "object", "properties": {}}}}]);
        assert_eq!(described(&tools).to_string(), shown.to_string());
    }

    #[test]
    fn messages_in_one_piece() {
        let messages = json!([
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ]);
        let messages: Vec<Map<String, Value>> = serde_json::from_value(messages).unwrap();
        let read = plain(&messages, false).unwrap();
        assert_eq!((&read[0]["role"], &read[1]["content"]), (&json!("system"), &json!("a\nb")));
        assert_eq!(plain(&messages, true).unwrap()[0]["role"], "developer");
        let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]);
        let fault = plain(&serde_json::from_value::<Vec<_>>(image).unwrap(), true).unwrap_err();
        assert_eq!(fault.param.as_deref(), Some("messages[0].content"));
        assert!(fault.message.contains("image_url"));
        assert!(plain(&[], true).is_err());
    }
}
