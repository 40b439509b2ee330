//! Chat templates: render messages into a prompt, as transformers' `apply_chat_template` does.

mod message;
#[cfg(test)]
mod tests;

pub use message::Message;
pub use sconce_jinja::Clock;

use sconce_jinja::{Fault, Template};
use serde_json::{Map, Value};

/// Why a chat template could not be rendered.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The model has no chat template.
    #[error(
        "this model has no chat template (no chat_template.jinja, none in tokenizer_config.json or in its GGUF file): it may not \
         be a chat model; `sconce generate` continues a plain text with it"
    )]
    Absent,
    /// The model's template is not valid Jinja.
    #[error("the model's chat template cannot be read: line {line}: {what}")]
    Syntax {
        /// Its line, from 1.
        line: u32,
        /// What is wrong.
        what: String,
    },
    /// The template rejects these messages (`raise_exception`).
    #[error("the model's chat template refuses these messages: {0}")]
    Refused(String),
    /// The template failed on these messages.
    #[error("the model's chat template failed{}: {what}", at(line))]
    Failed {
        /// Its line, from 1.
        line: Option<u32>,
        /// What went wrong.
        what: String,
    },
    /// The template exceeded a limit of time or memory.
    #[error("the model's chat template was stopped{}: {what}", at(line))]
    TooMuch {
        /// Its line, from 1.
        line: Option<u32>,
        /// The limit.
        what: String,
    },
    /// The caller's input is invalid.
    #[error("{0}")]
    Input(String),
}

fn at(line: &Option<u32>) -> String {
    line.map_or_else(String::new, |line| format!(" at line {line}"))
}

impl From<Fault> for TemplateError {
    fn from(fault: Fault) -> TemplateError {
        match fault {
            Fault::Syntax { line, what } => TemplateError::Syntax { line, what },
            Fault::Raised(what) => TemplateError::Refused(what),
            Fault::Wrong { line, what } => TemplateError::Failed { line, what },
            Fault::Limit { line, what } => TemplateError::TooMuch { line, what },
        }
    }
}

/// Variables of the template besides the messages.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// Schemas of the functions the model may call, a list.
    pub tools: Option<&'a Value>,
    /// Documents that the model may quote, a list.
    pub documents: Option<&'a Value>,
    /// Whether the prompt ends where the model's answer begins.
    pub add_generation_prompt: bool,
    /// Other variables of the template: `enable_thinking`, `pad_token`, … They override the model's
    /// own tokens.
    pub extra: Map<String, Value>,
    /// For templates that print the date.
    pub now: Clock,
}

impl Default for Options<'_> {
    /// With a generation prompt, in UTC.
    fn default() -> Self {
        Options { tools: None, documents: None, add_generation_prompt: true, extra: Map::new(), now: Clock::utc_now() }
    }
}

/// A chat template of a model.
#[derive(Debug)]
pub struct ChatTemplate {
    /// The source. Some capabilities of a model can be detected only from it.
    pub source: String,
    template: Template,
    bos: Value,
    eos: Value,
}

impl ChatTemplate {
    /// Parses a Jinja template. `bos` and `eos` are the texts of the model's BOS and EOS tokens.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<ChatTemplate, TemplateError> {
        let token = |text: Option<&str>| text.map_or(Value::Null, Value::from);
        let template = Template::new(source)?;
        Ok(ChatTemplate { source: source.into(), template, bos: token(bos), eos: token(eos) })
    }

    /// Renders the prompt.
    pub fn render(&self, messages: &[Message], options: &Options) -> Result<String, TemplateError> {
        let input = |what: &str| Err(TemplateError::Input(what.into()));
        if messages.is_empty() {
            return input("a chat needs at least one message");
        }
        for (value, what) in [(options.tools, "tools"), (options.documents, "documents")] {
            let sound = |v: &Value| v.as_array().is_some_and(|all| all.iter().all(Value::is_object));
            if value.is_some_and(|v| !sound(v)) {
                return input(&format!("{what} must be a list of objects"));
            }
        }
        let reserved = ["messages", "tools", "documents", "add_generation_prompt"];
        if let Some(name) = options.extra.keys().find(|name| reserved.contains(&name.as_str())) {
            return input(&format!("{name} cannot be given twice"));
        }
        let messages = Value::Array(messages.iter().map(Message::for_template).collect());
        let (none, prompt) = (Value::Null, Value::Bool(options.add_generation_prompt));
        let mut names = vec![
            ("messages", &messages),
            ("tools", options.tools.unwrap_or(&none)),
            ("documents", options.documents.unwrap_or(&none)),
            ("add_generation_prompt", &prompt),
        ];
        // A token that the model does not have is undefined in Jinja, not none.
        let tokens = [("bos_token", &self.bos), ("eos_token", &self.eos)];
        names.extend(tokens.into_iter().filter(|(name, token)| !token.is_null() && !options.extra.contains_key(*name)));
        Ok(self.template.render(&names, &options.extra, options.now)?)
    }
}

/// The chat templates of a model: most have one, some a second for tools.
#[derive(Debug)]
pub struct ChatTemplates {
    /// For every chat, unless there is one for tools.
    pub default: Option<ChatTemplate>,
    /// For chats with tools.
    pub tool_use: Option<ChatTemplate>,
}

impl ChatTemplates {
    /// From `chat_template.jinja` if it exists, else from `tokenizer_config.json`.
    pub fn read(file: Option<&str>, config: &Value) -> Result<ChatTemplates, TemplateError> {
        let token = |role: &str| config.get(role).and_then(|t| t.as_str().or_else(|| t.get("content")?.as_str()));
        let template = |source: &str| ChatTemplate::new(source, token("bos_token"), token("eos_token"));
        let mut templates = ChatTemplates { default: None, tool_use: None };
        match (file, config.get("chat_template")) {
            (Some(source), _) => templates.default = Some(template(source)?),
            (None, Some(Value::String(source))) => templates.default = Some(template(source)?),
            (None, Some(Value::Array(all))) => {
                for one in all {
                    let field = |name: &str| one.get(name).and_then(Value::as_str);
                    match (field("name"), field("template")) {
                        (Some("default"), Some(source)) => templates.default = Some(template(source)?),
                        (Some("tool_use"), Some(source)) => templates.tool_use = Some(template(source)?),
                        (Some(_), Some(_)) => {}
                        _ => {
                            return Err(TemplateError::Input(
                                "chat_template in tokenizer_config.json: an entry has no name or no template".into(),
                            ));
                        }
                    }
                }
            }
            (None, None | Some(Value::Null)) => {}
            (None, Some(_)) => {
                return Err(TemplateError::Input(
                    "chat_template in tokenizer_config.json is neither a string nor a list of templates".into(),
                ));
            }
        }
        Ok(templates)
    }

    /// The template for chats with or without tools.
    pub fn pick(&self, tools: bool) -> Result<&ChatTemplate, TemplateError> {
        let special = self.tool_use.as_ref().filter(|_| tools);
        special.or(self.default.as_ref()).ok_or(TemplateError::Absent)
    }
}
