//! Generation: requests to language models, and their events while they run.

mod active_sequence;
mod reply;
mod stream;

pub(crate) use active_sequence::{ActiveSequence, GenerateRequest, NextToken, StepOutput, StopCriteria};
pub(crate) use reply::{Echo, GenerationReply};
pub(crate) use stream::StreamInfo;
pub use stream::{NextEvent, Stream};

use crate::reasoning::Thoughts;
use crate::sampling::{GenerationParams, Logprobs};
use crate::structured_output::Format;
use std::time::Duration;

/// A prompt and how to continue it.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The prompt.
    pub start: Start,
    /// The sampling parameters; `None`: what the model's files recommend.
    pub params: Option<GenerationParams>,
    /// The most tokens of an answer; `None`: what the model's files say, else as many as fit into
    /// the context.
    pub max_tokens: Option<usize>,
    /// Stop strings. They end an answer and are not part of it.
    pub stop: Vec<String>,
    /// Whether the answer begins with the prompt. With `logprobs`, the prompt's tokens have them
    /// too, except the first, because nothing comes before it. With `echo`, `max_tokens` may be 0.
    pub echo: bool,
    /// Whether an answer continues after the model's end token.
    pub ignore_end: bool,
    /// The required format of an answer (structured output); `None`: any text. An answer that
    /// `max_tokens` or a stop string cuts off is only the beginning of such a text.
    pub format: Option<Format>,
    /// How a model that reasons may do so; `None`: its thoughts are ordinary text. A thought comes
    /// before the `format`, and stop strings do not end it.
    pub thoughts: Option<Thoughts>,
}

/// The prompt of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// A text. Control tokens in it are ordinary text.
    Text(String),
    /// A text whose control tokens are parsed: the output of a chat template.
    Rendered(String),
    /// Tokens.
    Tokens(Vec<u32>),
}

impl Default for Start {
    fn default() -> Start {
        Start::Text(String::new())
    }
}

/// One sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledToken {
    /// Its id.
    pub id: u32,
    /// Log probabilities of this token and others, if requested.
    pub logprobs: Option<Logprobs>,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model's end token, or nothing can follow in the required format.
    End,
    /// This stop string.
    Stop(String),
    /// The limit of tokens.
    Length,
}

/// An event of a generation.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The prompt starts to run. The first event of a request, sent once for all its answers.
    Begun {
        /// Prompt tokens that were in the prefix cache.
        cached_tokens: usize,
    },
    /// An answer grows by whole characters. Tokens of an incomplete character come with the text
    /// that completes it.
    Text {
        /// Index of the answer.
        answer: usize,
        /// The new text.
        text: String,
        /// Its tokens.
        sampled: Vec<SampledToken>,
    },
    /// An answer ends.
    End {
        /// Index of the answer.
        answer: usize,
        /// The reason.
        finish: Finish,
        /// In a beam search: the log probability divided by length to the power of the length
        /// penalty.
        score: Option<f32>,
    },
}

/// What is known about a request when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Number of answers.
    pub answers: usize,
}

/// A complete answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Its text.
    pub text: String,
    /// Its tokens.
    pub sampled: Vec<SampledToken>,
    /// Why it ended.
    pub finish: Option<Finish>,
    /// In a beam search: the log probability divided by length to the power of the length penalty.
    pub score: Option<f32>,
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// The answers.
    pub answers: Vec<Answer>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Time from the request to the first generated text.
    pub first: Option<Duration>,
    /// Time from the request to the end.
    pub took: Duration,
}
