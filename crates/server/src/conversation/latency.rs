//! Latency of answers, for the metrics: time to first token, time between tokens, end to end.

use super::answer_stream::AnswerEvent;
use crate::app::App;
use crate::metrics::FinishedAnswer;
use sconce_engine::Finish;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Tracks the answers to one request.
pub(super) struct LatencyTracker {
    app: Arc<App>,
    model: String,
    started_at: Instant,
    answers: Mutex<Vec<AnswerLatency>>,
}

/// Latency of one answer.
#[derive(Clone, Copy, Default)]
struct AnswerLatency {
    tokens: usize,
    first: Option<Duration>,
    last: Option<Instant>,
    finished: bool,
}

impl LatencyTracker {
    /// For a request to `model` that arrived at `started_at`.
    pub(super) fn new(app: &Arc<App>, model: &str, started_at: Instant) -> LatencyTracker {
        LatencyTracker { app: app.clone(), model: model.into(), started_at, answers: Mutex::default() }
    }

    /// Sets the number of answers.
    pub(super) fn expect(&self, answers: usize) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).resize(answers, AnswerLatency::default());
    }

    /// Observes an event before it is forwarded.
    pub(super) fn observe(&self, event: &AnswerEvent) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            AnswerEvent::Text { prompt: true, .. } => {}
            AnswerEvent::Text { tokens, .. } if tokens.is_empty() => {}
            AnswerEvent::Text { answer, tokens, .. } => {
                let Some(latency) = answers.get_mut(*answer) else { return };
                let now = Instant::now();
                match latency.last.replace(now) {
                    None => latency.first = Some(now.duration_since(self.started_at)),
                    Some(before) => self.app.metrics.llm.inter_token(&self.model, now.duration_since(before)),
                }
                latency.tokens += tokens.len();
            }
            AnswerEvent::End { answer, finish } => {
                let reason = if *finish == Finish::Length { "length" } else { "stop" };
                answers.get_mut(*answer).into_iter().for_each(|latency| self.finish(latency, reason));
            }
            AnswerEvent::Failed(_) => answers.iter_mut().for_each(|latency| self.finish(latency, "abort")),
        }
    }

    fn finish(&self, latency: &mut AnswerLatency, reason: &str) {
        if !std::mem::replace(&mut latency.finished, true) {
            let finished = FinishedAnswer {
                reason,
                tokens: latency.tokens,
                time_to_first_token: latency.first,
                latency: self.started_at.elapsed(),
            };
            self.app.metrics.llm.finished(&self.model, &finished);
        }
    }
}
