//! The reply of a generation request, which all of its answers share.

use super::{Event, Finish, SampledToken};
use crate::error::Error;
use crate::runtime::Reply;
use crate::sampling::Failure;
use sconce_ops::DType;
use std::sync::{Arc, Mutex, PoisonError};

/// The reply of a request with one or several answers. It ends with the last of them.
pub(crate) struct GenerationReply {
    reply: Arc<Reply<Event>>,
    answers: usize,
    /// The format of the model's activations.
    dtype: DType,
    /// Answers that have not ended. Locked while an end is delivered: answers end on several
    /// threads, and the reply accepts nothing after the last.
    left: Mutex<usize>,
    /// The beginning of every answer.
    echo: Mutex<Option<Echo>>,
}

/// The prompt, for answers that begin with it.
pub(crate) struct Echo {
    pub(crate) text: String,
    /// Whether it is sent only when the log probabilities of its tokens are known.
    pub(crate) scored: bool,
}

impl GenerationReply {
    /// A reply for `answers` answers, which begin with `echo`, of a model in `dtype`.
    pub(crate) fn new(
        reply: &Arc<Reply<Event>>,
        answers: usize,
        echo: Option<Echo>,
        dtype: DType,
    ) -> Arc<GenerationReply> {
        let (reply, left, echo) = (reply.clone(), Mutex::new(answers), Mutex::new(echo));
        Arc::new(GenerationReply { reply, answers, dtype, left, echo })
    }

    /// Called when the prompt's first step begins, with the number of its tokens in the prefix
    /// cache. Returns whether this is the first call.
    pub(crate) fn begin(&self, cached_tokens: usize) -> bool {
        let is_first = self.reply.start();
        if is_first {
            self.reply.send(Event::Begun { cached_tokens });
            let echo = self.take_echo(|echo| !echo.scored);
            self.send_echo(echo, &[]);
        }
        is_first
    }

    /// Called when the log probabilities of the prompt's tokens are known.
    pub(crate) fn scored(&self, sampled: &[SampledToken]) {
        let echo = self.take_echo(|_| true);
        self.send_echo(echo, sampled);
    }

    /// Called when tokens of the prompt were computed.
    pub(crate) fn progress(&self, processed: usize) {
        self.reply.send(Event::Progress { processed });
    }

    /// Sends new text of an answer.
    pub(crate) fn text(&self, answer: usize, text: String, sampled: Vec<SampledToken>) {
        self.reply.send(Event::Text { answer, text, sampled });
    }

    /// Ends an answer, with its score if a beam search found it.
    pub(crate) fn end(&self, answer: usize, finish: Finish, score: Option<f32>) {
        let event = Event::End { answer, finish, score };
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        *left = left.saturating_sub(1);
        if *left == 0 { self.reply.finish(event) } else { self.reply.send(event) }
    }

    /// Ends all answers with an error.
    pub(crate) fn fail(&self, error: Error) {
        self.reply.fail(error);
    }

    /// The error for a token that could not be sampled.
    pub(crate) fn sampling_error(&self, failure: Failure) -> Error {
        match failure {
            Failure::NotFinite { .. } => self.unsound(),
            Failure::Empty => Error::Unsound(failure.to_string()),
            Failure::NothingAllowed => Error::Input(failure.to_string()),
        }
    }

    /// The error for logits that are not finite.
    pub(crate) fn unsound(&self) -> Error {
        Error::unsound("a row of logits", self.dtype)
    }

    fn take_echo(&self, which: impl FnOnce(&Echo) -> bool) -> Option<Echo> {
        self.echo.lock().unwrap_or_else(PoisonError::into_inner).take_if(|echo| which(echo))
    }

    /// Sends the beginning of every answer.
    fn send_echo(&self, echo: Option<Echo>, sampled: &[SampledToken]) {
        let Some(echo) = echo else { return };
        (0..self.answers).for_each(|answer| self.text(answer, echo.text.clone(), sampled.to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::RequestContext;
    use sconce_ops::Device;
    use std::sync::{Barrier, mpsc};

    #[test]
    fn every_answer_ends_even_if_several_end_at_the_same_moment() {
        const ANSWERS: usize = 4;
        for round in 0..2000 {
            let (sender, events) = mpsc::channel();
            let sink = Box::new(move |event| drop(sender.send(event)));
            let reply = Arc::new(Reply::new(RequestContext::default(), Device::Cpu, sink));
            let generation = GenerationReply::new(&reply, ANSWERS, None, DType::F32);
            let start = Barrier::new(ANSWERS);
            std::thread::scope(|scope| {
                for answer in 0..ANSWERS {
                    let (generation, start) = (&generation, &start);
                    scope.spawn(move || {
                        start.wait();
                        generation.end(answer, Finish::Length, None);
                    });
                }
            });
            let mut ended: Vec<usize> = events
                .try_iter()
                .map(|event| match event.unwrap() {
                    Event::End { answer, .. } => answer,
                    other => panic!("{other:?}"),
                })
                .collect();
            ended.sort_unstable();
            assert_eq!(ended, [0, 1, 2, 3], "round {round}");
        }
    }
}
