//! Language models: continuous batching of prefills and decodes over a paged KV cache
//! (PagedAttention). On CUDA, decode steps are replayed as CUDA graphs.

mod activity;
mod model;
mod stored_prefixes;
#[cfg(test)]
mod tests;

pub use activity::{Activity, CacheConfig};
pub(crate) use model::{DecodeLayout, PAGE};

use crate::error::{Error, Result};
use crate::generation::{ActiveSequence, Event, GenerateRequest, GenerationReply, NextToken, StepOutput};
use crate::kv::{Blocks, SeqId};
use crate::options::LoadOptions;
use crate::plan::Planned;
use crate::runtime::{LoadContext, QueueStats, Reply, RequestId, Workload};
use crate::schedule::{self, Advance, Budget, Sampled, ScheduledChunk, Scheduler, Step};
use activity::Counts;
use model::{LmModel, StepResult};
use sconce_formats::Model;
use sconce_ops::replay::GraphCache;
use sconce_ops::{DType, Device, KvCache, KvCacheShape, Place, SamplingParams, threads};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use stored_prefixes::{PrefixStorage, StoredPrefixes};

/// Answers that will continue the same prompt.
type Forks = Vec<(SeqId, ActiveSequence)>;

/// The results of a step, for the chunks whose logits were wanted.
#[derive(Default)]
struct Outcome {
    /// The logits of chunks without a sampled token, in order.
    logits: Vec<f32>,
    /// The chunks, and their tokens if the device sampled them.
    chunks: Vec<(ScheduledChunk, Option<u32>)>,
}

impl Outcome {
    fn add(&mut self, step: &Step, result: StepResult) {
        let wanted = step.chunks.iter().filter(|chunk| chunk.rows() > 0).cloned();
        match result {
            StepResult::Logits(logits) => {
                self.logits.extend(logits);
                self.chunks.extend(wanted.map(|chunk| (chunk, None)));
            }
            StepResult::Tokens(tokens) => self.chunks.extend(wanted.zip(tokens.into_iter().map(Some))),
        }
    }
}

/// An answer and its forks, and the input for sampling their next tokens.
struct Sampling<'a> {
    id: SeqId,
    next: NextToken<'a>,
    sequence: ActiveSequence,
    forks: Forks,
}

/// The workload of a language model.
pub(crate) struct Decode {
    model: LmModel,
    dtype: DType,
    layout: DecodeLayout,
    shape: KvCacheShape,
    place: Place,
    passes: GraphCache,
    cache: KvCache,
    blocks: Blocks,
    scheduler: Scheduler,
    budget: Budget,
    /// Prefixes of prompts on disk (`--prompt-cache`).
    stored: Option<StoredPrefixes>,
    counts: Counts,
    active: HashMap<SeqId, ActiveSequence>,
    /// The forks of a prompt whose first token is not sampled yet.
    forks: HashMap<SeqId, Forks>,
    /// The request of each sequence, forks included.
    requests: HashMap<SeqId, RequestId>,
    next: u64,
}

impl Workload for Decode {
    /// The folder or file of the model.
    type Spec = PathBuf;
    type Layout = DecodeLayout;
    type Request = GenerateRequest;
    type Output = Event;
    type Step = Step;
    type Outcome = StepResult;
    type Stats = Activity;

    fn plan(root: &PathBuf, device: Device, options: &LoadOptions) -> Result<Planned<DecodeLayout>> {
        model::plan(root, device, options)
    }

    fn load(root: &PathBuf, Planned { plan, layout }: &Planned<DecodeLayout>, context: &LoadContext) -> Result<Decode> {
        let (formats, place) = ((plan.dtype, plan.weight_format), &context.place);
        let mut files = Model::open(root)?;
        files.store = context.layers.observe(files.store, &plan.unread);
        let (model, _) = LmModel::load(&files, formats, layout.context, place)?;
        let shape = model.shape(root)?;
        let cache = KvCache::new(shape, layout.pages * PAGE, layout.cache_format, place)?;
        Ok(Decode {
            cache,
            blocks: Blocks::new(layout.pages as u32, PAGE as u32).map_err(Error::Input)?,
            budget: Budget { tokens: plan.batch_tokens, sequences: layout.sequences },
            stored: layout.prefixes.as_ref().map(|storage| StoredPrefixes::open(storage, root)).transpose()?,
            passes: GraphCache::new(place, plan.graph_bytes)?,
            model,
            dtype: plan.dtype,
            layout: layout.clone(),
            shape,
            place: place.clone(),
            scheduler: Scheduler::default(),
            counts: Counts::default(),
            active: HashMap::new(),
            forks: HashMap::new(),
            requests: HashMap::new(),
            next: 0,
        })
    }

    fn sanity_check(&self) -> Result<()> {
        self.model.sanity_check(self.shape, (self.layout.cache_format, self.dtype), &self.place)
    }

    fn dry_run(&self, tokens: usize) -> Result<()> {
        self.model.dry_run(&self.layout, tokens, &self.cache, &self.place)
    }

    fn step_tokens(&self) -> usize {
        self.budget.tokens
    }

    fn tokens(request: &GenerateRequest) -> usize {
        request.tokens.len()
    }

    fn submit(&mut self, id: RequestId, mut request: GenerateRequest, reply: &Arc<Reply<Event>>) {
        let n = request.params.n.max(1) as usize;
        let reply = GenerationReply::new(reply, n, request.echo.take(), self.dtype);
        let mut constraints = std::mem::take(&mut request.constraints).into_iter();
        let answers = (0..n).map(|answer| ActiveSequence::new(answer, &request, constraints.next(), &reply));
        let mut answers = answers.collect::<Vec<_>>().into_iter();
        let GenerateRequest { tokens, stop, scored, .. } = request;
        let ids: Vec<SeqId> = (0..n as u64).map(|i| SeqId(self.next + i)).collect();
        self.next += n as u64;
        let limit = tokens.len() + stop.most.max(1);
        // A prompt whose logits are all wanted is computed as a whole.
        if let Some(stored) = self.stored.as_mut().filter(|_| !scored) {
            stored.restore(&tokens, &mut self.blocks, &self.cache);
        }
        let prompt = schedule::Request { sequence: ids[0], tokens, limit, n, scored };
        if let Err(refused) = self.scheduler.submit(prompt, &self.blocks) {
            return reply.fail(Error::Input(refused.to_string()));
        }
        self.requests.extend(ids.iter().map(|sequence| (*sequence, id)));
        if let Some(first) = answers.next() {
            self.active.insert(ids[0], first);
            self.forks.insert(ids[0], ids[1..].iter().copied().zip(answers).collect());
        }
    }

    fn schedule(&mut self) -> Option<Step> {
        let step = self.scheduler.step(&mut self.blocks, self.budget);
        self.counts.preemptions += step.preempted.len() as u64;
        for chunk in &step.chunks {
            let sequence = self.active.get(&chunk.sequence);
            if let Some(sequence) = sequence.filter(|sequence| sequence.begin(chunk.range.start)) {
                self.counts.prompt_tokens += sequence.prompt() as u64;
            }
        }
        (!step.chunks.is_empty()).then_some(step)
    }

    fn members(&self, step: &Step) -> Vec<(RequestId, Step)> {
        let alone = |chunk: &ScheduledChunk| {
            // No other sequence writes to the pages that are copied for this one.
            let table = self.blocks.table(chunk.sequence);
            let copies = step.copies.iter().copied().filter(|(_, to)| table.contains(to)).collect();
            let step = Step { chunks: vec![chunk.clone()], copies, ..Step::default() };
            (self.requests[&chunk.sequence], step)
        };
        step.chunks.iter().map(alone).collect()
    }

    fn forward(&mut self, step: &Step) -> Result<StepResult> {
        let tokens = |id| self.scheduler.tokens(id);
        let sampling = self.device_sampling(step);
        self.model.step((step, sampling.as_deref()), &self.blocks, tokens, &self.cache, (&self.place, &self.passes))
    }

    fn finish(&mut self, ran: Vec<(Step, StepResult)>) {
        for chunk in ran.iter().flat_map(|(step, _)| &step.chunks) {
            if let Some(sequence) = self.active.get_mut(&chunk.sequence) {
                sequence.progress(chunk.range.end);
            }
        }
        ran.iter().for_each(|(step, _)| self.store_prefixes(step));
        let mut outcome = Outcome::default();
        ran.into_iter().for_each(|(step, result)| outcome.add(&step, result));
        let Outcome { mut logits, chunks } = outcome;
        let rows = chunks.iter().filter(|(_, token)| token.is_none()).map(|(chunk, _)| chunk.rows());
        let width = (logits.len() / rows.sum::<usize>().max(1)).max(1);
        let head = &self.model.head;
        threads::for_each_chunk_mut(&mut logits, width, |_, row| head.capped(row));
        let mut rest = logits.chunks_mut(width);
        let mut sampling: Vec<Mutex<Option<Sampling<'_>>>> = Vec::new();
        for (chunk, token) in chunks {
            let id = chunk.sequence;
            let next = match token {
                Some(token) => Some(NextToken::Token(token)),
                None => {
                    let mut rows: Vec<&mut [f32]> = rest.by_ref().take(chunk.rows()).collect();
                    if let Some(sequence) = self.active.get_mut(&id).filter(|_| chunk.scored) {
                        sequence.score(&rows, chunk.range, self.scheduler.tokens(id).unwrap_or_default());
                    }
                    rows.pop().filter(|_| chunk.sample).map(NextToken::Logits)
                }
            };
            if let Some(next) = next
                && let Some(sequence) = self.active.remove(&id)
            {
                let forks = self.forks.remove(&id).unwrap_or_default();
                sampling.push(Mutex::new(Some(Sampling { id, next, sequence, forks })));
            }
        }
        // Every answer needs only its own row, so all are sampled in parallel.
        let scheduler = &self.scheduler;
        let sampled = threads::map(sampling.len(), |i| {
            let taken = sampling[i].lock().unwrap_or_else(PoisonError::into_inner).take();
            taken.map(|sampling| sample(sampling, scheduler))
        });
        let sampled: Vec<_> = sampled.into_iter().flatten().collect();
        let mut all = Vec::new();
        for (id, sequence, output, forks) in sampled {
            let forks =
                forks.into_iter().map(|(id, fork, output)| (id, self.record_output(id, fork, output))).collect();
            all.push(Sampled { sequence: id, next: self.record_output(id, sequence, output), forks });
        }
        for ended in self.scheduler.commit(&mut self.blocks, all) {
            self.requests.remove(&ended);
        }
    }

    fn release(&mut self, id: RequestId) {
        let mut sequences: Vec<SeqId> =
            self.requests.iter().filter(|(_, of)| **of == id).map(|(sequence, _)| *sequence).collect();
        // By age, not in the map's order: blocks are reused in the order in which they were freed.
        sequences.sort_unstable();
        for sequence in sequences {
            self.requests.remove(&sequence);
            self.active.remove(&sequence);
            self.forks.remove(&sequence);
            self.scheduler.release(&mut self.blocks, sequence);
        }
    }

    fn reset(&mut self) {
        self.active.clear();
        self.forks.clear();
        self.requests.clear();
        self.scheduler = Scheduler::default();
        if let Ok(blocks) = Blocks::new(self.blocks.count() as u32, self.blocks.size() as u32) {
            self.counts.close(&self.blocks);
            self.blocks = blocks;
        }
    }

    fn queue(&self) -> QueueStats {
        QueueStats { requests: self.scheduler.waiting(), ..QueueStats::default() }
    }

    fn stats(&self) -> Activity {
        self.counts.activity(&self.scheduler, &self.blocks)
    }
}

impl Decode {
    /// Stores what a step has computed of prompts.
    fn store_prefixes(&mut self, step: &Step) {
        let Some(stored) = &mut self.stored else { return };
        for chunk in &step.chunks {
            let prompt = self.active.get(&chunk.sequence).map_or(0, ActiveSequence::prompt);
            if chunk.range.start < prompt
                && let Some(tokens) = self.scheduler.tokens(chunk.sequence)
            {
                let computed = &tokens[..chunk.range.end.min(prompt)];
                stored.store(computed, self.blocks.table(chunk.sequence), &self.cache);
            }
        }
    }

    /// The sampling parameters of a step, if the device can sample: only a token is wanted of every
    /// chunk.
    fn device_sampling(&self, step: &Step) -> Option<Vec<SamplingParams>> {
        let one = |chunk: &ScheduledChunk| {
            let is_alone = self.forks.get(&chunk.sequence).is_none_or(Vec::is_empty);
            let sequence = self.active.get(&chunk.sequence).filter(|_| is_alone && !chunk.scored)?;
            sequence.device_params(self.scheduler.tokens(chunk.sequence)?)
        };
        step.chunks.iter().filter(|chunk| chunk.rows() > 0).map(one).collect()
    }

    fn record_output(&mut self, id: SeqId, sequence: ActiveSequence, output: StepOutput) -> Advance {
        self.counts.generated_tokens += 1;
        match output {
            StepOutput::Token(token) => {
                self.active.insert(id, sequence);
                Advance::Token(token)
            }
            StepOutput::Ended => {
                self.requests.remove(&id);
                Advance::Stop
            }
        }
    }
}

type SampledFork = (SeqId, ActiveSequence, StepOutput);

/// Samples the next token of an answer and of its forks.
fn sample(
    Sampling { id, next, mut sequence, forks }: Sampling<'_>,
    scheduler: &Scheduler,
) -> (SeqId, ActiveSequence, StepOutput, Vec<SampledFork>) {
    let tokens = scheduler.tokens(id).unwrap_or_default();
    let fork = |(id, mut fork): (SeqId, ActiveSequence)| {
        let output = match &next {
            NextToken::Logits(row) => fork.next(NextToken::Logits(&mut row.to_vec()), tokens),
            NextToken::Token(token) => fork.next(NextToken::Token(*token), tokens),
        };
        (id, fork, output)
    };
    let forks = forks.into_iter().map(fork).collect();
    let output = sequence.next(next, tokens);
    (id, sequence, output, forks)
}
