//! `reasoning_effort` and `reasoning_budget` of a chat request.

use crate::http_context::HttpContext;
use sconce_api::openai::chat::{ChatRequest, ReasoningEffort as RequestedEffort};
use sconce_engine::{Llm, ReasoningEffort, Thoughts};
use serde_json::{Map, Value};

/// How the answers to a request reason.
#[derive(Debug)]
pub(super) struct RequestedReasoning {
    /// Variables of the chat template.
    pub(super) variables: Map<String, Value>,
    /// For the engine; `None` if the model does not reason.
    pub(super) thoughts: Option<Thoughts>,
}

/// Reads the fields. For a model that does not reason they have no effect, unless its template reads
/// the effort, and `context` records that.
pub(super) fn of(llm: &Llm, request: &ChatRequest, context: &HttpContext) -> RequestedReasoning {
    let (effort, budget) = limits(request);
    let Some(reasoning) = llm.reasoning() else {
        let is_read = llm.template(false).is_some_and(ReasoningEffort::is_read_by);
        let is_limit = |effort| effort != RequestedEffort::None;
        let fields = [
            ("reasoning_effort", !is_read && request.reasoning_effort.is_some_and(is_limit)),
            ("reasoning_budget", request.reasoning_budget.is_some_and(|budget| budget > 0)),
        ];
        fields.iter().filter(|(_, is_set)| *is_set).for_each(|(field, _)| context.note_ignored(field));
        let variables = effort.filter(|_| is_read).map(ReasoningEffort::variable).into_iter().collect();
        return RequestedReasoning { variables, thoughts: None };
    };
    let variables = effort.map(|effort| reasoning.variables(effort)).unwrap_or_default();
    RequestedReasoning { variables, thoughts: Some(Thoughts { syntax: reasoning.syntax, budget }) }
}

/// The effort and the most tokens of a thought. A budget of 0 is the effort `none`; another budget
/// replaces that of the effort.
fn limits(request: &ChatRequest) -> (Option<ReasoningEffort>, Option<usize>) {
    let effort = match (request.reasoning_effort, request.reasoning_budget) {
        (_, Some(0)) => Some(ReasoningEffort::None),
        (effort, _) => effort.map(engine_effort),
    };
    let max_tokens = request.max_completion_tokens.or(request.max_tokens);
    let budget = match (effort, request.reasoning_budget) {
        (Some(ReasoningEffort::None), _) => Some(0),
        (_, Some(budget)) => Some(budget),
        (effort, None) => effort.and_then(|effort| effort.budget(max_tokens)),
    };
    (effort, budget)
}

fn engine_effort(effort: RequestedEffort) -> ReasoningEffort {
    match effort {
        RequestedEffort::None => ReasoningEffort::None,
        RequestedEffort::Minimal => ReasoningEffort::Minimal,
        RequestedEffort::Low => ReasoningEffort::Low,
        RequestedEffort::Medium => ReasoningEffort::Medium,
        RequestedEffort::High => ReasoningEffort::High,
        RequestedEffort::Xhigh => ReasoningEffort::Xhigh,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn budget_and_effort_are_combined() {
        let of = |mut fields: Value| {
            fields["messages"] = json!([]);
            limits(&serde_json::from_value(fields).unwrap())
        };
        assert_eq!(of(json!({})), (None, None));
        assert_eq!(
            of(json!({"reasoning_budget": 0, "reasoning_effort": "high"})),
            (Some(ReasoningEffort::None), Some(0))
        );
        assert_eq!(
            of(json!({"reasoning_effort": "none", "reasoning_budget": 9})),
            (Some(ReasoningEffort::None), Some(0))
        );
        assert_eq!(
            of(json!({"reasoning_effort": "low", "reasoning_budget": 9})),
            (Some(ReasoningEffort::Low), Some(9))
        );
        assert_eq!(of(json!({"reasoning_budget": 9})), (None, Some(9)));
        assert_eq!(of(json!({"reasoning_effort": "low", "max_tokens": 40})), (Some(ReasoningEffort::Low), Some(30)));
        assert_eq!(of(json!({"reasoning_effort": "xhigh"})), (Some(ReasoningEffort::Xhigh), None));
    }
}
