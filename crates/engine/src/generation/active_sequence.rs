//! One answer in the making: chooses its tokens, makes text of them, and knows when it ends.

use super::{Finish, GenerationReply, SampledToken};
use crate::error::Result;
use crate::sampling::{Choice, Failure, GenerationParams, Sampler, Text, logprobs_of};
use crate::structured_output::{Constraint, TokenMask};
use sconce_ops::{SamplingParams, threads};
use sconce_text::stream::{Detokenizer, Step, Stops};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// A generation request, ready to run.
pub(crate) struct GenerateRequest {
    pub(crate) tokens: Vec<u32>,
    pub(crate) params: Arc<GenerationParams>,
    pub(crate) stop: StopCriteria,
    /// Makes text of an answer, behind the prompt where it goes on from that.
    pub(crate) detok: Detokenizer,
    /// Finds the stop texts in it.
    pub(crate) stops: Stops,
    /// The form of each answer, if they must have one.
    pub(crate) forms: Vec<Constraint>,
    /// Whether the log probabilities of the prompt's tokens are wanted.
    pub(crate) scored: bool,
    /// What every answer begins with.
    pub(crate) echo: Option<super::Echo>,
}

/// What ends an answer, and how long it may get.
#[derive(Clone, Debug)]
pub(crate) struct StopCriteria {
    /// Tokens by which the model ends.
    pub(crate) tokens: Arc<BTreeSet<u32>>,
    /// Texts that end it.
    pub(crate) texts: Arc<[String]>,
    /// The most tokens of an answer.
    pub(crate) most: usize,
}

/// One answer that runs.
pub(crate) struct ActiveSequence {
    answer: usize,
    sampler: Sampler,
    /// The form it must have, and how far it is.
    form: Option<Constraint>,
    detok: Option<Detokenizer>,
    stops: Stops,
    stop: StopCriteria,
    /// Tokens of the prompt, and of the answer.
    prompt: usize,
    picked: usize,
    /// Chosen, and not yet shown.
    picks: Vec<SampledToken>,
    /// The tokens of the prompt and how likely they were, as far as that is known; if it is asked for.
    scores: Option<Vec<SampledToken>>,
    /// The likeliest others that are told with each of them.
    top: u32,
    reply: Arc<GenerationReply>,
}

/// What an answer's next token comes of.
pub(crate) enum NextToken<'a> {
    /// Logits to choose from, which are used up.
    Logits(&'a mut [f32]),
    /// The token, which was chosen where they are.
    Token(u32),
}

/// How an answer goes on.
pub(crate) enum StepOutput {
    Token(u32),
    Ended,
}

impl ActiveSequence {
    /// Answer `answer` of a request, which may have to have a form.
    pub(crate) fn new(
        answer: usize,
        request: &GenerateRequest,
        form: Option<Constraint>,
        reply: &Arc<GenerationReply>,
    ) -> ActiveSequence {
        ActiveSequence {
            answer,
            sampler: Sampler::new(request.params.clone(), answer as u32),
            form,
            detok: Some(request.detok.clone()),
            stops: request.stops.clone(),
            stop: request.stop.clone(),
            prompt: request.tokens.len(),
            picked: 0,
            picks: Vec::new(),
            // Nothing comes before the first.
            scores: request
                .scored
                .then(|| request.tokens.iter().take(1).map(|id| SampledToken { id: *id, logprobs: None }).collect()),
            top: request.params.logprobs.unwrap_or(0),
            reply: reply.clone(),
        }
    }

    /// Notes how likely tokens of the prompt were: `rows` are the logits behind those at `positions`. Some may have come before,
    /// if the cache had to be computed again. Once all are known they are told, for all answers.
    pub(crate) fn score(&mut self, rows: &[&mut [f32]], positions: Range<usize>, tokens: &[u32]) {
        let Some(scores) = &mut self.scores else { return };
        let known = scores.len();
        let new: Vec<_> = rows
            .iter()
            .zip(positions)
            .filter(|(_, position)| (known..self.prompt).contains(&(position + 1)))
            .map(|(row, position)| (&**row, tokens[position + 1]))
            .collect();
        let top = self.top;
        let pick = |i: usize| -> Result<SampledToken, Failure> {
            let (row, id) = new[i];
            Ok(SampledToken { id, logprobs: Some(logprobs_of(row, id, top)?) })
        };
        match threads::map(new.len(), pick).into_iter().collect::<Result<Vec<SampledToken>, Failure>>() {
            Ok(new) => scores.extend(new),
            Err(failure) => return self.reply.fail(failure.into()),
        }
        if scores.len() == self.prompt {
            self.reply.scored(&self.scores.take().unwrap_or_default());
        }
    }

    /// How the next token behind `tokens` is chosen, if that takes nothing but logits.
    pub(crate) fn plain(&self, tokens: &[u32]) -> Option<SamplingParams> {
        let choosing = self.sampler.plain(Text { tokens, prompt: self.prompt });
        choosing.filter(|_| self.form.is_none())
    }

    /// Chooses the next token behind `tokens` and tells what it makes.
    pub(crate) fn next(&mut self, given: NextToken<'_>, tokens: &[u32]) -> StepOutput {
        // The prompt was all that was asked for.
        if self.stop.most == 0 {
            return self.end(Finish::Length);
        }
        let choice = match given {
            NextToken::Logits(logits) => self.choose(logits, Text { tokens, prompt: self.prompt }),
            NextToken::Token(token) => Ok(Choice { token, logprobs: None }),
        };
        let choice = match choice {
            Ok(choice) => choice,
            Err(e) => {
                self.reply.fail(e);
                return StepOutput::Ended;
            }
        };
        if self.stop.tokens.contains(&choice.token) {
            return self.end(Finish::End);
        }
        self.picked += 1;
        self.picks.push(SampledToken { id: choice.token, logprobs: choice.logprobs });
        let text = self.detok.as_mut().and_then(|detok| detok.push(choice.token)).unwrap_or_default();
        match self.stops.push(&text) {
            Step::Stopped { text, stop } => {
                self.show(text);
                self.reply.end(self.answer, self.stopped_by(stop), None);
                StepOutput::Ended
            }
            Step::Text(text) => {
                if !text.is_empty() {
                    self.show(text);
                }
                if self.form.as_ref().is_some_and(Constraint::is_done) {
                    self.end(Finish::End)
                } else if self.picked >= self.stop.most {
                    self.end(Finish::Length)
                } else {
                    StepOutput::Token(choice.token)
                }
            }
        }
    }

    /// The next token, one that the form allows. This is called once a token, also where the cache is computed again.
    fn choose(&mut self, logits: &mut [f32], text: Text<'_>) -> Result<Choice> {
        let mask = self.form.as_mut().map(Constraint::mask).transpose()?;
        let choice = self.sampler.next(logits, text, mask.as_ref().map(TokenMask::words))?;
        if let Some(form) = &mut self.form {
            form.commit(choice.token)?;
        }
        Ok(choice)
    }

    /// Its prompt's first step begins, of which so many tokens were in the KV cache. Returns whether this is the first call.
    pub(crate) fn begin(&self, cached_tokens: usize) -> bool {
        self.reply.begin(cached_tokens)
    }

    /// Tokens of the prompt.
    pub(crate) fn prompt(&self) -> usize {
        self.prompt
    }

    fn stopped_by(&self, text: usize) -> Finish {
        Finish::Stop(self.stop.texts.get(text).cloned().unwrap_or_default())
    }

    /// What was held back, and the end.
    fn end(&mut self, finish: Finish) -> StepOutput {
        let rest = self.detok.take().map(Detokenizer::finish);
        let rest = rest.and_then(|rest| rest.ok()).unwrap_or_default();
        match self.stops.push(&rest) {
            Step::Stopped { text, stop } => {
                self.show(text);
                self.reply.end(self.answer, self.stopped_by(stop), None);
            }
            Step::Text(text) => {
                let text = text + &self.stops.finish();
                if !text.is_empty() || !self.picks.is_empty() {
                    self.show(text);
                }
                self.reply.end(self.answer, finish, None);
            }
        }
        StepOutput::Ended
    }

    fn show(&mut self, text: String) {
        let picks = std::mem::take(&mut self.picks);
        self.reply.text(self.answer, text, picks);
    }
}
