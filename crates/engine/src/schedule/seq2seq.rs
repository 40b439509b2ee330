//! The scheduler of sequence-to-sequence models: which inputs to encode next, and which answers to
//! decode. Pure: the free blocks of both KV caches come in, a step comes out.
//!
//! A request is admitted only if there are enough KV blocks for all its answers at maximum length,
//! so an admitted request never waits and is never preempted. There is no prefix cache here: the
//! keys and values of the same tokens differ from input to input.

use crate::kv::{Blocks, SeqId};
use crate::sampling::Continued;
use std::collections::VecDeque;
use std::sync::Arc;

/// The limits of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seq2SeqBudget {
    /// Input tokens that are encoded at once.
    pub(crate) tokens: usize,
    /// Answers, or beams, at once.
    pub(crate) sequences: usize,
}

/// An input to encode, and the space that its answers need.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    /// The input's tokens.
    pub(crate) ids: Vec<u32>,
    /// The most sequences that its answers take at once.
    pub(crate) width: usize,
    /// The number of sequences that decoding begins with.
    pub(crate) first: usize,
    /// The most tokens of an answer.
    pub(crate) most: usize,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seq2SeqStep {
    /// Inputs to encode: the request, its block table and its tokens.
    Encode(Vec<(u64, Arc<[u32]>, Vec<u32>)>),
    /// Decodes the next token of every answer.
    Decode {
        /// KV blocks to copy, `(from, to)`, before the model writes.
        copies: Vec<(u32, u32)>,
        /// The rows of a request are adjacent.
        rows: Vec<Row>,
    },
}

/// One sequence in a decoding step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// The request that it belongs to.
    pub(crate) request: u64,
    /// Its last token, and how many came before it.
    pub(crate) token: u32,
    pub(crate) position: usize,
    /// Its block table.
    pub(crate) table: Arc<[u32]>,
    /// The block table of its input, and the input's length.
    pub(crate) input: (Arc<[u32]>, usize),
}

/// How the rows of one request continue, in the order of the next step.
pub(crate) type Continuations = (u64, Vec<Continued>);

/// An admitted request.
struct Active {
    request: u64,
    /// The id, the block table and the length of the input.
    input: SeqId,
    input_table: (Arc<[u32]>, usize),
    /// The most KV blocks that its answers may need.
    pages: usize,
    width: usize,
    /// Every sequence with its tokens, from the start token.
    rows: Vec<(SeqId, Vec<u32>)>,
}

/// The waiting and running requests.
pub(crate) struct Seq2SeqScheduler {
    budget: Seq2SeqBudget,
    /// The token that begins every answer.
    start: u32,
    waiting: VecDeque<(u64, Input)>,
    active: Vec<Active>,
    /// Whether the last step was an encoding step; then the next one decodes.
    last_was_encode: bool,
    next: u64,
}

impl Seq2SeqScheduler {
    /// An empty scheduler, for answers that begin with the token `start`.
    pub(crate) fn new(budget: Seq2SeqBudget, start: u32) -> Seq2SeqScheduler {
        let (waiting, active) = (VecDeque::new(), Vec::new());
        Seq2SeqScheduler { budget, start, waiting, active, last_was_encode: false, next: 0 }
    }

    /// Puts a request at the end of the queue. It must fit when nothing else runs.
    pub(crate) fn submit(&mut self, request: u64, input: Input) {
        self.waiting.push_back((request, input));
    }

    /// Number of waiting requests.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Tokens of their inputs.
    pub(crate) fn waiting_tokens(&self) -> usize {
        self.waiting.iter().map(|(_, input)| input.ids.len()).sum()
    }

    /// The next step; `None` if there is nothing to run.
    pub(crate) fn step(&mut self, input_blocks: &mut Blocks, output_blocks: &mut Blocks) -> Option<Seq2SeqStep> {
        let encode = if self.last_was_encode { None } else { self.admit(input_blocks, output_blocks) };
        // If all encoded inputs failed, there may be no answer to decode, but waiting requests.
        let step = encode.or_else(|| self.decode(output_blocks)).or_else(|| self.admit(input_blocks, output_blocks));
        self.last_was_encode = matches!(step, Some(Seq2SeqStep::Encode(_)));
        step
    }

    /// Admits as many requests from the head of the queue as fit.
    fn admit(&mut self, input_blocks: &mut Blocks, output_blocks: &mut Blocks) -> Option<Seq2SeqStep> {
        let (mut tokens, mut inputs) = (0, Vec::new());
        while let Some((_, input)) = self.waiting.front() {
            let (length, pages) = (input.ids.len(), input.width * input.most.div_ceil(output_blocks.size()));
            let running: usize = self.active.iter().map(|active| active.width).sum();
            let reserved: usize = self.active.iter().map(|active| active.pages).sum();
            let fits = length.div_ceil(input_blocks.size()) <= input_blocks.free_blocks()
                && running + input.width <= self.budget.sequences
                && reserved + pages <= output_blocks.count()
                && (tokens == 0 || tokens + length <= self.budget.tokens);
            let Some((request, input)) = self.waiting.pop_front_if(|_| fits) else { break };
            let id = self.new_id();
            input_blocks.allocate(id, &[]);
            input_blocks.reserve(id, length).expect("the free blocks were counted");
            let table: Arc<[u32]> = input_blocks.table(id).into();
            let rows = (0..input.first).map(|_| {
                let row = self.new_id();
                output_blocks.allocate(row, &[]);
                (row, vec![self.start])
            });
            let rows = rows.collect();
            let (input_table, width) = ((table.clone(), length), input.width);
            self.active.push(Active { request, input: id, input_table, pages, width, rows });
            inputs.push((request, table, input.ids));
            tokens += length;
        }
        (!inputs.is_empty()).then_some(Seq2SeqStep::Encode(inputs))
    }

    fn decode(&mut self, output_blocks: &mut Blocks) -> Option<Seq2SeqStep> {
        let (mut copies, mut rows) = (Vec::new(), Vec::new());
        for active in &self.active {
            for (id, tokens) in &active.rows {
                copies.extend(output_blocks.reserve(*id, 1).expect("pages were reserved for the longest answer"));
                let position = tokens.len() - 1;
                let (token, table) = (tokens[position], output_blocks.table(*id).into());
                rows.push(Row { request: active.request, token, position, table, input: active.input_table.clone() });
            }
        }
        (!rows.is_empty()).then_some(Seq2SeqStep::Decode { copies, rows })
    }

    /// The tokens of each row of a request, in the order of the step.
    pub(crate) fn tokens(&self, request: u64) -> Vec<&[u32]> {
        let active = self.active.iter().find(|active| active.request == request);
        active.into_iter().flat_map(|active| &active.rows).map(|(_, tokens)| tokens.as_slice()).collect()
    }

    /// Records how the answers of a decoding step continue. A request without continuing rows has
    /// ended.
    pub(crate) fn commit(&mut self, input_blocks: &mut Blocks, output_blocks: &mut Blocks, all: Vec<Continuations>) {
        for (request, continued) in all {
            let Some(i) = self.active.iter().position(|active| active.request == request) else { continue };
            if continued.is_empty() {
                self.release(input_blocks, output_blocks, request);
                continue;
            }
            let mut rows = Vec::with_capacity(continued.len());
            let mut taken = vec![false; self.active[i].rows.len()];
            for Continued { beam, token } in continued {
                let (from, tokens) = &self.active[i].rows[beam];
                let (from, tokens) = (*from, [tokens.as_slice(), &[token]].concat());
                // The first continuation of a row takes over its blocks; others share them, copy on
                // write.
                let id = if std::mem::replace(&mut taken[beam], true) {
                    let id = self.new_id();
                    output_blocks.fork(from, id);
                    id
                } else {
                    from
                };
                rows.push((id, tokens));
            }
            let last = std::mem::replace(&mut self.active[i].rows, rows);
            last.iter().zip(taken).filter(|(_, taken)| !taken).for_each(|((id, _), _)| output_blocks.free(*id));
        }
    }

    /// Ends a request wherever it is, and frees its blocks.
    pub(crate) fn release(&mut self, input_blocks: &mut Blocks, output_blocks: &mut Blocks, request: u64) {
        self.waiting.retain(|(id, _)| *id != request);
        for active in self.active.extract_if(.., |active| active.request == request) {
            input_blocks.free(active.input);
            active.rows.iter().for_each(|(id, _)| output_blocks.free(*id));
        }
    }

    fn new_id(&mut self) -> SeqId {
        self.next += 1;
        SeqId(self.next)
    }
}

#[cfg(test)]
#[path = "seq2seq_tests.rs"]
mod tests;
