//! Builds a response from the parts of an answer, with the events that tell a client how it grows.

use super::id;
use crate::conversation::ChatFinish;
use crate::error::{Fault, FaultKind};
use sconce_api::openai::chat::TokenLogprob;
use sconce_api::openai::responses::events::{ResponseEvent, ResponseStreamEvent};
use sconce_api::openai::responses::input::ItemStatus;
use sconce_api::openai::responses::output::{
    FunctionCallItem, OutputItem, OutputMessage, OutputPart, ReasoningItem, ReasoningPart,
};
use sconce_api::openai::responses::response::{
    IncompleteDetails, Response, ResponseError, ResponseStatus, ResponseUsage,
};
use sconce_engine::AnswerPart;

/// What the request asks for beside the answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    /// Thoughts are given as summaries.
    pub(super) has_summaries: bool,
    /// Texts have logprobs.
    pub(super) has_logprobs: bool,
}

/// A response that grows, and its events.
pub(super) struct ResponseEvents {
    response: Response,
    options: Options,
    /// Whether the last item of the output still grows.
    is_open: bool,
    /// Logprobs of tokens that come without text, for the next text.
    logprobs: Vec<TokenLogprob>,
    sequence_number: usize,
}

/// Every item has one part.
const PART: usize = 0;

impl ResponseEvents {
    pub(super) fn new(response: Response, options: Options) -> ResponseEvents {
        ResponseEvents { response, options, is_open: false, logprobs: Vec::new(), sequence_number: 0 }
    }

    pub(super) fn response(&self) -> &Response {
        &self.response
    }

    pub(super) fn into_response(self) -> Response {
        self.response
    }

    /// The events in front of the answer.
    pub(super) fn start(&mut self) -> Vec<ResponseStreamEvent> {
        let response = Box::new(self.response.clone());
        self.numbered(vec![
            ResponseEvent::Created { response: response.clone() },
            ResponseEvent::InProgress { response },
        ])
    }

    /// The events of a part of the answer.
    pub(super) fn part(
        &mut self,
        part: AnswerPart,
        logprobs: Vec<TokenLogprob>,
        call_id: impl FnOnce() -> String,
    ) -> Vec<ResponseStreamEvent> {
        let mut events = Vec::new();
        match part {
            AnswerPart::Text(text) => {
                if self.options.has_logprobs {
                    self.logprobs.extend(logprobs);
                }
                if !text.is_empty() {
                    self.add_text(text, &mut events);
                }
            }
            AnswerPart::Reasoning(thought) if thought.is_empty() => {}
            AnswerPart::Reasoning(thought) => self.add_thought(thought, &mut events),
            AnswerPart::Call { name, .. } => {
                let (id, status) = (id("fc_"), ItemStatus::InProgress);
                let call = FunctionCallItem { id, call_id: call_id(), name, arguments: String::new(), status };
                self.open(OutputItem::FunctionCall(call), &mut events);
            }
            // Arguments belong to the last call: the model writes one after the other.
            AnswerPart::Arguments { text: delta, .. } => {
                let (item_id, output_index) = self.place();
                if let Some(OutputItem::FunctionCall(call)) = self.response.output.last_mut() {
                    call.arguments.push_str(&delta);
                    events.push(ResponseEvent::FunctionCallArgumentsDelta { item_id, output_index, delta });
                }
            }
        }
        self.numbered(events)
    }

    fn add_text(&mut self, delta: String, events: &mut Vec<ResponseEvent>) {
        if !self.is_growing(|item| matches!(item, OutputItem::Message(_))) {
            let (id, status) = (id("msg_"), ItemStatus::InProgress);
            let message = OutputMessage { id, role: "assistant".into(), content: Vec::new(), status };
            self.open(OutputItem::Message(message), events);
            let part = OutputPart::OutputText { text: String::new(), annotations: Vec::new(), logprobs: Vec::new() };
            self.add_part(part.clone(), events);
            if let Some(OutputItem::Message(message)) = self.response.output.last_mut() {
                message.content.push(part);
            }
        }
        let (item_id, output_index) = self.place();
        let logprobs = std::mem::take(&mut self.logprobs);
        if let Some(OutputItem::Message(message)) = self.response.output.last_mut()
            && let Some(OutputPart::OutputText { text, logprobs: all, .. }) = message.content.last_mut()
        {
            text.push_str(&delta);
            all.extend(logprobs.iter().cloned());
        }
        events.push(ResponseEvent::OutputTextDelta { item_id, output_index, content_index: PART, delta, logprobs });
    }

    fn add_thought(&mut self, delta: String, events: &mut Vec<ResponseEvent>) {
        if !self.is_growing(|item| matches!(item, OutputItem::Reasoning(_))) {
            let (id, status) = (id("rs_"), ItemStatus::InProgress);
            let thought = ReasoningItem { id, summary: Vec::new(), content: Vec::new(), status };
            self.open(OutputItem::Reasoning(thought), events);
            let (item_id, output_index) = self.place();
            if self.options.has_summaries {
                let part = ReasoningPart::SummaryText { text: String::new() };
                events.push(ResponseEvent::ReasoningSummaryPartAdded {
                    item_id,
                    output_index,
                    summary_index: PART,
                    part: part.clone(),
                });
                self.change_thought(|thought| thought.summary.push(part));
            } else {
                self.add_part(OutputPart::ReasoningText { text: String::new() }, events);
                let part = ReasoningPart::ReasoningText { text: String::new() };
                self.change_thought(|thought| thought.content.push(part));
            }
        }
        let (item_id, output_index) = self.place();
        self.change_thought(|thought| {
            let part = thought.content.last_mut().or(thought.summary.last_mut());
            if let Some(ReasoningPart::ReasoningText { text } | ReasoningPart::SummaryText { text }) = part {
                text.push_str(&delta);
            }
        });
        events.push(match self.options.has_summaries {
            true => ResponseEvent::ReasoningSummaryTextDelta { item_id, output_index, summary_index: PART, delta },
            false => ResponseEvent::ReasoningTextDelta { item_id, output_index, content_index: PART, delta },
        });
    }

    fn change_thought(&mut self, change: impl FnOnce(&mut ReasoningItem)) {
        if let Some(OutputItem::Reasoning(thought)) = self.response.output.last_mut() {
            change(thought);
        }
    }

    fn add_part(&self, part: OutputPart, events: &mut Vec<ResponseEvent>) {
        let (item_id, output_index) = self.place();
        events.push(ResponseEvent::ContentPartAdded { item_id, output_index, content_index: PART, part });
    }

    /// Whether the last item grows and is of this kind.
    fn is_growing(&self, is_of_kind: impl FnOnce(&OutputItem) -> bool) -> bool {
        self.is_open && self.response.output.last().is_some_and(is_of_kind)
    }

    /// Id and index of the last item.
    fn place(&self) -> (String, usize) {
        let output = &self.response.output;
        (output.last().map(|item| item.id().to_owned()).unwrap_or_default(), output.len().saturating_sub(1))
    }

    /// Ends the last item and begins another one.
    fn open(&mut self, item: OutputItem, events: &mut Vec<ResponseEvent>) {
        self.close(ItemStatus::Completed, events);
        self.is_open = true;
        events.push(ResponseEvent::OutputItemAdded { output_index: self.response.output.len(), item: item.clone() });
        self.response.output.push(item);
    }

    /// Ends the last item.
    fn close(&mut self, ended: ItemStatus, events: &mut Vec<ResponseEvent>) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let (item_id, output_index) = self.place();
        let Some(item) = self.response.output.last_mut() else { return };
        match item {
            OutputItem::Message(OutputMessage { content, status, .. }) => {
                *status = ended;
                for (content_index, part) in content.iter().enumerate() {
                    if let OutputPart::OutputText { text, logprobs, .. } = part {
                        events.push(ResponseEvent::OutputTextDone {
                            item_id: item_id.clone(),
                            output_index,
                            content_index,
                            text: text.clone(),
                            logprobs: logprobs.clone(),
                        });
                    }
                    let (item_id, part) = (item_id.clone(), part.clone());
                    events.push(ResponseEvent::ContentPartDone { item_id, output_index, content_index, part });
                }
            }
            OutputItem::Reasoning(ReasoningItem { summary, content, status, .. }) => {
                *status = ended;
                for (index, part) in content.iter().chain(summary.iter()).enumerate() {
                    events.extend(thought_done(part, &item_id, output_index, index));
                }
            }
            OutputItem::FunctionCall(FunctionCallItem { name, arguments, status, .. }) => {
                *status = ended;
                let (name, arguments) = (name.clone(), arguments.clone());
                events.push(ResponseEvent::FunctionCallArgumentsDone { item_id, output_index, name, arguments });
            }
        }
        events.push(ResponseEvent::OutputItemDone { output_index, item: item.clone() });
    }

    /// The events at the end of the answer, but for the last.
    pub(super) fn end(&mut self, finish: &ChatFinish, usage: ResponseUsage, now: u64) -> Vec<ResponseStreamEvent> {
        let is_complete = *finish != ChatFinish::Length;
        let mut events = Vec::new();
        self.close(if is_complete { ItemStatus::Completed } else { ItemStatus::Incomplete }, &mut events);
        self.response.usage = Some(usage);
        if is_complete {
            self.response.status = ResponseStatus::Completed;
            self.response.completed_at = Some(now);
        } else {
            self.response.status = ResponseStatus::Incomplete;
            self.response.incomplete_details = Some(IncompleteDetails { reason: "max_output_tokens".into() });
        }
        self.numbered(events)
    }

    /// The last event.
    pub(super) fn last(&mut self) -> ResponseStreamEvent {
        let response = Box::new(self.response.clone());
        let event = match response.status {
            ResponseStatus::Completed => ResponseEvent::Completed { response },
            ResponseStatus::Incomplete => ResponseEvent::Incomplete { response },
            ResponseStatus::InProgress | ResponseStatus::Failed => ResponseEvent::Failed { response },
        };
        self.number(event)
    }

    /// The last events of a response that fails.
    pub(super) fn fail(&mut self, fault: &Fault, usage: ResponseUsage) -> Vec<ResponseStreamEvent> {
        let mut events = Vec::new();
        self.close(ItemStatus::Incomplete, &mut events);
        let code = if fault.kind == FaultKind::Overloaded { "rate_limit_exceeded" } else { "server_error" };
        self.response.status = ResponseStatus::Failed;
        self.response.completed_at = None;
        self.response.incomplete_details = None;
        self.response.usage = Some(usage);
        self.response.error = Some(ResponseError { code: code.into(), message: fault.message.clone() });
        let mut events = self.numbered(events);
        events.push(self.last());
        events
    }

    fn numbered(&mut self, events: Vec<ResponseEvent>) -> Vec<ResponseStreamEvent> {
        events.into_iter().map(|event| self.number(event)).collect()
    }

    fn number(&mut self, event: ResponseEvent) -> ResponseStreamEvent {
        let sequence_number = self.sequence_number;
        self.sequence_number += 1;
        ResponseStreamEvent { sequence_number, event }
    }
}

/// The events at the end of a thought.
fn thought_done(part: &ReasoningPart, item_id: &str, output_index: usize, index: usize) -> [ResponseEvent; 2] {
    let id = || item_id.to_owned();
    match part.clone() {
        ReasoningPart::ReasoningText { text } => {
            let part = OutputPart::ReasoningText { text: text.clone() };
            [
                ResponseEvent::ReasoningTextDone { item_id: id(), output_index, content_index: index, text },
                ResponseEvent::ContentPartDone { item_id: id(), output_index, content_index: index, part },
            ]
        }
        ReasoningPart::SummaryText { text } => {
            let part = part.clone();
            [
                ResponseEvent::ReasoningSummaryTextDone { item_id: id(), output_index, summary_index: index, text },
                ResponseEvent::ReasoningSummaryPartDone { item_id: id(), output_index, summary_index: index, part },
            ]
        }
    }
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
