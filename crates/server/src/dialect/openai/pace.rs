//! How fast answers come, for the metrics.

use super::flow::News;
use crate::app::App;
use crate::metrics::Finished;
use sconce_engine::Finish;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Watches the answers to one request.
pub(super) struct Paces {
    app: Arc<App>,
    model: String,
    begun: Instant,
    answers: Mutex<Vec<Pace>>,
}

/// One answer.
#[derive(Clone, Copy, Default)]
struct Pace {
    tokens: usize,
    first: Option<Duration>,
    last: Option<Instant>,
    over: bool,
}

impl Paces {
    /// Of a request to `model` that came at `begun`.
    pub(super) fn new(app: &Arc<App>, model: &str, begun: Instant) -> Paces {
        Paces { app: app.clone(), model: model.into(), begun, answers: Mutex::default() }
    }

    /// So many answers will come.
    pub(super) fn expect(&self, answers: usize) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).resize(answers, Pace::default());
    }

    /// What happened, before it is passed on.
    pub(super) fn see(&self, news: &News) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        match news {
            News::Text { prompt: true, .. } => {}
            News::Text { tokens, .. } if tokens.is_empty() => {}
            News::Text { answer, tokens, .. } => {
                let Some(pace) = answers.get_mut(*answer) else { return };
                let now = Instant::now();
                match pace.last.replace(now) {
                    None => pace.first = Some(now.duration_since(self.begun)),
                    Some(before) => self.app.metrics.language.gap(&self.model, now.duration_since(before)),
                }
                pace.tokens += tokens.len();
            }
            News::End { answer, finish } => {
                let reason = if *finish == Finish::Length { "length" } else { "stop" };
                answers.get_mut(*answer).into_iter().for_each(|pace| self.finished(pace, reason));
            }
            News::Failed(_) => answers.iter_mut().for_each(|pace| self.finished(pace, "abort")),
        }
    }

    fn finished(&self, pace: &mut Pace, reason: &str) {
        if !std::mem::replace(&mut pace.over, true) {
            let finished = Finished { reason, tokens: pace.tokens, first: pace.first, whole: self.begun.elapsed() };
            self.app.metrics.language.finished(&self.model, &finished);
        }
    }
}
