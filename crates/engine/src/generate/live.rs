//! One answer in the making: chooses its tokens, makes text of them, and knows when it ends.

use super::worker::Job;
use super::{Event, Finish, Listener, Pick};
use crate::constrain::{Constraint, Mask};
use crate::sample::{Choice, Failure, Sampler, Text, logprobs_of};
use crate::{Error, Result};
use rayon::prelude::*;
use sconce_ops::Choosing;
use sconce_text::stream::{Detok, Step, Stops};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// What ends an answer, and how long it may get.
#[derive(Clone, Debug)]
pub(crate) struct Ends {
    /// Tokens by which the model ends.
    pub(crate) tokens: Arc<BTreeSet<u32>>,
    /// Texts that end it.
    pub(crate) stop: Arc<[String]>,
    /// The most tokens of an answer.
    pub(crate) most: usize,
}

/// One answer.
pub(crate) struct Live {
    answer: usize,
    sampler: Sampler,
    /// The form it must have, and how far it is.
    form: Option<Constraint>,
    detok: Option<Detok>,
    stops: Stops,
    ends: Ends,
    /// Tokens of the prompt, and of the answer.
    prompt: usize,
    picked: usize,
    /// Chosen, and not yet shown.
    picks: Vec<Pick>,
    /// The tokens of the prompt and how likely they were, as far as that is known; if it is asked for.
    scores: Option<Vec<Pick>>,
    /// The likeliest others that are told with each of them.
    top: u32,
    listener: Arc<Listener>,
}

/// What an answer's next token comes of.
pub(crate) enum Given<'a> {
    /// Logits to choose from, which are used up.
    Logits(&'a mut [f32]),
    /// The token, which was chosen where they are.
    Token(u32),
}

/// How an answer goes on.
pub(crate) enum Turn {
    Token(u32),
    Ended,
}

impl Live {
    /// Answer `answer` of a job, which may have to have a form.
    pub(crate) fn new(answer: usize, job: &Job, form: Option<Constraint>) -> Live {
        Live {
            answer,
            sampler: Sampler::new(job.params.clone(), answer as u32),
            form,
            detok: Some(job.detok.clone()),
            stops: job.stops.clone(),
            ends: job.ends.clone(),
            prompt: job.tokens.len(),
            picked: 0,
            picks: Vec::new(),
            // Nothing comes before the first.
            scores: job.scored.then(|| job.tokens.iter().take(1).map(|id| Pick { id: *id, logprobs: None }).collect()),
            top: job.params.logprobs.unwrap_or(0),
            listener: job.listener.clone(),
        }
    }

    /// Notes how likely tokens of the prompt were: `rows` are the logits behind those at `positions`. Some may have come before,
    /// if the cache had to be computed again. Once all are known they are told, for all answers.
    pub(crate) fn score(&mut self, rows: &[&mut [f32]], positions: Range<usize>, tokens: &[u32]) {
        let Some(scores) = &mut self.scores else { return };
        let known = scores.len();
        let new: Result<Vec<Pick>, Failure> = rows
            .par_iter()
            .zip(positions)
            .filter(|(_, position)| (known..self.prompt).contains(&(position + 1)))
            .map(|(row, position)| {
                let id = tokens[position + 1];
                let logprobs = Some(logprobs_of(row, id, self.top)?);
                Ok(Pick { id, logprobs })
            })
            .collect();
        match new {
            Ok(new) => scores.extend(new),
            Err(failure) => return self.tell(Err(failure.into())),
        }
        if scores.len() == self.prompt {
            self.listener.scored(self.scores.take().unwrap_or_default());
        }
    }

    /// How the next token behind `tokens` is chosen, if that takes nothing but logits.
    pub(crate) fn plain(&self, tokens: &[u32]) -> Option<Choosing> {
        let choosing = self.sampler.plain(Text { tokens, prompt: self.prompt });
        choosing.filter(|_| self.form.is_none())
    }

    /// Chooses the next token behind `tokens` and tells what it makes.
    pub(crate) fn next(&mut self, given: Given<'_>, tokens: &[u32]) -> Turn {
        // The prompt was all that was asked for.
        if self.ends.most == 0 {
            return self.end(Finish::Length);
        }
        let choice = match given {
            Given::Logits(logits) => self.choose(logits, Text { tokens, prompt: self.prompt }),
            Given::Token(token) => Ok(Choice { token, logprobs: None }),
        };
        let choice = match choice {
            Ok(choice) => choice,
            Err(e) => {
                self.tell(Err(e));
                return Turn::Ended;
            }
        };
        if self.ends.tokens.contains(&choice.token) {
            return self.end(Finish::End);
        }
        self.picked += 1;
        self.picks.push(Pick { id: choice.token, logprobs: choice.logprobs });
        let text = self.detok.as_mut().and_then(|detok| detok.push(choice.token)).unwrap_or_default();
        match self.stops.push(&text) {
            Step::Stopped { text, stop } => {
                self.show(text);
                let stop = self.ends.stop.get(stop).cloned().unwrap_or_default();
                self.tell(Ok(Event::End { answer: self.answer, finish: Finish::Stop(stop) }));
                Turn::Ended
            }
            Step::Text(text) => {
                if !text.is_empty() {
                    self.show(text);
                }
                if self.form.as_ref().is_some_and(Constraint::is_done) {
                    self.end(Finish::End)
                } else if self.picked >= self.ends.most {
                    self.end(Finish::Length)
                } else {
                    Turn::Token(choice.token)
                }
            }
        }
    }

    /// The next token, one that the form allows. This is called once a token, also where the cache is computed again.
    fn choose(&mut self, logits: &mut [f32], text: Text<'_>) -> Result<Choice> {
        let mask = self.form.as_mut().map(Constraint::mask).transpose()?;
        let choice = self.sampler.next(logits, text, mask.as_ref().map(Mask::words))?;
        if let Some(form) = &mut self.form {
            form.commit(choice.token)?;
        }
        Ok(choice)
    }

    /// Whether nobody listens any more.
    pub(crate) fn gone(&self, now: Instant) -> bool {
        self.listener.gone(now)
    }

    /// Its prompt is being run, of which so many tokens were in the cache. Whether that is new.
    pub(crate) fn begin(&self, cached_tokens: usize) -> bool {
        self.listener.begin(cached_tokens)
    }

    /// Tokens of the prompt.
    pub(crate) fn prompt(&self) -> usize {
        self.prompt
    }

    /// Tells an error that ends it.
    pub(crate) fn fail(&self, error: Error) {
        self.tell(Err(error));
    }

    /// What was held back, and the end.
    fn end(&mut self, finish: Finish) -> Turn {
        let rest = self.detok.take().map(Detok::finish);
        let rest = rest.and_then(|rest| rest.ok()).unwrap_or_default();
        match self.stops.push(&rest) {
            Step::Stopped { text, stop } => {
                self.show(text);
                let stop = self.ends.stop.get(stop).cloned().unwrap_or_default();
                self.tell(Ok(Event::End { answer: self.answer, finish: Finish::Stop(stop) }));
            }
            Step::Text(text) => {
                let text = text + &self.stops.finish();
                if !text.is_empty() || !self.picks.is_empty() {
                    self.show(text);
                }
                self.tell(Ok(Event::End { answer: self.answer, finish }));
            }
        }
        Turn::Ended
    }

    fn show(&mut self, text: String) {
        let picks = std::mem::take(&mut self.picks);
        self.tell(Ok(Event::Text { answer: self.answer, text, picks }));
    }

    fn tell(&self, event: Result<Event>) {
        // If nobody listens any more, the next step finds out.
        self.listener.tell(event);
    }
}
