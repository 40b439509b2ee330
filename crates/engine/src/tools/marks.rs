//! The markers around tool calls.

/// The markers around calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallMarks {
    pub(super) open: &'static str,
    pub(super) close: Option<&'static str>,
    /// Whether the marker is for calls only. After another one, only the name of a known function
    /// makes a call.
    pub(super) is_certain: bool,
    /// Whether the marker is shown if no call follows. Others are control tokens, and no text.
    pub(super) is_text: bool,
}

pub(super) const TAGS: CallMarks =
    CallMarks { open: "<tool_call>", close: Some("</tool_call>"), is_certain: true, is_text: true };
pub(super) const PYTHON_TAG: CallMarks =
    CallMarks { open: "<|python_tag|>", close: None, is_certain: true, is_text: false };
pub(super) const TOOL_CALLS: CallMarks =
    CallMarks { open: "[TOOL_CALLS]", close: None, is_certain: true, is_text: false };
pub(super) const PHI_TAGS: CallMarks =
    CallMarks { open: "<|tool_call|>", close: Some("<|/tool_call|>"), is_certain: true, is_text: true };
pub(super) const FUNCTOOLS: CallMarks = CallMarks { open: "functools[", close: None, is_certain: false, is_text: true };
pub(super) const TOOL_CODE: CallMarks =
    CallMarks { open: "```tool_code", close: Some("```"), is_certain: false, is_text: true };
pub(super) const JSON_FENCE: CallMarks =
    CallMarks { open: "```json", close: Some("```"), is_certain: false, is_text: true };

/// Length of the longest suffix of `text` that is a proper prefix of `mark`.
pub(crate) fn partial_mark(text: &str, mark: &str) -> usize {
    let longest = text.len().min(mark.len().saturating_sub(1));
    (1..=longest).rev().find(|n| mark.get(..*n).is_some_and(|start| text.ends_with(start))).unwrap_or(0)
}
