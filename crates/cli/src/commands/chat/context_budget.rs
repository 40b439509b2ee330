//! Tokens left in the context.

/// Tokens that an answer may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContextBudget(usize);

impl ContextBudget {
    /// The tokens that a context has left after the prompt; an error with advice if there are none.
    pub(super) fn new(context: usize, prompt: usize) -> Result<ContextBudget, String> {
        match context.checked_sub(prompt) {
            Some(left @ 1..) => Ok(ContextBudget(left)),
            _ => Err(format!(
                "the conversation would have {prompt} tokens, but the context holds {context}; the message was not sent: use \
                 /undo to remove the last message and its answer, /clear to start over, or a larger --context"
            )),
        }
    }

    /// Most tokens of an answer for which `wanted` were requested.
    pub(super) fn max_answer_tokens(self, wanted: Option<usize>) -> usize {
        wanted.map_or(self.0, |n| n.min(self.0))
    }
}

/// Warning for an answer that ended because the context is full.
pub(super) fn full(context: usize) -> String {
    format!(
        "the context of {context} tokens is full: use /undo to remove the last message and its answer, /save to keep the \
         conversation, /clear to start over, or a larger --context"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_tokens_are_limited_to_free_context() {
        let budget = ContextBudget::new(100, 90).unwrap();
        assert_eq!(
            (budget.max_answer_tokens(None), budget.max_answer_tokens(Some(4)), budget.max_answer_tokens(Some(11))),
            (10, 4, 10)
        );
        for prompt in [100, 101] {
            let e = ContextBudget::new(100, prompt).unwrap_err();
            assert!(e.contains("holds 100") && e.contains("/clear"), "{e}");
        }
    }
}
