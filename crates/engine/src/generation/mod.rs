//! Generation: what is asked of a language model, and what comes back while it runs.

mod active_sequence;
mod reply;
mod stream;

pub(crate) use active_sequence::{ActiveSequence, GenerateRequest, NextToken, StepOutput, StopCriteria};
pub(crate) use reply::{Echo, GenerationReply};
pub(crate) use stream::About;
pub use stream::{NextEvent, Stream};

use crate::sampling::{GenerationParams, Logprobs};
use crate::structured_output::Format;
use std::time::Duration;

/// A text to go on from, and how.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The text, or its tokens.
    pub start: Start,
    /// How tokens are chosen; the default is what the model's own files recommend.
    pub params: Option<GenerationParams>,
    /// The most tokens of an answer; `None`: what the model's own files say, else as many as there is room for.
    pub max_tokens: Option<usize>,
    /// Texts that end an answer. They are never shown, and no part of them.
    pub stop: Vec<String>,
    /// Whether the answer begins with the prompt; where logprobs are asked for, with those of its tokens too. Of the first there
    /// are none: nothing comes before it. Then `max_tokens` may be 0, to ask about the prompt alone.
    pub echo: bool,
    /// Whether an answer goes on behind the model's own end.
    pub ignore_end: bool,
    /// What an answer must be; `None`: any text. An answer that is cut, by `max_tokens` or a stop text, is the beginning of one.
    pub format: Option<Format>,
}

/// What a generation starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// A text. What looks like a control token in it is text.
    Text(String),
    /// A text in which control tokens are what they look like: what a chat template wrote.
    Rendered(String),
    /// Tokens.
    Tokens(Vec<u32>),
}

impl Default for Start {
    fn default() -> Start {
        Start::Text(String::new())
    }
}

/// One chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledToken {
    /// Its id.
    pub id: u32,
    /// How likely it and others were, if that was asked for.
    pub logprobs: Option<Logprobs>,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model said so, or nothing could follow in the form that the answer must have.
    End,
    /// One of the stop texts came.
    Stop(String),
    /// There was no room for more, or no more was asked for.
    Length,
}

/// What happens to an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Its prompt is being run; the first event of a request, and told once, whatever the number of answers.
    Begun {
        /// Tokens of the prompt that were in the cache already.
        cached_tokens: usize,
    },
    /// It grows, by whole characters. Tokens that have not made one yet come with the text that they become.
    Text {
        /// Which of the answers.
        answer: usize,
        /// What is new.
        text: String,
        /// The tokens behind it.
        picks: Vec<SampledToken>,
    },
    /// It ends.
    End {
        /// Which of the answers.
        answer: usize,
        /// Why.
        finish: Finish,
        /// Of a beam search: the logarithm of its probability over its length to the penalty.
        score: Option<f32>,
    },
}

/// What is known of a request when it is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Answers that will come.
    pub answers: usize,
}

/// An answer, complete.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Its text.
    pub text: String,
    /// Its tokens.
    pub picks: Vec<SampledToken>,
    /// Why it ended.
    pub finish: Option<Finish>,
    /// Of a beam search: the logarithm of its probability over its length to the penalty.
    pub score: Option<f32>,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// The answers.
    pub answers: Vec<Answer>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// From the request until the first text came that is not the prompt's.
    pub first: Option<Duration>,
    /// From the request until the end.
    pub took: Duration,
}
