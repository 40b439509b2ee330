//! How a model writes calls, as its chat template shows.

/// How a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen and many others.
    Tagged,
    /// `{"name": …, "parameters": …}`, with or without `<|python_tag|>` before it: Llama 3.
    Llama,
    /// `[TOOL_CALLS] [{"name": …, "arguments": …}, …]`, later `[TOOL_CALLS]name[ARGS]{…}`: Mistral.
    Mistral,
    /// The template knows nothing of tools. We describe them in the system's message, and ask for the first form.
    Told,
}

impl Style {
    /// That of a template, or of a model without one.
    pub(crate) fn of(template: Option<&str>) -> Style {
        let has = |mark: &str| template.is_some_and(|text| text.contains(mark));
        if !has("tools") {
            Style::Told
        } else if has("[TOOL_CALLS]") {
            Style::Mistral
        } else if has("<tool_call>") {
            Style::Tagged
        } else if has("<|python_tag|>") || has("\"parameters\"") {
            Style::Llama
        } else {
            // It describes tools, and how they are called is not known: any of the forms is understood when it comes, and where
            // a call is demanded it is the commonest.
            Style::Tagged
        }
    }

    /// What opens a call.
    pub(crate) fn open(self) -> &'static str {
        match self {
            Style::Tagged | Style::Told => "<tool_call>",
            Style::Llama => "<|python_tag|>",
            Style::Mistral => "[TOOL_CALLS]",
        }
    }

    /// What closes it.
    pub(crate) fn close(self) -> Option<&'static str> {
        match self {
            Style::Tagged | Style::Told => Some("</tool_call>"),
            Style::Llama | Style::Mistral => None,
        }
    }

    /// Control tokens that are part of how a call is written.
    pub(crate) fn marks(self) -> &'static [&'static str] {
        match self {
            Style::Tagged | Style::Told => &["<tool_call>", "</tool_call>"],
            Style::Llama => &["<|python_tag|>"],
            Style::Mistral => &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
        }
    }

    /// What the arguments are called.
    pub(crate) fn arguments(self) -> &'static str {
        match self {
            Style::Llama => "parameters",
            Style::Tagged | Style::Mistral | Style::Told => "arguments",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn told_by_the_template() {
        let qwen = r#"{%- if tools %}…return a json object within <tool_call></tool_call> XML tags{% endif %}"#;
        assert_eq!(Style::of(Some(qwen)), Style::Tagged);
        let llama = r#"{{- 'Respond in the format {"name": function name, "parameters": dictionary}' }}{% if tools %}"#;
        assert_eq!(Style::of(Some(llama)), Style::Llama);
        assert_eq!(
            Style::of(Some("{% if tools is not none %}[AVAILABLE_TOOLS]…[TOOL_CALLS]{% endif %}")),
            Style::Mistral
        );
        assert_eq!(Style::of(Some("{% if tools %}{{ tools }}{% endif %}")), Style::Tagged);
        assert_eq!(Style::of(Some("{% for m in messages %}{{ m.content }}{% endfor %}")), Style::Told);
        assert_eq!(Style::of(None), Style::Told);
    }
}
