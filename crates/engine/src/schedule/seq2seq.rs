//! Which inputs a sequence-to-sequence model reads next, and which answers it continues. Pure: the free blocks of both KV caches
//! come in, a step comes out.
//!
//! Room is counted at its worst, every answer as long as it may get, so that an admitted request never has to wait or to be
//! preempted. KV blocks are never shared by content here: the same tokens after another input are not the same.

use crate::kv::{Blocks, SeqId};
use crate::sampling::Continued;
use std::collections::VecDeque;
use std::sync::Arc;

/// The most that steps may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seq2SeqBudget {
    /// Tokens of inputs that are read at once.
    pub(crate) tokens: usize,
    /// Answers, or beams, at once.
    pub(crate) sequences: usize,
}

/// An input to read, and the room that its answers take.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    /// Its tokens.
    pub(crate) ids: Vec<u32>,
    /// The most sequences that its answers take at once.
    pub(crate) width: usize,
    /// The sequences that they begin with.
    pub(crate) first: usize,
    /// The most tokens of an answer.
    pub(crate) most: usize,
}

/// What to run next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seq2SeqStep {
    /// Requests whose inputs are read, their pages and their tokens.
    Encode(Vec<(u64, Arc<[u32]>, Vec<u32>)>),
    /// The next token of every answer.
    Decode {
        /// Pages to copy, `(from, to)`, before the model writes.
        copies: Vec<(u32, u32)>,
        /// Those of a request stand together.
        rows: Vec<Row>,
    },
}

/// One answer in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Whose.
    pub(crate) request: u64,
    /// Its last token, and how many came before it.
    pub(crate) token: u32,
    pub(crate) position: usize,
    /// Its pages.
    pub(crate) table: Arc<[u32]>,
    /// The pages of its input, and how many tokens that has.
    pub(crate) input: (Arc<[u32]>, usize),
}

/// The rows of one request that go on, in the order of the next step.
pub(crate) type Continuations = (u64, Vec<Continued>);

/// A request that was admitted.
struct Active {
    request: u64,
    /// Whose pages hold the input, which they are, and its tokens.
    input: SeqId,
    at: (Arc<[u32]>, usize),
    /// Pages that its answers may come to.
    pages: usize,
    width: usize,
    /// Every sequence with its tokens, from the one that begins all answers.
    rows: Vec<(SeqId, Vec<u32>)>,
}

/// Requests that wait and that run.
pub(crate) struct Seq2SeqScheduler {
    budget: Seq2SeqBudget,
    /// The token that begins every answer.
    start: u32,
    waiting: VecDeque<(u64, Input)>,
    active: Vec<Active>,
    /// Whether the last step was one of reading: then it is the answers' turn.
    has_read: bool,
    next: u64,
}

impl Seq2SeqScheduler {
    /// An empty scheduler, for answers that begin with the token `start`.
    pub(crate) fn new(budget: Seq2SeqBudget, start: u32) -> Seq2SeqScheduler {
        let (waiting, active) = (VecDeque::new(), Vec::new());
        Seq2SeqScheduler { budget, start, waiting, active, has_read: false, next: 0 }
    }

    /// Puts a request at the end of the queue. It must fit where nothing else runs.
    pub(crate) fn submit(&mut self, request: u64, input: Input) {
        self.waiting.push_back((request, input));
    }

    /// Requests that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Tokens of their inputs.
    pub(crate) fn waiting_tokens(&self) -> usize {
        self.waiting.iter().map(|(_, input)| input.ids.len()).sum()
    }

    /// What to run next; `None` where there is nothing.
    pub(crate) fn step(&mut self, read: &mut Blocks, written: &mut Blocks) -> Option<Seq2SeqStep> {
        let encode = if self.has_read { None } else { self.admit(read, written) };
        // After inputs that failed there may be no answer to continue, and others that wait.
        let step = encode.or_else(|| self.decode(written)).or_else(|| self.admit(read, written));
        self.has_read = matches!(step, Some(Seq2SeqStep::Encode(_)));
        step
    }

    /// Admits the requests at the head of the queue, as many as there is room for.
    fn admit(&mut self, read: &mut Blocks, written: &mut Blocks) -> Option<Seq2SeqStep> {
        let (mut tokens, mut inputs) = (0, Vec::new());
        while let Some((_, input)) = self.waiting.front() {
            let (length, pages) = (input.ids.len(), input.width * input.most.div_ceil(written.size()));
            let running: usize = self.active.iter().map(|active| active.width).sum();
            let promised: usize = self.active.iter().map(|active| active.pages).sum();
            let fits = length.div_ceil(read.size()) <= read.free_blocks()
                && running + input.width <= self.budget.sequences
                && promised + pages <= written.count()
                && (tokens == 0 || tokens + length <= self.budget.tokens);
            let Some((request, input)) = self.waiting.pop_front_if(|_| fits) else { break };
            let id = self.name();
            read.allocate(id, &[]);
            read.reserve(id, length).expect("the free blocks were counted");
            let table: Arc<[u32]> = read.table(id).into();
            let rows = (0..input.first).map(|_| {
                let row = self.name();
                written.allocate(row, &[]);
                (row, vec![self.start])
            });
            let rows = rows.collect();
            let (at, width) = ((table.clone(), length), input.width);
            self.active.push(Active { request, input: id, at, pages, width, rows });
            inputs.push((request, table, input.ids));
            tokens += length;
        }
        (!inputs.is_empty()).then_some(Seq2SeqStep::Encode(inputs))
    }

    fn decode(&mut self, written: &mut Blocks) -> Option<Seq2SeqStep> {
        let (mut copies, mut rows) = (Vec::new(), Vec::new());
        for active in &self.active {
            for (id, tokens) in &active.rows {
                copies.extend(written.reserve(*id, 1).expect("pages were promised for the longest answer"));
                let position = tokens.len() - 1;
                let (token, table) = (tokens[position], written.table(*id).into());
                rows.push(Row { request: active.request, token, position, table, input: active.at.clone() });
            }
        }
        (!rows.is_empty()).then_some(Seq2SeqStep::Decode { copies, rows })
    }

    /// The tokens of each of a request's rows, in the order of the step.
    pub(crate) fn tokens(&self, request: u64) -> Vec<&[u32]> {
        let active = self.active.iter().find(|active| active.request == request);
        active.into_iter().flat_map(|active| &active.rows).map(|(_, tokens)| tokens.as_slice()).collect()
    }

    /// Records how the answers of a decoding step go on. A request none of whose rows does has ended.
    pub(crate) fn commit(&mut self, read: &mut Blocks, written: &mut Blocks, all: Vec<Continuations>) {
        for (request, continued) in all {
            let Some(i) = self.active.iter().position(|active| active.request == request) else { continue };
            if continued.is_empty() {
                self.release(read, written, request);
                continue;
            }
            let mut rows = Vec::with_capacity(continued.len());
            let mut taken = vec![false; self.active[i].rows.len()];
            for Continued { beam, token } in continued {
                let (from, tokens) = &self.active[i].rows[beam];
                let (from, tokens) = (*from, [tokens.as_slice(), &[token]].concat());
                // The first that goes on from a row takes its pages; others share them until they write.
                let id = if std::mem::replace(&mut taken[beam], true) {
                    let id = self.name();
                    written.fork(from, id);
                    id
                } else {
                    from
                };
                rows.push((id, tokens));
            }
            let last = std::mem::replace(&mut self.active[i].rows, rows);
            last.iter().zip(taken).filter(|(_, taken)| !taken).for_each(|((id, _), _)| written.free(*id));
        }
    }

    /// Ends a request wherever it is, and gives its pages back.
    pub(crate) fn release(&mut self, read: &mut Blocks, written: &mut Blocks, request: u64) {
        self.waiting.retain(|(id, _)| *id != request);
        for active in self.active.extract_if(.., |active| active.request == request) {
            read.free(active.input);
            active.rows.iter().for_each(|(id, _)| written.free(*id));
        }
    }

    fn name(&mut self) -> SeqId {
        self.next += 1;
        SeqId(self.next)
    }
}

#[cfg(test)]
#[path = "seq2seq_tests.rs"]
mod tests;
