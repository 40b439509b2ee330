//! What the thread that owns the model holds: reads inputs as there is room for their answers, and writes all of these a token
//! at a time.
//!
//! Room is counted at its worst, every answer as long as it may get: so nobody who was let in has to wait or to be put out.
//! Blocks are never shared by content here: the same tokens behind another input are not the same.

use super::model::{Layout, Whole, copy};
use super::task::{Job, Row, Task};
use crate::generate::PAGE;
use crate::kv::{Blocks, SeqId};
use crate::ready;
use crate::run::words;
use crate::sample::Continued;
use crate::{Error, LoadOptions, Result};
use rayon::prelude::*;
use sconce_formats::Model;
use sconce_models::Piece;
use sconce_ops::replay::Passes;
use sconce_ops::{Cache, Ladder, Place};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

pub(super) struct Running {
    model: Whole,
    place: Place,
    passes: Passes,
    /// Of what was read, and of what was written.
    read: (Cache, Blocks),
    written: (Cache, Blocks),
    /// Tokens that are read at once, and sequences that are written.
    batch_tokens: usize,
    sequences: usize,
    /// By which every answer begins.
    start: u32,
    inbox: Receiver<Job>,
    waiting: VecDeque<Job>,
    tasks: Vec<Task>,
    next: u64,
}

impl Running {
    pub(super) fn load(layout: &Layout, options: &LoadOptions, start: u32, inbox: Receiver<Job>) -> Result<Running> {
        let place = ready::open(layout.plan.device, options)?;
        let (model, _) = Whole::load(&Model::open(&layout.plan.root)?, options, layout.keep, &place)?;
        {
            // Apart: the warm-up is nobody's request, and is not counted as one.
            let _apart = Ladder::new(options.policy.clone()).enter();
            model.prove(layout.cache_format, &place)?;
        }
        let kept = |pages: usize| -> Result<(Cache, Blocks)> {
            let blocks = Blocks::new(pages as u32, PAGE as u32).map_err(Error::Input)?;
            Ok((model.cache(pages, layout.cache_format, &place)?, blocks))
        };
        let (read, written) = (kept(layout.read)?, kept(layout.written)?);
        let (batch_tokens, sequences) = (layout.plan.batch_tokens, layout.sequences);
        let caches = (&read.0, &written.0);
        ready::make(&place, options, batch_tokens.max(sequences), |tokens| {
            model.rehearse(layout, tokens, caches, &place)
        });
        let passes = Passes::new(&place, layout.plan.recorded)?;
        Ok(Running {
            model,
            place,
            passes,
            read,
            written,
            batch_tokens,
            sequences,
            start,
            inbox,
            waiting: VecDeque::new(),
            tasks: Vec::new(),
            next: 0,
        })
    }

    /// Runs until nothing is left to do. Who comes meanwhile joins in.
    pub(super) fn drive(&mut self) {
        loop {
            while let Ok(job) = self.inbox.try_recv() {
                self.waiting.push_back(job);
            }
            let now = Instant::now();
            let gone: Vec<Task> = self.tasks.extract_if(.., |task| task.gone(now)).collect();
            gone.iter().for_each(|task| self.forget(task));
            self.waiting.retain(|job| !job.gone(now));
            // Who was let in before has nothing to do with what is read now.
            self.guarded(self.tasks.len(), Running::admit);
            if self.tasks.is_empty() && self.waiting.is_empty() {
                return;
            }
            self.guarded(0, Running::step);
        }
    }

    /// What fails fails the tasks from `first` on: nobody knows whose numbers are whole.
    fn guarded(&mut self, first: usize, f: impl FnOnce(&mut Running) -> Result<()>) {
        let device = self.place.device();
        let result = catch_unwind(AssertUnwindSafe(|| f(self)));
        let result = result.unwrap_or_else(|panic| Err(Error::Panicked { device, why: words(&*panic) }));
        let Err(why) = result else { return };
        let why = match &why {
            Error::Panicked { why, .. } => why.clone(),
            other => other.to_string(),
        };
        for task in self.tasks.split_off(first.min(self.tasks.len())) {
            task.fail(Error::Panicked { device, why: why.clone() });
            self.forget(&task);
        }
    }

    /// Gives back the pages of a task.
    fn forget(&mut self, task: &Task) {
        self.read.1.free(task.input);
        task.rows.iter().for_each(|row| self.written.1.free(row.id));
    }

    fn name(&mut self) -> SeqId {
        self.next += 1;
        SeqId(self.next)
    }

    /// Reads those who are first in line, as many as there is room for.
    fn admit(&mut self) -> Result<()> {
        let (mut tokens, mut inputs) = (0, Vec::new());
        while let Some(job) = self.waiting.front() {
            let (length, width) = (job.ids.len(), job.width());
            let pages = width * job.most.div_ceil(PAGE);
            let writing: usize = self.tasks.iter().map(|task| task.width).sum();
            let promised: usize = self.tasks.iter().map(|task| task.pages).sum();
            let fits = length.div_ceil(PAGE) <= self.read.1.free_blocks()
                && writing + width <= self.sequences
                && promised + pages <= self.written.1.count()
                && (tokens == 0 || tokens + length <= self.batch_tokens);
            let Some(job) = self.waiting.pop_front_if(|_| fits) else { break };
            let input = self.name();
            self.read.1.allocate(input, &[]);
            if let Err(need) = self.read.1.reserve(input, length) {
                self.read.1.free(input);
                job.fail(Error::Input(format!("an input takes {} pages of {} that are free", need.need, need.free)));
                continue;
            }
            let table: Arc<[u32]> = self.read.1.table(input).into();
            inputs.push((table.clone(), job.ids.clone()));
            tokens += length;
            let mut task = Task::new(job, (input, (table, length)), pages);
            for _ in 0..task.first() {
                let id = self.name();
                self.written.1.allocate(id, &[]);
                task.rows.push(Row { id, tokens: vec![self.start] });
            }
            self.tasks.push(task);
        }
        if inputs.is_empty() {
            return Ok(());
        }
        self.model.read(&inputs, &self.read.0, &self.place)
    }

    /// The next token of everyone.
    fn step(&mut self) -> Result<()> {
        let (mut copies, mut writing) = (Vec::new(), Vec::new());
        for task in &self.tasks {
            for Row { id, tokens } in &task.rows {
                let reserved = self.written.1.reserve(*id, 1);
                copies.extend(reserved.map_err(|_| Error::Input("there is no page for an answer".into()))?);
                let (last, table) = (tokens.len() - 1, self.written.1.table(*id).into());
                let piece = Piece { ids: tokens[last..].to_vec(), start: last, table, wanted: 1 };
                writing.push((piece, task.at.clone()));
            }
        }
        if writing.is_empty() {
            return Ok(());
        }
        copy(&copies, &self.written.0, &self.place)?;
        let here = (&self.place, &self.passes);
        let mut logits = self.model.replay(&writing, &self.written.0, &self.read.0, here)?.to_f32()?;
        let (head, width) = (self.model.0.head(), logits.len() / writing.len());
        logits.par_chunks_mut(width.max(1)).for_each(|row| head.capped(row));
        // A task needs nothing but its own rows.
        let mut rest = &mut logits[..];
        let mut own = Vec::new();
        for task in &self.tasks {
            let (rows, behind) = rest.split_at_mut(task.rows.len() * width);
            own.push(rows);
            rest = behind;
        }
        let moves: Vec<_> = self.tasks.par_iter_mut().zip(own).map(|(task, rows)| task.advance(rows)).collect();
        let mut tasks = std::mem::take(&mut self.tasks);
        for (task, continued) in tasks.iter_mut().zip(moves) {
            self.go_on(task, continued);
        }
        let done: Vec<Task> = tasks.extract_if(.., |task| task.rows.is_empty()).collect();
        self.tasks = tasks;
        done.iter().for_each(|task| self.forget(task));
        Ok(())
    }

    /// The first that goes on from a row takes its pages; others share them until they write.
    fn go_on(&mut self, task: &mut Task, continued: Vec<Continued>) {
        let mut taken = vec![false; task.rows.len()];
        let mut rows = Vec::with_capacity(continued.len());
        for Continued { beam, token } in continued {
            let from = &task.rows[beam];
            let tokens = [from.tokens.as_slice(), &[token]].concat();
            let id = if std::mem::replace(&mut taken[beam], true) {
                let id = self.name();
                self.written.1.fork(task.rows[beam].id, id);
                id
            } else {
                from.id
            };
            rows.push(Row { id, tokens });
        }
        let left = task.rows.iter().zip(taken).filter(|(_, taken)| !taken);
        left.for_each(|(row, _)| self.written.1.free(row.id));
        task.rows = rows;
    }
}
