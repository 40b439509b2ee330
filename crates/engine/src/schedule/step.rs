//! The inputs and outputs of the decode scheduler.

use crate::kv::SeqId;
use std::fmt;
use std::ops::Range;

/// A prompt to continue.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Its id, unique among live sequences.
    pub(crate) sequence: SeqId,
    /// The prompt.
    pub(crate) tokens: Vec<u32>,
    /// The most tokens of the sequence, prompt and answer.
    pub(crate) limit: usize,
    /// The number of answers, see [`Sampled::forks`].
    pub(crate) n: usize,
    /// Whether the logits of every prompt token are wanted, not only those of the last.
    pub(crate) scored: bool,
}

/// The limits of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Tokens that go through the model.
    pub(crate) tokens: usize,
    /// Sequences in the step, and rows of logits that it produces.
    pub(crate) sequences: usize,
}

/// The next step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// Every sequence at most once.
    pub(crate) chunks: Vec<ScheduledChunk>,
    /// Blocks to copy, `(from, to)`, in this order, before the model writes.
    pub(crate) copies: Vec<(u32, u32)>,
    /// Sequences that were preempted and wait again, newest first.
    pub(crate) preempted: Vec<SeqId>,
}

/// Consecutive tokens of a sequence to compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScheduledChunk {
    /// The sequence that they belong to.
    pub(crate) sequence: SeqId,
    /// Their positions. All earlier ones are in the KV cache.
    pub(crate) range: Range<usize>,
    /// Whether the logits of the last token are wanted, to sample the next.
    pub(crate) sample: bool,
    /// Whether the logits of all tokens are wanted.
    pub(crate) scored: bool,
}

impl ScheduledChunk {
    /// Number of logits rows wanted, counted from the end.
    pub(crate) fn rows(&self) -> usize {
        if self.scored { self.range.len() } else { usize::from(self.sample) }
    }
}

/// The next token of a chunk whose logits were wanted.
#[derive(Clone, Debug)]
pub(crate) struct Sampled {
    /// The sequence.
    pub(crate) sequence: SeqId,
    /// How it continues.
    pub(crate) next: Advance,
    /// New sequences that continue the same tokens.
    pub(crate) forks: Vec<(SeqId, Advance)>,
}

/// How a sequence continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advance {
    /// With this token.
    Token(u32),
    /// Not at all: it has ended or failed.
    Stop,
}

/// Why a request cannot be scheduled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SubmitError {
    /// The prompt is empty.
    Empty,
    /// The prompt leaves no room for an answer.
    Full { tokens: usize, limit: usize },
    /// The request would not fit even alone.
    TooLong { tokens: usize, limit: usize, need: usize, blocks: usize, size: usize },
    /// The id is in use.
    Duplicate(SeqId),
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SubmitError::Empty => write!(f, "the prompt has no tokens; give it at least one"),
            SubmitError::Full { tokens, limit } => {
                write!(
                    f,
                    "the prompt has {tokens} tokens and prompt and answer together may have {limit}: no room for an answer; shorten the prompt"
                )
            }
            SubmitError::TooLong { tokens, limit, need, blocks, size } => write!(
                f,
                "a prompt of {tokens} tokens that may come to {limit} needs {need} blocks of {size} tokens, the cache has \
                 {blocks} ({} tokens); shorten it, allow fewer new tokens, or give the cache more memory",
                blocks * size
            ),
            SubmitError::Duplicate(SeqId(id)) => write!(f, "sequence {id} exists already"),
        }
    }
}

impl std::error::Error for SubmitError {}
