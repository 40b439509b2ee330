//! Sequence-to-sequence models (T5): inputs are encoded when their answers fit into the KV cache,
//! and all answers are decoded together, a token per step. On CUDA, decode steps are replayed as
//! CUDA graphs.

mod active_input;
mod model;
#[cfg(test)]
mod tests;

pub(crate) use active_input::{BeamRequest, SearchRequest, Seq2SeqRequest};
pub(crate) use model::Seq2SeqLayout;

use crate::error::{Error, Result};
use crate::generation::{Event, GenerationReply};
use crate::kv::Blocks;
use crate::options::LoadOptions;
use crate::plan::Planned;
use crate::runtime::{LoadContext, QueueStats, Reply, RequestId, Workload};
use crate::schedule::{Input, Row, Seq2SeqBudget, Seq2SeqScheduler, Seq2SeqStep};
use crate::workloads::decode::PAGE;
use active_input::ActiveInput;
use model::{Seq2SeqModel, copy};
use sconce_formats::Model;
use sconce_models::TokenChunk;
use sconce_ops::replay::GraphCache;
use sconce_ops::{DType, Device, KvCache, Place, threads};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// The settings from the model's files.
#[derive(Clone, Debug)]
pub(crate) struct Seq2SeqSpec {
    /// The folder or file.
    pub(crate) root: PathBuf,
    /// The token that begins every answer.
    pub(crate) start: u32,
}

/// A KV cache and its block tables.
struct PagedCache {
    cache: KvCache,
    blocks: Blocks,
}

/// The workload of a sequence-to-sequence model.
pub(crate) struct Seq2SeqWorkload {
    model: Seq2SeqModel,
    dtype: DType,
    layout: Seq2SeqLayout,
    place: Place,
    passes: GraphCache,
    /// The KV cache of inputs (cross-attention), and of answers.
    input_cache: PagedCache,
    output_cache: PagedCache,
    budget: Seq2SeqBudget,
    start: u32,
    scheduler: Seq2SeqScheduler,
    active: HashMap<RequestId, ActiveInput>,
}

impl Workload for Seq2SeqWorkload {
    type Spec = Seq2SeqSpec;
    type Layout = Seq2SeqLayout;
    type Request = Seq2SeqRequest;
    type Output = Event;
    type Step = Seq2SeqStep;
    /// Logits of a decoding step; empty for an encoding step.
    type Outcome = Vec<f32>;
    type Stats = ();

    fn plan(spec: &Seq2SeqSpec, device: Device, options: &LoadOptions) -> Result<Planned<Seq2SeqLayout>> {
        model::plan(&spec.root, device, options)
    }

    fn load(
        spec: &Seq2SeqSpec,
        Planned { plan, layout }: &Planned<Seq2SeqLayout>,
        context: &LoadContext,
    ) -> Result<Seq2SeqWorkload> {
        let (formats, place) = ((plan.dtype, plan.weight_format), &context.place);
        let mut files = Model::open(&spec.root)?;
        files.store = context.layers.observe(files.store, &plan.unread);
        let (model, _) = Seq2SeqModel::load(&files, formats, place)?;
        let paged = |pages: usize| -> Result<PagedCache> {
            let blocks = Blocks::new(pages as u32, PAGE as u32).map_err(Error::Input)?;
            Ok(PagedCache { cache: model.cache(pages, layout.cache_format, place)?, blocks })
        };
        let (input_cache, output_cache) = (paged(layout.input_pages)?, paged(layout.output_pages)?);
        let budget = Seq2SeqBudget { tokens: plan.batch_tokens, sequences: layout.sequences };
        Ok(Seq2SeqWorkload {
            passes: GraphCache::new(place, plan.graph_bytes)?,
            model,
            dtype: plan.dtype,
            layout: layout.clone(),
            place: place.clone(),
            input_cache,
            output_cache,
            budget,
            start: spec.start,
            scheduler: Seq2SeqScheduler::new(budget, spec.start),
            active: HashMap::new(),
        })
    }

    fn sanity_check(&self) -> Result<()> {
        self.model.sanity_check((self.layout.cache_format, self.dtype), &self.place)
    }

    fn dry_run(&self, tokens: usize) -> Result<()> {
        self.model.dry_run(&self.layout, tokens, (&self.input_cache.cache, &self.output_cache.cache), &self.place)
    }

    fn step_tokens(&self) -> usize {
        self.budget.tokens.max(self.budget.sequences)
    }

    fn tokens(request: &Seq2SeqRequest) -> usize {
        request.ids.len()
    }

    fn submit(&mut self, id: RequestId, request: Seq2SeqRequest, reply: &Arc<Reply<Event>>) {
        let Seq2SeqRequest { ids, most, search } = request;
        let (width, first) = (search.width(), search.first());
        let reply = GenerationReply::new(reply, search.answers(), None, self.dtype);
        self.active.insert(id, ActiveInput::new(search, reply));
        self.scheduler.submit(id.0, Input { ids, width, first, most });
    }

    fn schedule(&mut self) -> Option<Seq2SeqStep> {
        let step = self.scheduler.step(&mut self.input_cache.blocks, &mut self.output_cache.blocks)?;
        if let Seq2SeqStep::Encode(inputs) = &step {
            inputs.iter().filter_map(|(id, ..)| self.active.get(&RequestId(*id))).for_each(ActiveInput::begin);
        }
        Some(step)
    }

    fn members(&self, step: &Seq2SeqStep) -> Vec<(RequestId, Seq2SeqStep)> {
        match step {
            Seq2SeqStep::Encode(inputs) => {
                let alone = |input: &(u64, _, _)| (RequestId(input.0), Seq2SeqStep::Encode(vec![input.clone()]));
                inputs.iter().map(alone).collect()
            }
            Seq2SeqStep::Decode { copies, rows } => {
                let alone = |(id, rows): (u64, Vec<Row>)| {
                    // No other request writes to the pages that are copied for this one.
                    let is_own_page = |(_, to): &(u32, u32)| rows.iter().any(|row| row.table.contains(to));
                    let copies = copies.iter().copied().filter(is_own_page).collect();
                    (RequestId(id), Seq2SeqStep::Decode { copies, rows })
                };
                by_request(rows).into_iter().map(alone).collect()
            }
        }
    }

    fn forward(&mut self, step: &Seq2SeqStep) -> Result<Vec<f32>> {
        match step {
            Seq2SeqStep::Encode(inputs) => {
                let inputs: Vec<_> = inputs.iter().map(|(_, table, ids)| (table.clone(), ids.clone())).collect();
                self.model.encode(&inputs, &self.input_cache.cache, &self.place)?;
                Ok(Vec::new())
            }
            Seq2SeqStep::Decode { copies, rows } => {
                copy(copies, &self.output_cache.cache, &self.place)?;
                let chunk = |row: &Row| {
                    let chunk =
                        TokenChunk { ids: vec![row.token], start: row.position, table: row.table.clone(), wanted: 1 };
                    (chunk, row.input.clone())
                };
                let rows: Vec<_> = rows.iter().map(chunk).collect();
                let here = (&self.place, &self.passes);
                Ok(self.model.replay(&rows, &self.output_cache.cache, &self.input_cache.cache, here)?.to_f32()?)
            }
        }
    }

    fn finish(&mut self, ran: Vec<(Seq2SeqStep, Vec<f32>)>) {
        for (step, mut logits) in ran {
            let Seq2SeqStep::Decode { rows, .. } = step else { continue };
            let width = (logits.len() / rows.len().max(1)).max(1);
            let head = self.model.0.head();
            threads::for_each_chunk_mut(&mut logits, width, |_, row| head.capped(row));
            // Every request needs only its own rows, so all are sampled in parallel.
            let mut rest = &mut logits[..];
            let mut work = Vec::new();
            for (id, rows) in by_request(&rows) {
                let (logits, remaining) = rest.split_at_mut(rows.len() * width);
                rest = remaining;
                work.extend(self.active.remove(&RequestId(id)).map(|input| Mutex::new((id, input, logits))));
            }
            let (scheduler, device) = (&self.scheduler, self.place.device());
            let continued = threads::map(work.len(), |i| {
                let mut entry = work[i].lock().unwrap_or_else(PoisonError::into_inner);
                let (id, input, logits) = &mut *entry;
                (*id, input.advance(logits, &scheduler.tokens(*id), device))
            });
            for entry in work {
                let (id, input, _) = entry.into_inner().unwrap_or_else(PoisonError::into_inner);
                self.active.insert(RequestId(id), input);
            }
            self.scheduler.commit(&mut self.input_cache.blocks, &mut self.output_cache.blocks, continued);
        }
    }

    fn release(&mut self, id: RequestId) {
        self.active.remove(&id);
        self.scheduler.release(&mut self.input_cache.blocks, &mut self.output_cache.blocks, id.0);
    }

    fn reset(&mut self) {
        self.active.clear();
        self.scheduler = Seq2SeqScheduler::new(self.budget, self.start);
        for paged in [&mut self.input_cache, &mut self.output_cache] {
            if let Ok(blocks) = Blocks::new(paged.blocks.count() as u32, paged.blocks.size() as u32) {
                paged.blocks = blocks;
            }
        }
    }

    fn queue(&self) -> QueueStats {
        let (requests, tokens) = (self.scheduler.waiting(), self.scheduler.waiting_tokens());
        QueueStats { requests, tokens, ..QueueStats::default() }
    }

    fn stats(&self) {}
}

/// The rows of each request, which are adjacent, in the order of the step.
fn by_request(rows: &[Row]) -> Vec<(u64, Vec<Row>)> {
    rows.chunk_by(|a, b| a.request == b.request).map(|rows| (rows[0].request, rows.to_vec())).collect()
}
