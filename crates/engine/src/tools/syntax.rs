//! Tool-call syntax of a model, detected from its chat template.

/// Tool-call syntax of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolSyntax {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen and many others.
    Tagged,
    /// `{"name": …, "parameters": …}`, with or without `<|python_tag|>` before it: Llama 3.
    Llama,
    /// `[TOOL_CALLS] [{"name": …, "arguments": …}, …]`, later `[TOOL_CALLS]name[ARGS]{…}`: Mistral.
    Mistral,
    /// The template has no tools. The system message describes them and asks for the `Tagged`
    /// syntax.
    Described,
}

impl ToolSyntax {
    /// Detects the syntax of a template; `None` is a model without a template.
    pub fn of(template: Option<&str>) -> ToolSyntax {
        let has = |mark: &str| template.is_some_and(|text| text.contains(mark));
        if !has("tools") {
            ToolSyntax::Described
        } else if has("[TOOL_CALLS]") {
            ToolSyntax::Mistral
        } else if has("<tool_call>") {
            ToolSyntax::Tagged
        } else if has("<|python_tag|>") || has("\"parameters\"") {
            ToolSyntax::Llama
        } else {
            // The template has tools in an unknown syntax: assume the most common one.
            ToolSyntax::Tagged
        }
    }

    /// The marker that opens a call.
    pub fn open(self) -> &'static str {
        match self {
            ToolSyntax::Tagged | ToolSyntax::Described => "<tool_call>",
            ToolSyntax::Llama => "<|python_tag|>",
            ToolSyntax::Mistral => "[TOOL_CALLS]",
        }
    }

    /// The marker that closes a call.
    pub fn close(self) -> Option<&'static str> {
        match self {
            ToolSyntax::Tagged | ToolSyntax::Described => Some("</tool_call>"),
            ToolSyntax::Llama | ToolSyntax::Mistral => None,
        }
    }

    /// Markers that may be control tokens.
    pub fn marks(self) -> &'static [&'static str] {
        match self {
            ToolSyntax::Tagged | ToolSyntax::Described => &["<tool_call>", "</tool_call>"],
            ToolSyntax::Llama => &["<|python_tag|>"],
            ToolSyntax::Mistral => &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
        }
    }

    /// The JSON key of the arguments.
    pub fn arguments(self) -> &'static str {
        match self {
            ToolSyntax::Llama => "parameters",
            ToolSyntax::Tagged | ToolSyntax::Mistral | ToolSyntax::Described => "arguments",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syntax_is_detected_from_the_chat_template() {
        let qwen = r#"{%- if tools %}…return a json object within <tool_call></tool_call> XML tags{% endif %}"#;
        assert_eq!(ToolSyntax::of(Some(qwen)), ToolSyntax::Tagged);
        let llama = r#"{{- 'Respond in the format {"name": function name, "parameters": dictionary}' }}{% if tools %}"#;
        assert_eq!(ToolSyntax::of(Some(llama)), ToolSyntax::Llama);
        assert_eq!(
            ToolSyntax::of(Some("{% if tools is not none %}[AVAILABLE_TOOLS]…[TOOL_CALLS]{% endif %}")),
            ToolSyntax::Mistral
        );
        assert_eq!(ToolSyntax::of(Some("{% if tools %}{{ tools }}{% endif %}")), ToolSyntax::Tagged);
        assert_eq!(ToolSyntax::of(Some("{% for m in messages %}{{ m.content }}{% endfor %}")), ToolSyntax::Described);
        assert_eq!(ToolSyntax::of(None), ToolSyntax::Described);
    }
}
