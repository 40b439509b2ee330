//! Tool-call syntax of a model, detected from its chat template.

/// Tool-call syntax of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
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

impl Style {
    /// Detects the syntax of a template; `None` is a model without a template.
    pub(crate) fn of(template: Option<&str>) -> Style {
        let has = |mark: &str| template.is_some_and(|text| text.contains(mark));
        if !has("tools") {
            Style::Described
        } else if has("[TOOL_CALLS]") {
            Style::Mistral
        } else if has("<tool_call>") {
            Style::Tagged
        } else if has("<|python_tag|>") || has("\"parameters\"") {
            Style::Llama
        } else {
            // The template has tools in an unknown syntax: assume the most common one.
            Style::Tagged
        }
    }

    /// The marker that opens a call.
    pub(crate) fn open(self) -> &'static str {
        match self {
            Style::Tagged | Style::Described => "<tool_call>",
            Style::Llama => "<|python_tag|>",
            Style::Mistral => "[TOOL_CALLS]",
        }
    }

    /// The marker that closes a call.
    pub(crate) fn close(self) -> Option<&'static str> {
        match self {
            Style::Tagged | Style::Described => Some("</tool_call>"),
            Style::Llama | Style::Mistral => None,
        }
    }

    /// Markers that may be control tokens.
    pub(crate) fn marks(self) -> &'static [&'static str] {
        match self {
            Style::Tagged | Style::Described => &["<tool_call>", "</tool_call>"],
            Style::Llama => &["<|python_tag|>"],
            Style::Mistral => &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
        }
    }

    /// The JSON key of the arguments.
    pub(crate) fn arguments(self) -> &'static str {
        match self {
            Style::Llama => "parameters",
            Style::Tagged | Style::Mistral | Style::Described => "arguments",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn style_is_detected_from_the_chat_template() {
        let qwen = r#"{%- if tools %}…return a json object within <tool_call></tool_call> XML tags{% endif %}"#;
        assert_eq!(Style::of(Some(qwen)), Style::Tagged);
        let llama = r#"{{- 'Respond in the format {"name": function name, "parameters": dictionary}' }}{% if tools %}"#;
        assert_eq!(Style::of(Some(llama)), Style::Llama);
        assert_eq!(
            Style::of(Some("{% if tools is not none %}[AVAILABLE_TOOLS]…[TOOL_CALLS]{% endif %}")),
            Style::Mistral
        );
        assert_eq!(Style::of(Some("{% if tools %}{{ tools }}{% endif %}")), Style::Tagged);
        assert_eq!(Style::of(Some("{% for m in messages %}{{ m.content }}{% endfor %}")), Style::Described);
        assert_eq!(Style::of(None), Style::Described);
    }
}
