//! The thread that owns a language model: takes what is asked for, runs step after step, and tells everyone what came.

use super::Event;
use super::live::{Ends, Live, Turn};
use super::model::{LmModel, LmPlan, PAGE};
use crate::constrain::Constraint;
use crate::kv::{Blocks, SeqId};
use crate::sample::Params;
use crate::schedule::{self, Budget, Next, Sampled, Scheduler};
use crate::{Error, LoadOptions, Result};
use rayon::prelude::*;
use sconce_ops::{Cache, Ladder, Place};
use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use tokenizers::Tokenizer;

/// A request, ready to run.
pub(crate) struct Job {
    pub(crate) tokens: Vec<u32>,
    pub(crate) params: Arc<Params>,
    pub(crate) ends: Ends,
    /// The form of each answer, if they must have one.
    pub(crate) forms: Vec<Constraint>,
    pub(crate) events: Sender<Result<Event>>,
    /// There as long as somebody listens.
    pub(crate) listener: Weak<()>,
}

/// The thread. Ends when dropped.
pub(crate) struct Worker {
    jobs: Option<Mutex<Sender<Job>>>,
    thread: Option<JoinHandle<()>>,
}

/// Answers that will go on from the same prompt.
type Forks = Vec<(SeqId, Live)>;

/// What the thread holds.
struct Running {
    model: LmModel,
    place: Place,
    cache: Cache,
    blocks: Blocks,
    scheduler: Scheduler,
    budget: Budget,
    tokenizer: Arc<Tokenizer>,
    live: HashMap<SeqId, Live>,
    /// Answers of a prompt whose first token is not chosen yet: those that will go on from it.
    forks: HashMap<SeqId, Forks>,
    next: u64,
}

impl Worker {
    /// Starts the thread, which loads and proves the model.
    pub(crate) fn start(
        planned: &LmPlan,
        options: &LoadOptions,
        ladder: Arc<Ladder>,
        tokenizer: Arc<Tokenizer>,
    ) -> Result<Worker> {
        let (jobs, inbox) = channel();
        let (ready, started) = channel();
        let (planned, options) = (planned.clone(), options.clone());
        let device = planned.plan.device;
        let failed =
            |e: &dyn std::fmt::Display| Error::Stopped { device, why: format!("it could not be started: {e}") };
        let body = move || {
            let _here = ladder.enter();
            match catch_unwind(AssertUnwindSafe(|| Running::load(&planned, &options, tokenizer))) {
                Ok(Ok(mut running)) => {
                    let _ = ready.send(Ok(()));
                    running.serve(&inbox);
                }
                Ok(Err(e)) => drop(ready.send(Err(e))),
                Err(panic) => drop(ready.send(Err(Error::Panicked { device, why: words(&*panic) }))),
            }
        };
        let pool = rayon::ThreadPoolBuilder::new()
            .thread_name(move |i| format!("sconce {device} {i}"))
            .build()
            .map_err(|e| failed(&e))?;
        let thread = std::thread::Builder::new()
            .name(format!("sconce {device}"))
            .spawn(move || pool.install(body))
            .map_err(|e| failed(&e))?;
        started.recv().unwrap_or_else(|_| Err(Error::Stopped { device, why: "it ended while loading".into() }))?;
        Ok(Worker { jobs: Some(Mutex::new(jobs)), thread: Some(thread) })
    }

    /// Hands over a request; its events tell the rest.
    pub(crate) fn submit(&self, job: Job) -> Result<()> {
        let gone = || Error::Input("the model's thread is gone".into());
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        jobs.lock().unwrap_or_else(PoisonError::into_inner).send(job).map_err(|_| gone())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Closing the channel ends the loop; the model must be gone before its device is.
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Running {
    fn load(planned: &LmPlan, options: &LoadOptions, tokenizer: Arc<Tokenizer>) -> Result<Running> {
        let place = Place::open(planned.plan.device)?;
        let root = &planned.plan.root;
        let (model, _) = LmModel::load(root, options, (planned.keep, planned.context), &place)?;
        {
            // Apart: the warm-up is nobody's request, and is not counted as one.
            let _apart = Ladder::new(options.policy.clone()).enter();
            model.prove(planned.cache_dtype, &place)?;
        }
        let cache = Cache::new(model.shape()?, planned.pages * PAGE, planned.cache_dtype, &place)?;
        let blocks = Blocks::new(planned.pages as u32, PAGE as u32).map_err(Error::Input)?;
        let budget = Budget { tokens: planned.step_tokens, sequences: planned.sequences };
        let (live, forks) = (HashMap::new(), HashMap::new());
        Ok(Running {
            model,
            place,
            cache,
            blocks,
            scheduler: Scheduler::default(),
            budget,
            tokenizer,
            live,
            forks,
            next: 0,
        })
    }

    fn serve(&mut self, inbox: &Receiver<Job>) {
        loop {
            if self.scheduler.is_idle() {
                match inbox.recv() {
                    Ok(job) => self.take(job),
                    Err(_) => return,
                }
            }
            loop {
                match inbox.try_recv() {
                    Ok(job) => self.take(job),
                    Err(std::sync::mpsc::TryRecvError::Empty) => break,
                    // Nobody can listen any more.
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
                }
            }
            self.step();
        }
    }

    fn take(&mut self, mut job: Job) {
        let n = job.params.n.max(1) as usize;
        let mut forms = std::mem::take(&mut job.forms).into_iter();
        let lives = (0..n).map(|answer| Live::new(answer, &job, self.tokenizer.clone(), forms.next()));
        let lives = lives.collect::<Result<Vec<_>>>();
        let Job { tokens, ends, events, .. } = job;
        let lives = match lives {
            Ok(lives) => lives,
            Err(e) => return drop(events.send(Err(e))),
        };
        let ids: Vec<SeqId> = (0..n as u64).map(|i| SeqId(self.next + i)).collect();
        self.next += n as u64;
        let request = schedule::Request { sequence: ids[0], limit: tokens.len() + ends.most, tokens, n };
        if let Err(refused) = self.scheduler.submit(request, &self.blocks) {
            return drop(events.send(Err(Error::Input(refused.to_string()))));
        }
        let mut lives = ids.iter().copied().zip(lives);
        if let Some((id, first)) = lives.next() {
            self.live.insert(id, first);
            self.forks.insert(id, lives.collect());
        }
    }

    /// Forgets those whom nobody listens to.
    fn shed(&mut self) {
        let gone: Vec<SeqId> = self.live.iter().filter(|(_, live)| live.gone()).map(|(id, _)| *id).collect();
        for id in gone {
            self.scheduler.cancel(id);
            self.live.remove(&id);
            self.forks.remove(&id);
        }
    }

    fn step(&mut self) {
        self.shed();
        let step = self.scheduler.step(&mut self.blocks, self.budget);
        if step.pieces.is_empty() {
            return;
        }
        let run = || {
            let tokens = |id| self.scheduler.tokens(id);
            self.model.step(&step, &self.blocks, tokens, &self.cache, &self.place)
        };
        let result = catch_unwind(AssertUnwindSafe(run));
        let mut logits = match result {
            Ok(Ok(logits)) => logits,
            Ok(Err(e)) => return self.fail(&step, &e.to_string()),
            Err(panic) => return self.fail(&step, &format!("the model's thread panicked: {}", words(&*panic))),
        };
        let wanted: Vec<SeqId> = step.pieces.iter().filter(|p| p.sample).map(|p| p.sequence).collect();
        let width = logits.len() / wanted.len().max(1);
        // Everyone's next token, on all threads: an answer needs nothing but its own row.
        let mut turns: Vec<(SeqId, Option<Live>, Forks)> = Vec::new();
        for id in wanted {
            turns.push((id, self.live.remove(&id), self.forks.remove(&id).unwrap_or_default()));
        }
        let (head, scheduler) = (&self.model.head, &self.scheduler);
        let chosen: Vec<_> = turns
            .into_par_iter()
            .zip(logits.par_chunks_mut(width.max(1)))
            .filter_map(|((id, live, forks), row)| {
                head.capped(row);
                let tokens = scheduler.tokens(id).unwrap_or_default();
                let forks: Vec<_> = forks
                    .into_iter()
                    .map(|(id, mut fork)| {
                        let turn = fork.next(&mut row.to_vec(), tokens);
                        (id, fork, turn)
                    })
                    .collect();
                let mut live = live?;
                let turn = live.next(row, tokens);
                Some((id, live, turn, forks))
            })
            .collect();
        let mut sampled = Vec::new();
        for (id, live, turn, forks) in chosen {
            let forks = forks.into_iter().map(|(id, fork, turn)| (id, self.keep(id, fork, turn))).collect();
            sampled.push(Sampled { sequence: id, next: self.keep(id, live, turn), forks });
        }
        self.scheduler.commit(&mut self.blocks, sampled);
    }

    fn keep(&mut self, id: SeqId, live: Live, turn: Turn) -> Next {
        match turn {
            Turn::Token(token) => {
                self.live.insert(id, live);
                Next::Token(token)
            }
            Turn::Ended => Next::Stop,
        }
    }

    /// A step that failed fails the sequences in it, and no others.
    fn fail(&mut self, step: &schedule::Step, why: &str) {
        for piece in &step.pieces {
            let answers = self.forks.remove(&piece.sequence).unwrap_or_default();
            let own = self.live.remove(&piece.sequence);
            for live in own.into_iter().chain(answers.into_iter().map(|(_, live)| live)) {
                live.fail(Error::Input(why.to_string()));
            }
            self.scheduler.cancel(piece.sequence);
        }
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message").to_string()
}
