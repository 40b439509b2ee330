//! What the thread that owns a language model holds: takes what is asked for, runs step after step, and tells everyone what came.

use super::activity::{Board, Tally};
use super::live::{Ends, Given, Live, Turn};
use super::model::{Came, LmModel, LmPlan, PAGE};
use super::{Activity, Listener};
use crate::constrain::Constraint;
use crate::kv::{Blocks, SeqId};
use crate::ready;
use crate::run::{Owner, words};
use crate::sample::Params;
use crate::schedule::{self, Budget, Next, Piece, Sampled, Scheduler, Step};
use crate::{Error, LoadOptions, Result};
use rayon::prelude::*;
use sconce_formats::Model;
use sconce_ops::replay::Passes;
use sconce_ops::{Cache, Choosing, Ladder, Place};
use sconce_text::stream::{Detok, Stops};
use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A request, ready to run.
pub(crate) struct Job {
    pub(crate) tokens: Vec<u32>,
    pub(crate) params: Arc<Params>,
    pub(crate) ends: Ends,
    /// Makes text of an answer, behind the prompt where it goes on from that.
    pub(crate) detok: Detok,
    /// Finds the stop texts in it.
    pub(crate) stops: Stops,
    /// The form of each answer, if they must have one.
    pub(crate) forms: Vec<Constraint>,
    /// Whether it is told how likely the tokens of the prompt were.
    pub(crate) scored: bool,
    pub(crate) listener: Arc<Listener>,
}

/// The thread. When dropped it ends, once everyone who listens has the rest of their answers.
pub(crate) struct Worker {
    jobs: Mutex<Sender<Job>>,
    board: Arc<Board>,
    owner: Owner<RefCell<Running>>,
}

impl Worker {
    /// Starts the thread, which loads and proves the model.
    pub(crate) fn start(planned: &LmPlan, options: &LoadOptions, ladder: Arc<Ladder>) -> Result<Worker> {
        let (jobs, inbox) = channel();
        let (device, planned, options) = (planned.plan.device, planned.clone(), options.clone());
        let board = Arc::new(Board::default());
        let seen = board.clone();
        let make = move || Ok(RefCell::new(Running::load(&planned, &options, inbox, seen)?));
        Ok(Worker { owner: Owner::start(device, ladder, make)?, board, jobs: Mutex::new(jobs) })
    }

    /// Hands over a request; its events tell the rest. There are none if this fails.
    pub(crate) fn submit(&self, job: Job) -> Result<()> {
        let listener = Arc::downgrade(&job.listener);
        self.board.handed_over();
        // If the thread is gone, so is its end of the channel; the owner knows why.
        if let Err(unsent) = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).send(job) {
            unsent.0.listener.close();
        }
        let posted = self.owner.post(|running| running.borrow_mut().drive());
        if let (Err(_), Some(listener)) = (&posted, listener.upgrade()) {
            listener.close();
        }
        posted
    }

    /// What the model is busy with.
    pub(crate) fn activity(&self) -> Activity {
        self.board.read()
    }
}

/// Answers that will go on from the same prompt.
type Forks = Vec<(SeqId, Live)>;

/// What came of a step, of the pieces that something was wanted of.
#[derive(Default)]
struct Outcome {
    /// Of those that have no token yet, in their order.
    logits: Vec<f32>,
    /// The pieces, and their tokens if these were chosen on the device.
    whose: Vec<(Piece, Option<u32>)>,
}

impl Outcome {
    fn add(&mut self, step: &Step, came: Came) {
        let wanted = step.pieces.iter().filter(|piece| piece.rows() > 0).cloned();
        match came {
            Came::Logits(logits) => {
                self.logits.extend(logits);
                self.whose.extend(wanted.map(|piece| (piece, None)));
            }
            Came::Tokens(tokens) => self.whose.extend(wanted.zip(tokens.into_iter().map(Some))),
        }
    }
}

struct Running {
    model: LmModel,
    place: Place,
    passes: Passes,
    cache: Cache,
    blocks: Blocks,
    scheduler: Scheduler,
    budget: Budget,
    inbox: Receiver<Job>,
    board: Arc<Board>,
    tally: Tally,
    live: HashMap<SeqId, Live>,
    /// Answers of a prompt whose first token is not chosen yet: those that will go on from it.
    forks: HashMap<SeqId, Forks>,
    next: u64,
}

impl Running {
    fn load(planned: &LmPlan, options: &LoadOptions, inbox: Receiver<Job>, board: Arc<Board>) -> Result<Running> {
        let place = ready::open(planned.plan.device, options)?;
        let model = Model::open(&planned.plan.root)?;
        let (model, _) = LmModel::load(&model, options, (planned.keep, planned.context), &place)?;
        {
            // Apart: the warm-up is nobody's request, and is not counted as one.
            let _apart = Ladder::new(options.policy.clone()).enter();
            model.prove(planned.cache_format, &place)?;
        }
        let cache = Cache::new(model.shape()?, planned.pages * PAGE, planned.cache_format, &place)?;
        let blocks = Blocks::new(planned.pages as u32, PAGE as u32).map_err(Error::Input)?;
        let budget = Budget { tokens: planned.step_tokens, sequences: planned.sequences };
        ready::make(&place, options, planned.step_tokens, |tokens| model.rehearse(planned, tokens, &cache, &place));
        let (live, forks, scheduler, tally) = (HashMap::new(), HashMap::new(), Scheduler::default(), Tally::default());
        let passes = Passes::new(&place, planned.plan.recorded)?;
        Ok(Running {
            model,
            place,
            passes,
            cache,
            blocks,
            scheduler,
            budget,
            inbox,
            board,
            tally,
            live,
            forks,
            next: 0,
        })
    }

    /// Runs until nothing is left to do. Who comes meanwhile joins in.
    fn drive(&mut self) {
        loop {
            while let Ok(job) = self.inbox.try_recv() {
                self.take(job);
                self.board.taken();
            }
            self.tally.report(&self.board, &self.scheduler, &self.blocks);
            if self.scheduler.is_idle() {
                return;
            }
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.step())) {
                self.give_up(&words(&*panic));
            }
        }
    }

    fn take(&mut self, mut job: Job) {
        let n = job.params.n.max(1) as usize;
        let mut forms = std::mem::take(&mut job.forms).into_iter();
        let lives: Vec<Live> = (0..n).map(|answer| Live::new(answer, &job, forms.next())).collect();
        let Job { tokens, ends, listener, scored, .. } = job;
        let ids: Vec<SeqId> = (0..n as u64).map(|i| SeqId(self.next + i)).collect();
        self.next += n as u64;
        let limit = tokens.len() + ends.most.max(1);
        let request = schedule::Request { sequence: ids[0], tokens, limit, n, scored };
        if let Err(refused) = self.scheduler.submit(request, &self.blocks) {
            return listener.tell(Err(Error::Input(refused.to_string())));
        }
        let mut lives = ids.iter().copied().zip(lives);
        if let Some((id, first)) = lives.next() {
            self.live.insert(id, first);
            self.forks.insert(id, lives.collect());
        }
    }

    /// Forgets those whom nobody listens to, or whose time is over.
    fn shed(&mut self) {
        let now = Instant::now();
        let gone: Vec<SeqId> = self.live.iter().filter(|(_, live)| live.gone(now)).map(|(id, _)| *id).collect();
        for id in gone {
            self.scheduler.cancel(id);
            self.live.remove(&id);
            self.forks.remove(&id);
        }
    }

    fn step(&mut self) {
        self.shed();
        let step = self.scheduler.step(&mut self.blocks, self.budget);
        self.tally.preemptions += step.preempted.len() as u64;
        if step.pieces.is_empty() {
            return;
        }
        for piece in &step.pieces {
            let live = self.live.get(&piece.sequence);
            if let Some(live) = live.filter(|live| live.begin(piece.range.start)) {
                self.tally.prompt_tokens += live.prompt() as u64;
            }
        }
        let Outcome { mut logits, whose } = self.outcome(&step);
        let rows = whose.iter().filter(|(_, token)| token.is_none()).map(|(piece, _)| piece.rows());
        let width = (logits.len() / rows.sum::<usize>().max(1)).max(1);
        let (head, scheduler) = (&self.model.head, &self.scheduler);
        logits.par_chunks_mut(width).for_each(|row| head.capped(row));
        let mut turns: Vec<(SeqId, Given<'_>, Option<Live>, Forks)> = Vec::new();
        let mut rest = logits.chunks_mut(width);
        for (piece, token) in whose {
            let id = piece.sequence;
            let given = match token {
                Some(token) => Some(Given::Token(token)),
                None => {
                    let mut rows: Vec<&mut [f32]> = rest.by_ref().take(piece.rows()).collect();
                    if let Some(live) = self.live.get_mut(&id).filter(|_| piece.scored) {
                        live.score(&rows, piece.range, scheduler.tokens(id).unwrap_or_default());
                    }
                    rows.pop().filter(|_| piece.sample).map(Given::Logits)
                }
            };
            if let Some(given) = given {
                turns.push((id, given, self.live.remove(&id), self.forks.remove(&id).unwrap_or_default()));
            }
        }
        // Everyone's next token, on all threads: an answer needs nothing but its own row.
        let chosen: Vec<_> = turns
            .into_par_iter()
            .filter_map(|(id, given, live, forks)| {
                let tokens = scheduler.tokens(id).unwrap_or_default();
                let forks: Vec<_> = forks
                    .into_iter()
                    .map(|(id, mut fork)| {
                        let turn = match &given {
                            Given::Logits(row) => fork.next(Given::Logits(&mut row.to_vec()), tokens),
                            Given::Token(token) => fork.next(Given::Token(*token), tokens),
                        };
                        (id, fork, turn)
                    })
                    .collect();
                let mut live = live?;
                let turn = live.next(given, tokens);
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

    /// What came of a step. What fails together is tried one by one, and fails those alone that fail again.
    fn outcome(&mut self, step: &Step) -> Outcome {
        let mut all = Outcome::default();
        if step.pieces.len() > 1
            && let Ok(came) = self.run(step)
        {
            all.add(step, came);
            return all;
        }
        for piece in &step.pieces {
            // Nobody else writes to the pages that are copied for it.
            let own = self.blocks.table(piece.sequence);
            let copies = step.copies.iter().copied().filter(|(_, to)| own.contains(to)).collect();
            let alone = Step { pieces: vec![piece.clone()], copies, ..Step::default() };
            match self.run(&alone) {
                Ok(came) => all.add(&alone, came),
                Err(e) => self.fail(piece.sequence, e),
            }
        }
        all
    }

    fn run(&self, step: &Step) -> Result<Came> {
        let tokens = |id| self.scheduler.tokens(id);
        let how = self.plain(step);
        let run =
            || self.model.step((step, how.as_deref()), &self.blocks, tokens, &self.cache, (&self.place, &self.passes));
        let device = self.place.device();
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Err(Error::Panicked { device, why: words(&*panic) }))
    }

    /// How the tokens of a step are chosen, if all that is wanted of it is a token a piece.
    fn plain(&self, step: &Step) -> Option<Vec<Choosing>> {
        let one = |piece: &Piece| {
            let is_alone = self.forks.get(&piece.sequence).is_none_or(Vec::is_empty);
            let live = self.live.get(&piece.sequence).filter(|_| is_alone && !piece.scored)?;
            live.plain(self.scheduler.tokens(piece.sequence)?)
        };
        step.pieces.iter().filter(|piece| piece.rows() > 0).map(one).collect()
    }

    fn keep(&mut self, id: SeqId, live: Live, turn: Turn) -> Next {
        self.tally.generated_tokens += 1;
        match turn {
            Turn::Token(token) => {
                self.live.insert(id, live);
                Next::Token(token)
            }
            Turn::Ended => Next::Stop,
        }
    }

    /// Ends a sequence in the step that is under way. What it left in the cache is unknown, and is nobody's.
    fn fail(&mut self, id: SeqId, error: Error) {
        // Those that would go on from it have its listener, who is told once.
        self.forks.remove(&id);
        if let Some(live) = self.live.remove(&id) {
            live.fail(error);
        }
        self.scheduler.abandon(&mut self.blocks, id);
    }

    /// A bug of ours outside of the model: nobody knows whose pages are whose, so everyone fails, and the books begin anew.
    fn give_up(&mut self, why: &str) {
        self.forks.clear();
        let device = self.place.device();
        for (_, live) in self.live.drain() {
            live.fail(Error::Panicked { device, why: why.to_string() });
        }
        self.scheduler = Scheduler::default();
        if let Ok(blocks) = Blocks::new(self.blocks.count() as u32, self.blocks.size() as u32) {
            self.tally.close(&self.blocks);
            self.blocks = blocks;
        }
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
