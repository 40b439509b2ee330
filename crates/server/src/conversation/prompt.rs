//! Renders a conversation and its tools into a prompt, and says how to parse the answers.

use super::messages::{Normalization, normalized};
use super::params::AnswerFormat;
use super::reasoning;
use super::tool_choice::{Choice, template_tools};
use crate::error::Fault;
use crate::http_context::HttpContext;
use sconce_api::openai::chat::ChatRequest;
use sconce_api::openai::tools::Function;
use sconce_engine::{CallGrammar, ChatOptions, Format, Llm, Message, Thoughts, ToolFunction, ToolSyntax};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A rendered conversation.
pub(super) struct Prompt {
    /// The rendered text.
    pub(super) text: String,
    /// Structured output of the answer.
    pub(super) format: Option<Format>,
    /// How to parse tool calls in the answer; `None` without tools.
    pub(super) calls: Option<Calls>,
    /// How the answers reason; `None` if the model does not.
    pub(super) thoughts: Option<Thoughts>,
    /// Control tokens that mark thoughts and tool calls.
    pub(super) marks: Vec<(u32, &'static str)>,
}

/// How to parse tool calls in an answer.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    pub(super) syntax: ToolSyntax,
    pub(super) names: Arc<BTreeSet<String>>,
    pub(super) parallel: bool,
}

/// Renders the prompt, and derives the answer's grammar.
pub(super) fn prompt(
    llm: &Llm,
    request: &ChatRequest,
    format: Option<AnswerFormat>,
    context: &HttpContext,
) -> Result<Prompt, Fault> {
    let choice = Choice::of(request)?;
    let visible_tools = match &choice {
        Choice::None => None,
        Choice::Auto(tools) | Choice::Required(tools, _) => Some(*tools),
    };
    let template = llm.template(visible_tools.is_some());
    let syntax = ToolSyntax::of(template);
    let tools = visible_tools.map(template_tools);
    let normalization = Normalization::of(template);
    let reasoning = reasoning::of(llm, request, context);
    let messages = normalized(&request.messages, normalization)?;
    let messages = messages.into_iter().enumerate().map(|(i, message)| {
        let invalid = |what: String| Fault::invalid(format!("message {i}: {what}")).at(&format!("messages[{i}]"));
        Message::try_from(message).map_err(invalid).map(Message::with_objects_as_arguments)
    });
    let messages: Vec<Message> = messages.collect::<Result<_, _>>()?;
    let mut extra = reasoning.variables;
    extra.extend(request.chat_template_kwargs.clone().unwrap_or_default());
    let options = ChatOptions::default().with_tools(tools).with_extra(extra);
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
    let mut marks = if calls.is_some() { llm.markers(syntax.marks()) } else { Vec::new() };
    marks.extend(reasoning.thoughts.iter().flat_map(|thoughts| llm.markers(&thoughts.syntax.marks())));
    Ok(Prompt { text, format, calls, thoughts: reasoning.thoughts, marks })
}
