//! Events of a streamed response.

use super::output::{OutputItem, OutputPart, ReasoningPart};
use super::response::Response;
use crate::openai::chat::TokenLogprob;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// An event of a streamed response, with its number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResponseStreamEvent {
    /// Number of the event, counted from 0.
    pub sequence_number: usize,
    /// The event.
    #[serde(flatten)]
    pub event: ResponseEvent,
}

/// An event of a streamed response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type")]
pub enum ResponseEvent {
    /// The response begins.
    #[serde(rename = "response.created")]
    Created {
        /// The response, without output.
        response: Box<Response>,
    },
    /// The model reads the prompt.
    #[serde(rename = "response.in_progress")]
    InProgress {
        /// The response, without output.
        response: Box<Response>,
    },
    /// The response is complete. The last event.
    #[serde(rename = "response.completed")]
    Completed {
        /// The response.
        response: Box<Response>,
    },
    /// The response ended before it was complete. The last event.
    #[serde(rename = "response.incomplete")]
    Incomplete {
        /// The response.
        response: Box<Response>,
    },
    /// The response failed. The last event.
    #[serde(rename = "response.failed")]
    Failed {
        /// The response.
        response: Box<Response>,
    },
    /// An item begins.
    #[serde(rename = "response.output_item.added")]
    OutputItemAdded {
        /// Index of the item.
        output_index: usize,
        /// The item, empty.
        item: OutputItem,
    },
    /// An item is complete.
    #[serde(rename = "response.output_item.done")]
    OutputItemDone {
        /// Index of the item.
        output_index: usize,
        /// The item.
        item: OutputItem,
    },
    /// A part begins.
    #[serde(rename = "response.content_part.added")]
    ContentPartAdded {
        /// Id of the item.
        item_id: String,
        /// Index of the item.
        output_index: usize,
        /// Index of the part.
        content_index: usize,
        /// The part, empty.
        part: OutputPart,
    },
    /// A part is complete.
    #[serde(rename = "response.content_part.done")]
    ContentPartDone {
        /// Id of the item.
        item_id: String,
        /// Index of the item.
        output_index: usize,
        /// Index of the part.
        content_index: usize,
        /// The part.
        part: OutputPart,
    },
    /// A text grows.
    #[serde(rename = "response.output_text.delta")]
    OutputTextDelta {
        /// Id of the item.
        item_id: String,
        /// Index of the item.
        output_index: usize,
        /// Index of the part.
        content_index: usize,
        /// New text.
        delta: String,
        /// The logprobs of its tokens, if `include` asks for them.
        logprobs: Vec<TokenLogprob>,
    },
    /// A text is complete.
    #[serde(rename = "response.output_text.done")]
    OutputTextDone {
        /// Id of the item.
        item_id: String,
        /// Index of the item.
        output_index: usize,
        /// Index of the part.
        content_index: usize,
        /// The text.
        text: String,
        /// The logprobs of its tokens, if `include` asks for them.
        logprobs: Vec<TokenLogprob>,
    },
    /// A thought grows.
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningTextDelta {
        /// Id of the item.
        item_id: String,
        /// Index of the item.
        output_index: usize,
        /// Index of the part.
        content_index: usize,
        /// New text of the thought.
        delta: String,
    },
    /// A thought is complete.
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningTextDone {
        /// Id of the item.
        item_id: String,
        /// Index of the item.
        output_index: usize,
        /// Index of the part.
        content_index: usize,
        /// The thought.
        text: String,
    },
    /// A thought begins that is given as a summary.
    #[serde(rename = "response.reasoning_summary_part.added")]
    ReasoningSummaryPartAdded {
        /// Id of the item.
        item_id: String,
        /// Index of the item.
        output_index: usize,
        /// Index of the part.
        summary_index: usize,
        /// The part, empty.
        part: ReasoningPart,
    },
    /// A thought is complete that is given as a summary.
    #[serde(rename = "response.reasoning_summary_part.done")]
    ReasoningSummaryPartDone {
        /// Id of the item.
        item_id: String,
        /// Index of the item.
        output_index: usize,
        /// Index of the part.
        summary_index: usize,
        /// The part.
        part: ReasoningPart,
    },
    /// A thought grows that is given as a summary.
    #[serde(rename = "response.reasoning_summary_text.delta")]
    ReasoningSummaryTextDelta {
        /// Id of the item.
        item_id: String,
        /// Index of the item.
        output_index: usize,
        /// Index of the part.
        summary_index: usize,
        /// New text of the thought.
        delta: String,
    },
    /// The text of a thought is complete that is given as a summary.
    #[serde(rename = "response.reasoning_summary_text.done")]
    ReasoningSummaryTextDone {
        /// Id of the item.
        item_id: String,
        /// Index of the item.
        output_index: usize,
        /// Index of the part.
        summary_index: usize,
        /// The thought.
        text: String,
    },
    /// The arguments of a tool call grow.
    #[serde(rename = "response.function_call_arguments.delta")]
    FunctionCallArgumentsDelta {
        /// Id of the item.
        item_id: String,
        /// Index of the item.
        output_index: usize,
        /// New text of the arguments.
        delta: String,
    },
    /// The arguments of a tool call are complete.
    #[serde(rename = "response.function_call_arguments.done")]
    FunctionCallArgumentsDone {
        /// Id of the item.
        item_id: String,
        /// Index of the item.
        output_index: usize,
        /// Name of the function.
        name: String,
        /// The arguments.
        arguments: String,
    },
}

impl ResponseEvent {
    /// The name of the event, which is also its `type`.
    pub fn name(&self) -> &'static str {
        use ResponseEvent as E;
        match self {
            E::Created { .. } => "response.created",
            E::InProgress { .. } => "response.in_progress",
            E::Completed { .. } => "response.completed",
            E::Incomplete { .. } => "response.incomplete",
            E::Failed { .. } => "response.failed",
            E::OutputItemAdded { .. } => "response.output_item.added",
            E::OutputItemDone { .. } => "response.output_item.done",
            E::ContentPartAdded { .. } => "response.content_part.added",
            E::ContentPartDone { .. } => "response.content_part.done",
            E::OutputTextDelta { .. } => "response.output_text.delta",
            E::OutputTextDone { .. } => "response.output_text.done",
            E::ReasoningTextDelta { .. } => "response.reasoning_text.delta",
            E::ReasoningTextDone { .. } => "response.reasoning_text.done",
            E::ReasoningSummaryPartAdded { .. } => "response.reasoning_summary_part.added",
            E::ReasoningSummaryPartDone { .. } => "response.reasoning_summary_part.done",
            E::ReasoningSummaryTextDelta { .. } => "response.reasoning_summary_text.delta",
            E::ReasoningSummaryTextDone { .. } => "response.reasoning_summary_text.done",
            E::FunctionCallArgumentsDelta { .. } => "response.function_call_arguments.delta",
            E::FunctionCallArgumentsDone { .. } => "response.function_call_arguments.done",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_are_flat_and_named_by_their_type() {
        let id = || "rs_1".to_owned();
        let thought = ReasoningPart::SummaryText { text: String::new() };
        let events = [
            ResponseEvent::OutputTextDelta {
                item_id: id(),
                output_index: 0,
                content_index: 0,
                delta: "a".into(),
                logprobs: Vec::new(),
            },
            ResponseEvent::ReasoningTextDelta { item_id: id(), output_index: 0, content_index: 0, delta: "a".into() },
            ResponseEvent::ReasoningSummaryPartAdded {
                item_id: id(),
                output_index: 0,
                summary_index: 0,
                part: thought,
            },
            ResponseEvent::FunctionCallArgumentsDone {
                item_id: id(),
                output_index: 0,
                name: "f".into(),
                arguments: "{}".into(),
            },
        ];
        for (sequence_number, event) in events.into_iter().enumerate() {
            let name = event.name();
            let json = serde_json::to_value(ResponseStreamEvent { sequence_number, event }).unwrap();
            assert_eq!((&json["type"], &json["sequence_number"]), (&json!(name), &json!(sequence_number)));
            assert_eq!((&json["item_id"], &json["output_index"]), (&json!("rs_1"), &json!(0)));
        }
    }
}
