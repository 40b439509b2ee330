//! How a model reasons: markers and switches, detected from its chat template.

use serde_json::{Map, Value, json};

/// The variable of chat templates that switches thinking on and off (Qwen3, SmolLM3).
const SWITCH: &str = "enable_thinking";
/// The variable of chat templates for the effort.
const EFFORT: &str = "reasoning_effort";

/// The markers around a thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReasoningSyntax {
    /// The marker before the thought.
    pub open: &'static str,
    /// The marker after the thought.
    pub close: &'static str,
}

/// Every syntax: Qwen3, SmolLM3, DeepSeek-R1 and others; Mistral.
const SYNTAXES: [ReasoningSyntax; 2] =
    [ReasoningSyntax { open: "<think>", close: "</think>" }, ReasoningSyntax { open: "[THINK]", close: "[/THINK]" }];

impl ReasoningSyntax {
    /// All known syntaxes.
    pub fn all() -> &'static [ReasoningSyntax] {
        &SYNTAXES
    }

    /// Both markers.
    pub fn marks(self) -> [&'static str; 2] {
        [self.open, self.close]
    }

    /// Whether an answer to this rendered prompt begins within a thought: some templates open it.
    pub fn is_opened_by(self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.open)
    }
}

/// How much a model thinks before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReasoningEffort {
    /// Not at all.
    None,
    /// As little as possible.
    Minimal,
    /// Little.
    Low,
    /// Moderately.
    Medium,
    /// Much.
    High,
    /// Without a limit.
    Xhigh,
}

impl ReasoningEffort {
    /// The name that chat templates know.
    pub fn name(self) -> &'static str {
        match self {
            ReasoningEffort::None => "none",
            ReasoningEffort::Minimal => "minimal",
            ReasoningEffort::Low => "low",
            ReasoningEffort::Medium => "medium",
            ReasoningEffort::High => "high",
            ReasoningEffort::Xhigh => "xhigh",
        }
    }

    /// Whether a chat template reads the effort.
    pub fn is_read_by(template: &str) -> bool {
        template.contains(EFFORT)
    }

    /// The variable for chat templates that read the effort.
    pub fn variable(self) -> (String, Value) {
        (EFFORT.to_owned(), json!(self.name()))
    }

    /// The most tokens of a thought; `None`: no limit. In a short answer a thought takes at most
    /// three quarters, so that there is an answer.
    pub fn budget(self, max_tokens: Option<usize>) -> Option<usize> {
        let most = match self {
            ReasoningEffort::None => 0,
            ReasoningEffort::Minimal => 256,
            ReasoningEffort::Low => 1024,
            ReasoningEffort::Medium => 4096,
            ReasoningEffort::High => 16_384,
            ReasoningEffort::Xhigh => return None,
        };
        Some(max_tokens.map_or(most, |tokens| most.min(tokens - tokens / 4)))
    }
}

/// How a model reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reasoning {
    /// The markers around a thought.
    pub syntax: ReasoningSyntax,
    /// Whether the chat template can switch thinking off.
    pub has_switch: bool,
    /// Whether the chat template reads `reasoning_effort`.
    pub reads_effort: bool,
}

impl Reasoning {
    /// From the source of a chat template; `None`: the template knows no thoughts.
    pub fn of(template: &str) -> Option<Reasoning> {
        let knows = |syntax: &&ReasoningSyntax| syntax.marks().iter().any(|mark| template.contains(mark));
        SYNTAXES.iter().find(knows).map(|syntax| Reasoning {
            syntax: *syntax,
            has_switch: template.contains(SWITCH),
            reads_effort: ReasoningEffort::is_read_by(template),
        })
    }

    /// Whether a chat template reads the thoughts of earlier messages (`reasoning_content`).
    pub fn is_kept_by(template: &str) -> bool {
        ["reasoning", "thinking"].iter().any(|field| template.replace(SWITCH, "").replace(EFFORT, "").contains(field))
    }

    /// The variables of the chat template for an effort.
    pub fn variables(&self, effort: ReasoningEffort) -> Map<String, Value> {
        let mut variables = Map::new();
        if self.has_switch {
            variables.insert(SWITCH.into(), json!(effort != ReasoningEffort::None));
        }
        if self.reads_effort {
            variables.extend([effort.variable()]);
        }
        variables
    }
}

/// How an answer reasons: part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thoughts {
    /// The markers around a thought.
    pub syntax: ReasoningSyntax,
    /// The most tokens of a thought, then it is ended; `None`: no limit.
    pub budget: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts of the published templates.
    const QWEN3: &str = r"{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}";
    const DISTILL: &str = r"{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}";
    const MAGISTRAL: &str = r"{%- elif block['type'] == 'thinking' %}{{- '[THINK]' + block['thinking'] + '[/THINK]' }}";

    #[test]
    fn reasoning_is_detected_from_the_chat_template() {
        let qwen = Reasoning::of(QWEN3).unwrap();
        assert_eq!((qwen.syntax.open, qwen.has_switch, qwen.reads_effort), ("<think>", true, false));
        let distill = Reasoning::of(DISTILL).unwrap();
        assert_eq!((distill.syntax.close, distill.has_switch), ("</think>", false));
        assert_eq!(Reasoning::of(MAGISTRAL).unwrap().syntax.open, "[THINK]");
        assert_eq!(Reasoning::of("{% for m in messages %}{{ m.content }}{% endfor %}"), None);
        assert!(!Reasoning::is_kept_by(DISTILL) && !Reasoning::is_kept_by(QWEN3) && Reasoning::is_kept_by(MAGISTRAL));
        assert!(Reasoning::is_kept_by("{% if message.reasoning_content is string %}"));
    }

    #[test]
    fn effort_becomes_a_switch_and_a_budget() {
        let qwen = Reasoning::of(QWEN3).unwrap();
        assert_eq!(Value::Object(qwen.variables(ReasoningEffort::None)), json!({"enable_thinking": false}));
        assert_eq!(Value::Object(qwen.variables(ReasoningEffort::Low)), json!({"enable_thinking": true}));
        let effort = Reasoning::of("<think>{{ reasoning_effort }}").unwrap();
        assert_eq!(Value::Object(effort.variables(ReasoningEffort::High)), json!({"reasoning_effort": "high"}));
        let budgets = [ReasoningEffort::None, ReasoningEffort::Low, ReasoningEffort::High, ReasoningEffort::Xhigh];
        assert_eq!(budgets.map(|effort| effort.budget(None)), [Some(0), Some(1024), Some(16_384), None]);
        assert_eq!(budgets.map(|effort| effort.budget(Some(100))), [Some(0), Some(75), Some(75), None]);
    }

    #[test]
    fn prompts_may_open_the_thought() {
        let think = SYNTAXES[0];
        assert!(think.is_opened_by("<|im_start|>assistant\n<think>\n"));
        assert!(!think.is_opened_by("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
        assert!(!think.is_opened_by("What does <think> mean?<|im_end|>\n<|im_start|>assistant\n"));
    }
}
