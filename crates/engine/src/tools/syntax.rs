//! Tool-call syntax of a model, detected from its chat template.

use super::marks::{CallMarks, FUNCTOOLS, JSON_FENCE, PHI_TAGS, PYTHON_TAG, TAGS, TOOL_CALLS, TOOL_CODE};

/// Tool-call syntax of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolSyntax {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen and many others.
    Tagged,
    /// `{"name": …, "parameters": …}`, with or without `<|python_tag|>` before it, or `[name(…)]`:
    /// Llama 3.
    Llama,
    /// `[TOOL_CALLS] [{"name": …, "arguments": …}, …]`: Mistral.
    Mistral,
    /// `[TOOL_CALLS]name[ARGS]{…}`: Mistral since 2025.
    MistralNamed,
    /// `<|tool_call|>[{"name": …, "arguments": …}]<|/tool_call|>`: Phi-4-mini. It also writes
    /// `functools[{…}]`.
    Phi,
    /// The template has no tools. The system message describes them and asks for the `Tagged`
    /// syntax. Gemma may answer in the forms that it knows: a fence with `tool_code` or `json`,
    /// `[name(…)]`, or bare JSON.
    Described,
}

impl ToolSyntax {
    /// Detects the syntax of a template; `None` is a model without a template.
    pub fn of(template: Option<&str>) -> ToolSyntax {
        let has = |mark: &str| template.is_some_and(|text| text.contains(mark));
        if has("<|tool|>") && has("<|/tool|>") {
            ToolSyntax::Phi
        } else if !has("tools") {
            ToolSyntax::Described
        } else if has("[TOOL_CALLS]") {
            if has("[ARGS]") { ToolSyntax::MistralNamed } else { ToolSyntax::Mistral }
        } else if has("<tool_call>") {
            ToolSyntax::Tagged
        } else if has("<|python_tag|>") || has("\"parameters\"") {
            ToolSyntax::Llama
        } else {
            // The template has tools in an unknown syntax: assume the most common one.
            ToolSyntax::Tagged
        }
    }

    /// The markers, the usual ones first.
    pub(super) fn call_marks(self) -> &'static [CallMarks] {
        match self {
            ToolSyntax::Tagged => &[TAGS],
            ToolSyntax::Llama => &[PYTHON_TAG],
            ToolSyntax::Mistral | ToolSyntax::MistralNamed => &[TOOL_CALLS],
            ToolSyntax::Phi => &[PHI_TAGS, FUNCTOOLS],
            ToolSyntax::Described => &[TAGS, TOOL_CODE, JSON_FENCE],
        }
    }

    /// Whether calls may be written as Python writes them.
    pub(super) fn has_python(self) -> bool {
        matches!(self, ToolSyntax::Llama | ToolSyntax::Described)
    }

    /// Whether the name stands before the arguments, not within an object.
    pub(super) fn has_names_first(self) -> bool {
        matches!(self, ToolSyntax::Mistral | ToolSyntax::MistralNamed)
    }

    /// Whether the ids of calls must be nine letters and digits.
    pub fn has_short_ids(self) -> bool {
        self.has_names_first()
    }

    /// The marker that opens a call.
    pub fn open(self) -> &'static str {
        self.call_marks().first().map_or("", |marks| marks.open)
    }

    /// The marker that closes a call.
    pub fn close(self) -> Option<&'static str> {
        self.call_marks().first().and_then(|marks| marks.close)
    }

    /// Markers that may be control tokens.
    pub fn marks(self) -> &'static [&'static str] {
        match self {
            ToolSyntax::Tagged | ToolSyntax::Described => &["<tool_call>", "</tool_call>"],
            ToolSyntax::Llama => &["<|python_tag|>"],
            ToolSyntax::Mistral | ToolSyntax::MistralNamed => &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
            ToolSyntax::Phi => &["<|tool_call|>", "<|/tool_call|>"],
        }
    }

    /// The JSON key of the arguments.
    pub fn arguments(self) -> &'static str {
        match self {
            ToolSyntax::Llama => "parameters",
            ToolSyntax::Tagged
            | ToolSyntax::Mistral
            | ToolSyntax::MistralNamed
            | ToolSyntax::Phi
            | ToolSyntax::Described => "arguments",
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
        let devstral = "{% if tools %}[AVAILABLE_TOOLS]{% endif %}{{ '[TOOL_CALLS]' + name + '[ARGS]' }}";
        assert_eq!(ToolSyntax::of(Some(devstral)), ToolSyntax::MistralNamed);
        let phi = "{% if 'tools' in message %}{{ '<|tool|>' + message['tools'] + '<|/tool|>' }}{% endif %}";
        assert_eq!(ToolSyntax::of(Some(phi)), ToolSyntax::Phi);
        assert_eq!(ToolSyntax::of(Some("{% if tools %}{{ tools }}{% endif %}")), ToolSyntax::Tagged);
        assert_eq!(ToolSyntax::of(Some("{% for m in messages %}{{ m.content }}{% endfor %}")), ToolSyntax::Described);
        assert_eq!(ToolSyntax::of(None), ToolSyntax::Described);
    }
}
