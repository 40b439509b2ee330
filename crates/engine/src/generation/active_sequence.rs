//! One running answer: samples its tokens, detokenizes them, and decides when it ends.

use super::{Finish, GenerationReply, SampledToken};
use crate::error::{Error, Result};
use crate::reasoning::{Divided, Thought, ThoughtRules};
use crate::sampling::{Choice, Failure, GenerationParams, Sampler, Text, logprobs_of};
use crate::structured_output::{Constraint, TokenMask};
use sconce_ops::{SamplingParams, threads};
use sconce_text::stream::{Detokenizer, Step, Stops};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// A generation request, checked and tokenized.
pub(crate) struct GenerateRequest {
    pub(crate) tokens: Vec<u32>,
    pub(crate) params: Arc<GenerationParams>,
    pub(crate) stop: StopCriteria,
    /// The detokenizer of an answer, after the prompt if the answer continues it.
    pub(crate) detok: Detokenizer,
    /// Finds the stop strings.
    pub(crate) stops: Stops,
    /// The constraint of each answer, for structured output.
    pub(crate) constraints: Vec<Constraint>,
    /// How the answers may reason.
    pub(crate) thought: Option<ThoughtRules>,
    /// Whether the log probabilities of the prompt's tokens are wanted.
    pub(crate) scored: bool,
    /// The beginning of every answer.
    pub(crate) echo: Option<super::Echo>,
}

/// What ends an answer.
#[derive(Clone, Debug)]
pub(crate) struct StopCriteria {
    /// End tokens.
    pub(crate) tokens: Arc<BTreeSet<u32>>,
    /// Stop strings.
    pub(crate) texts: Arc<[String]>,
    /// The most tokens of an answer.
    pub(crate) most: usize,
}

/// One running answer.
pub(crate) struct ActiveSequence {
    answer: usize,
    sampler: Sampler,
    /// The constraint and its state.
    constraint: Option<Constraint>,
    /// The thought before the answer, of a model that reasons.
    thought: Option<Thought>,
    detok: Option<Detokenizer>,
    stops: Stops,
    stop: StopCriteria,
    /// Tokens of the prompt, and of the answer.
    prompt: usize,
    generated: usize,
    /// Sampled, but not yet sent.
    sampled: Vec<SampledToken>,
    /// The prompt's tokens with their log probabilities, as far as computed; if requested.
    scores: Option<Vec<SampledToken>>,
    /// How many of the likeliest tokens to report for each.
    top: u32,
    reply: Arc<GenerationReply>,
}

/// The input for an answer's next token.
pub(crate) enum NextToken<'a> {
    /// Logits to sample from, which are overwritten.
    Logits(&'a mut [f32]),
    /// The token that the device sampled.
    Token(u32),
}

/// How an answer continues.
pub(crate) enum StepOutput {
    Token(u32),
    Ended,
}

impl ActiveSequence {
    /// Answer `answer` of a request, with an optional constraint.
    pub(crate) fn new(
        answer: usize,
        request: &GenerateRequest,
        constraint: Option<Constraint>,
        reply: &Arc<GenerationReply>,
    ) -> ActiveSequence {
        ActiveSequence {
            answer,
            sampler: Sampler::new(request.params.clone(), answer as u32),
            constraint,
            thought: request.thought.clone().map(Thought::new),
            detok: Some(request.detok.clone()),
            stops: request.stops.clone(),
            stop: request.stop.clone(),
            prompt: request.tokens.len(),
            generated: 0,
            sampled: Vec::new(),
            // Nothing comes before the first token.
            scores: request
                .scored
                .then(|| request.tokens.iter().take(1).map(|id| SampledToken { id: *id, logprobs: None }).collect()),
            top: request.params.logprobs.unwrap_or(0),
            reply: reply.clone(),
        }
    }

    /// Records the log probabilities of prompt tokens: `rows` are the logits at `positions`. Some
    /// may be repeated, if the sequence was preempted and computed again. Once all are known, they
    /// are sent for all answers.
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
            Err(failure) => return self.reply.fail(self.reply.sampling_error(failure)),
        }
        if scores.len() == self.prompt {
            self.reply.scored(&self.scores.take().unwrap_or_default());
        }
    }

    /// The sampling parameters for the token after `tokens`, if the device can sample it: no
    /// constraint, penalties, bias or logprobs.
    pub(crate) fn device_params(&self, tokens: &[u32]) -> Option<SamplingParams> {
        let params = self.sampler.device_params(Text { tokens, prompt: self.prompt });
        params.filter(|_| self.constraint.is_none())
    }

    /// Samples the next token after `tokens` and sends the resulting text.
    pub(crate) fn next(&mut self, given: NextToken<'_>, tokens: &[u32]) -> StepOutput {
        // Only the prompt was requested.
        if self.stop.most == 0 {
            return self.end(Finish::Length);
        }
        let choice = match self.choose(given, tokens) {
            Ok(choice) => choice,
            Err(e) => {
                self.reply.fail(e);
                return StepOutput::Ended;
            }
        };
        if self.stop.tokens.contains(&choice.token) {
            return self.end(Finish::End);
        }
        self.generated += 1;
        self.sampled.push(SampledToken { id: choice.token, logprobs: choice.logprobs });
        let text = self.detok.as_mut().and_then(|detok| detok.push(choice.token)).unwrap_or_default();
        let Divided { thought, answer, is_boundary } = match &mut self.thought {
            Some(state) => state.push(choice.token, text),
            None => Divided { answer: text, ..Divided::default() },
        };
        // An event never has tokens of both a thought and the answer, so that they can be counted.
        if is_boundary || !thought.is_empty() {
            self.send_text(thought);
        }
        match self.stops.push(&answer) {
            Step::Stopped { text, stop } => {
                self.send_text(text);
                self.reply.end(self.answer, self.stopped_by(stop), None);
                StepOutput::Ended
            }
            Step::Text(text) => {
                if !text.is_empty() {
                    self.send_text(text);
                }
                if self.constraint.as_ref().is_some_and(Constraint::is_done) {
                    self.end(Finish::End)
                } else if self.generated >= self.stop.most {
                    self.end(Finish::Length)
                } else {
                    StepOutput::Token(choice.token)
                }
            }
        }
    }

    /// The next token: sampled, or forced because the thought has to end.
    fn choose(&mut self, mut given: NextToken<'_>, tokens: &[u32]) -> Result<Choice> {
        if let Some(forced) = self.thought.as_ref().and_then(Thought::forced) {
            return self.given(&given, forced);
        }
        let choice = match &mut given {
            NextToken::Logits(logits) => self.sample(logits, Text { tokens, prompt: self.prompt })?,
            NextToken::Token(token) => Choice { token: *token, logprobs: None },
        };
        // An answer with a format does not end within its thought: the thought ends instead.
        if self.constraint.is_some()
            && self.stop.tokens.contains(&choice.token)
            && let Some(thought) = self.thought.as_mut().filter(|thought| thought.is_inside())
        {
            thought.end();
            if let Some(forced) = thought.forced() {
                return self.given(&given, forced);
            }
        }
        Ok(choice)
    }

    /// The choice of a token that is not sampled.
    fn given(&self, given: &NextToken<'_>, token: u32) -> Result<Choice> {
        match given {
            NextToken::Logits(logits) => {
                self.sampler.given(logits, token).map_err(|failure| self.reply.sampling_error(failure))
            }
            NextToken::Token(_) => Ok(Choice { token, logprobs: None }),
        }
    }

    /// Samples a token that the constraint allows. Called once per token, even if the KV cache is
    /// computed again.
    fn sample(&mut self, logits: &mut [f32], text: Text<'_>) -> Result<Choice> {
        let is_thinking = self.thought.as_ref().is_some_and(Thought::is_inside);
        let mut constraint = self.constraint.as_mut().filter(|_| !is_thinking);
        let mut mask = constraint.as_deref_mut().map(Constraint::mask).transpose()?;
        let opening = self.thought.as_ref().and_then(Thought::opening);
        if let (Some(mask), Some(opening)) = (&mut mask, opening) {
            mask.allow(opening);
        }
        let choice = self.sampler.next(logits, text, mask.as_ref().map(TokenMask::words));
        let choice = choice.map_err(|failure| self.reply.sampling_error(failure))?;
        if let Some(constraint) = constraint.filter(|_| opening != Some(choice.token)) {
            constraint.commit(choice.token)?;
            if let Some(thought) = &mut self.thought {
                thought.answers();
            }
        }
        Ok(choice)
    }

    /// Called when the prompt's first step begins, with the number of its tokens in the prefix
    /// cache. Returns whether this is the first call.
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

    /// Sends the text that was held back, and the end.
    fn end(&mut self, finish: Finish) -> StepOutput {
        let rest = self.detok.take().map_or(Ok(String::new()), Detokenizer::finish);
        self.end_after(rest, finish)
    }

    /// Ends the answer with the last text of the detokenizer, or with its error.
    fn end_after(&mut self, rest: Result<String, String>, finish: Finish) -> StepOutput {
        let rest = match rest {
            Ok(rest) => rest,
            Err(why) => {
                let what = format!("the tokenizer cannot decode the answer's tokens: {why}");
                self.reply.fail(Error::Input(what));
                return StepOutput::Ended;
            }
        };
        let held = self.thought.as_mut().map(Thought::finish).unwrap_or_default();
        if self.thought.as_ref().is_some_and(Thought::is_inside) {
            if !rest.is_empty() || !self.sampled.is_empty() {
                self.send_text(rest);
            }
            self.reply.end(self.answer, finish, None);
            return StepOutput::Ended;
        }
        match self.stops.push(&(held + &rest)) {
            Step::Stopped { text, stop } => {
                self.send_text(text);
                self.reply.end(self.answer, self.stopped_by(stop), None);
            }
            Step::Text(text) => {
                let text = text + &self.stops.finish();
                if !text.is_empty() || !self.sampled.is_empty() {
                    self.send_text(text);
                }
                self.reply.end(self.answer, finish, None);
            }
        }
        StepOutput::Ended
    }

    fn send_text(&mut self, text: String) {
        let sampled = std::mem::take(&mut self.sampled);
        self.reply.text(self.answer, text, sampled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{Reply, RequestContext};
    use sconce_ops::{DType, Device};
    use std::sync::mpsc;
    use tokenizers::Tokenizer;
    use tokenizers::models::wordlevel::WordLevel;

    /// The decoders of the tokenizers library never fail, so the test passes the error in.
    #[test]
    fn answer_ends_with_the_error_of_its_detokenizer() {
        let (sender, events) = mpsc::channel();
        let sink = Box::new(move |event| drop(sender.send(event)));
        let reply = Arc::new(Reply::new(RequestContext::default(), Device::Cpu, sink));
        let request = GenerateRequest {
            tokens: vec![0],
            params: Arc::default(),
            stop: StopCriteria { tokens: Arc::default(), texts: Arc::default(), most: 1 },
            detok: Detokenizer::new(Tokenizer::new(WordLevel::default()).into(), true),
            stops: Stops::default(),
            constraints: Vec::new(),
            thought: None,
            scored: false,
            echo: None,
        };
        let mut sequence = ActiveSequence::new(0, &request, None, &GenerationReply::new(&reply, 1, None, DType::F32));
        let output = sequence.end_after(Err("no such character".into()), Finish::Length);
        let events: Vec<_> = events.try_iter().collect();
        assert!(matches!(output, StepOutput::Ended));
        assert!(matches!(&events[..], [Err(Error::Input(what))] if what.ends_with("no such character")), "{events:?}");
    }
}
