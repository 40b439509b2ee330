//! What goes into and comes out of the scheduler of decoding.

use crate::kv::SeqId;
use std::fmt;
use std::ops::Range;

/// A prompt to go on from.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Its name, which no living sequence may have.
    pub(crate) sequence: SeqId,
    /// The prompt.
    pub(crate) tokens: Vec<u32>,
    /// The most tokens it may come to, prompt and answer.
    pub(crate) limit: usize,
    /// How many answers it will have, see [`Sampled::forks`].
    pub(crate) n: usize,
    /// Whether the logits behind every token of the prompt are wanted, not only the last one's.
    pub(crate) scored: bool,
}

/// The most that a step may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Tokens that the model sees.
    pub(crate) tokens: usize,
    /// Sequences that they are of; and no more rows of logits come out of it.
    pub(crate) sequences: usize,
}

/// What to run next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// Every sequence at most once.
    pub(crate) pieces: Vec<ScheduledChunk>,
    /// Blocks to copy, `(from, to)`, in this order, before the model writes.
    pub(crate) copies: Vec<(u32, u32)>,
    /// Who had to give its blocks back and waits again, newest first.
    pub(crate) preempted: Vec<SeqId>,
}

/// Neighbouring tokens of a sequence, to be computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScheduledChunk {
    /// Whose.
    pub(crate) sequence: SeqId,
    /// Their positions. All before them are in the cache.
    pub(crate) range: Range<usize>,
    /// Whether the last one's logits are wanted, to go on from.
    pub(crate) sample: bool,
    /// Whether all logits are.
    pub(crate) scored: bool,
}

impl ScheduledChunk {
    /// Rows of logits that are wanted, the last so many.
    pub(crate) fn rows(&self) -> usize {
        if self.scored { self.range.len() } else { usize::from(self.sample) }
    }
}

/// What came of a piece whose logits were wanted.
#[derive(Clone, Debug)]
pub(crate) struct Sampled {
    /// Whose.
    pub(crate) sequence: SeqId,
    /// How it goes on.
    pub(crate) next: Next,
    /// New sequences that go on from the same tokens.
    pub(crate) forks: Vec<(SeqId, Next)>,
}

/// How a sequence goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// With this token.
    Token(u32),
    /// Not at all: it has ended or failed.
    Stop,
}

/// Why a request cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is nothing to go on from.
    Empty,
    /// There is no room for an answer.
    Full { tokens: usize, limit: usize },
    /// It would not fit if it were alone.
    TooLong { tokens: usize, limit: usize, need: usize, blocks: usize, size: usize },
    /// Its name is taken.
    Duplicate(SeqId),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Empty => write!(f, "the prompt has no tokens; give it at least one"),
            Refused::Full { tokens, limit } => {
                write!(f, "the prompt has {tokens} tokens and may come to {limit}: no room for an answer; shorten it")
            }
            Refused::TooLong { tokens, limit, need, blocks, size } => write!(
                f,
                "a prompt of {tokens} tokens that may come to {limit} needs {need} blocks of {size} tokens, the cache has \
                 {blocks} ({} tokens); shorten it, allow fewer new tokens, or give the cache more memory",
                blocks * size
            ),
            Refused::Duplicate(SeqId(id)) => write!(f, "sequence {id} is there already"),
        }
    }
}

impl std::error::Error for Refused {}
