//! Loading a model onto a device and running sequences through it: what every task shares.

use crate::line::{Line, Results, Taken, Waiting, Want, Work};
use crate::loaded::Loaded;
use crate::pipeline::{Parts, Pipeline, plan_of};
use crate::plan::Plan;
use crate::ready;
use crate::run::{Owner, words};
use crate::schedule::Budget;
use crate::{Caller, Error, LoadOptions, Result};
use sconce_hub::{self as hub, Files, Progress, Reference};
use sconce_models::Batch;
use sconce_ops::replay::{self, Fill, Given, Pass, Passes};
use sconce_ops::{Counted, DType, Device, Ladder, Place, Tensor};
use sconce_text::{Encoded, Reader, TextToken, Tokenizer, Truncate};
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

impl<P: Pipeline> Loaded for Session<P> {
    fn plan(&self) -> &Plan {
        &self.plan
    }
    fn files(&self) -> &Files {
        &self.files
    }
    fn counts(&self) -> Vec<(Counted, u64)> {
        self.ladder.counts()
    }
    fn peak_bytes(&self) -> u64 {
        self.ladder.ledger.peak()
    }
    fn waiting(&self) -> Waiting {
        self.line.waiting()
    }
    fn tokenize(&self, text: &str, special: bool) -> Result<Vec<TextToken>> {
        Ok(self.tokenizer.tokenize(text, special)?)
    }
    fn detokenize(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        Ok(self.tokenizer.detokenize(ids, skip_special)?)
    }
}

/// Texts as works, with what callers are told of them.
pub(crate) struct Lot {
    pub(crate) works: Vec<Work>,
    /// Tokens of each.
    pub(crate) tokens: Vec<usize>,
    /// Which were cut.
    pub(crate) truncated: Vec<usize>,
}

impl Lot {
    /// Of texts whose first `skip` tokens belong to a prompt that does not count.
    pub(crate) fn of(encoded: Vec<Encoded>, skip: usize) -> Lot {
        let tokens = encoded.iter().map(|e| e.ids.len()).collect();
        let truncated = (0..encoded.len()).filter(|i| encoded[*i].truncated).collect();
        let works = encoded.into_iter().map(|e| Work { skip, ..Work::from(e) }).collect();
        Lot { works, tokens, truncated }
    }
}

/// A pipeline on its device, for somebody. Others have it too.
pub(crate) struct Session<P: Pipeline> {
    held: Arc<Held<P>>,
    pub(crate) caller: Caller,
    pub(crate) truncate: Truncate,
}

/// How a session is to differ from another.
#[derive(Clone, Debug, Default)]
pub(crate) struct How {
    pub(crate) caller: Option<Caller>,
    pub(crate) truncate: Option<Truncate>,
}

/// What sessions share. The last one to go takes the model along.
pub(crate) struct Held<P: Pipeline> {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) recipe: P::Recipe,
    pub(crate) plan: Plan,
    pub(crate) files: Files,
    pub(crate) ladder: Arc<Ladder>,
    line: Arc<Line>,
    pub(crate) owner: Owner<Running<P>>,
}

impl<P: Pipeline> Clone for Session<P> {
    fn clone(&self) -> Session<P> {
        self.but(&How::default())
    }
}

impl<P: Pipeline> Deref for Session<P> {
    type Target = Held<P>;

    fn deref(&self) -> &Held<P> {
        &self.held
    }
}

/// What the owner's thread holds.
pub(crate) struct Running<P> {
    pub(crate) pipeline: P,
    pub(crate) place: Place,
    passes: Passes,
    line: Arc<Line>,
}

impl<P: Pipeline> Running<P> {
    /// Runs the next batch; whether there was one. A bug of ours outside of the model fails everyone who waits.
    fn turn(&self) -> bool {
        catch_unwind(AssertUnwindSafe(|| {
            let taken = self.line.take(Instant::now());
            taken.iter().for_each(|part| self.serve(part));
            !taken.is_empty()
        }))
        .unwrap_or_else(|panic| {
            self.line.fail_all(|| self.panicked(&*panic));
            true
        })
    }

    /// What fails together is tried caller by caller, and fails those alone that fail again.
    fn serve(&self, taken: &Taken) {
        let error = match self.forward(taken) {
            Ok(results) => return self.line.answer(taken, results),
            Err(error) => error,
        };
        let apart = taken.apart();
        if let [one] = &apart[..] {
            return self.line.fail(one, error);
        }
        for own in apart {
            match self.forward(&own) {
                Ok(results) => self.line.answer(&own, results),
                Err(error) => self.line.fail(&own, error),
            }
        }
    }

    fn forward(&self, taken: &Taken) -> Result<Results> {
        let run = || {
            let tokens = taken.sequences.iter().map(|s| s.ids.len()).sum();
            let (batch, results) = match self.passes.fill(tokens, taken.sequences.len()) {
                Some(fill) => self.passes.replay(&Texts { running: self, taken }, taken.want as u32, Some(fill))?,
                None => replay::run(&Texts { running: self, taken })?,
            };
            let values = results.iter().map(|t| Ok((t.dims()[0], t.to_f32()?))).collect::<Result<Vec<_>>>()?;
            Ok(Results { segments: batch.segments, values })
        };
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Err(self.panicked(&*panic)))
    }

    fn panicked(&self, panic: &(dyn std::any::Any + Send)) -> Error {
        Error::Panicked { device: self.place.device(), why: words(panic) }
    }
}

/// A batch of texts, and what is wanted of them.
struct Texts<'a, P> {
    running: &'a Running<P>,
    taken: &'a Taken,
}

impl<P: Pipeline> Texts<'_, P> {
    /// None of what fills a batch up is left out.
    fn skips(&self, batch: &Batch) -> Vec<usize> {
        let mut skips = self.taken.skips.clone();
        skips.resize(batch.segments.count(), 0);
        skips
    }
}

impl<P: Pipeline> Pass for Texts<'_, P> {
    type Batch = Batch;
    type Error = Error;

    fn batch(&self, fill: Option<Fill>) -> Result<Batch> {
        let Running { pipeline, place, .. } = self.running;
        Ok(Batch::filled(&self.taken.sequences, fill, pipeline.limits(), place)?)
    }

    fn given(&self, batch: &Batch) -> Given {
        batch.given(&self.skips(batch))
    }

    fn forward(&self, batch: &Batch) -> Result<Vec<Tensor>> {
        match self.taken.want {
            Want::Task => self.running.pipeline.forward(batch, &self.skips(batch)),
            Want::Hidden => Ok(vec![self.running.pipeline.hidden(batch)?]),
        }
    }
}

impl<P: Pipeline> Session<P> {
    /// Finds the files, plans, loads and proves the model. Nothing is loaded that the plan says cannot run or will not fit. With
    /// `options.fallback` the next best device is tried where one cannot serve, and every such step is told.
    pub(crate) fn load(
        reference: &Reference,
        options: &LoadOptions,
        progress: &dyn Progress,
        read: impl FnOnce(&Path) -> Result<P::Recipe>,
    ) -> Result<Session<P>> {
        Self::load_from(&hub::resolve(reference, &options.source, progress)?, options, progress, read)
    }

    /// The same from files that are here.
    pub(crate) fn load_from(
        files: &Files,
        options: &LoadOptions,
        progress: &dyn Progress,
        read: impl FnOnce(&Path) -> Result<P::Recipe>,
    ) -> Result<Session<P>> {
        let recipe = read(if P::IN_GGUF { files.root() } else { files.directory()? })?;
        options.somewhere(progress, |device| Self::on(device, files, &recipe, options, progress))
    }

    fn on(
        device: Device,
        files: &Files,
        recipe: &P::Recipe,
        options: &LoadOptions,
        progress: &dyn Progress,
    ) -> Result<Session<P>> {
        let info = device.info()?;
        let options = &options.on(&info);
        let reading = P::reading(recipe);
        let plan = plan_of::<P>(recipe, device, options)?;
        plan.check(info.free_bytes)?;
        let ladder = Ladder::new(options.policy.clone());
        let (dtype, keep) = (plan.dtype, plan.keep);
        let (given, made_from) = (options.clone(), recipe.clone());
        let (tokens, longest, recorded) = (plan.batch_tokens, plan.max_tokens, plan.recorded);
        let budget = Budget { tokens: plan.batch_tokens, sequences: plan.most_sequences };
        let line = Arc::new(Line::new(budget));
        let served = line.clone();
        let (root, manner) = (reading.root.clone(), reading.manner);
        let make = move || {
            let place = ready::open(device, &given)?;
            let parts = Parts::open(&reading.root, (dtype, keep), place.clone())?;
            let pipeline = P::load(&parts, &made_from).map_err(|e| e.of(&reading.root))?;
            // Apart: the warm-up is nobody's request, and is not counted as one.
            let apart = Ladder::new(given.policy.clone()).enter();
            for result in pipeline.prove(&place)? {
                if !result.to_f32()?.iter().all(|v| v.is_finite()) {
                    return Err(Error::Input(format!("the model is not sound: {}", overflow(device, dtype))));
                }
            }
            drop(apart);
            ready::make(&place, &given, tokens, |tokens| pipeline.rehearse(&place, tokens, longest));
            let passes = Passes::new(&place, recorded)?;
            Ok(Running { pipeline, place, passes, line: served })
        };
        // A vocabulary takes a third of the time that the weights of a small model take: one is read beside the other.
        let (tokenizer, owner) = thread::scope(|scope| {
            let tokenizer = scope.spawn(|| {
                let tokenizer = Tokenizer::load(&root, plan.max_tokens, manner)?;
                let note = tokenizer.check(&root, plan.vocabulary)?;
                Ok::<_, Error>((tokenizer, note))
            });
            let owner = Owner::start_with(device, ladder.clone(), make, Running::turn);
            (tokenizer.join(), owner)
        });
        let (tokenizer, note) = tokenizer.map_err(|panic| Error::Panicked { device, why: words(&*panic) })??;
        let owner = owner?;
        if let Some(note) = note {
            progress.note(&note);
        }
        ladder.ledger.hold(plan.bytes());
        let held = Held { tokenizer, recipe: recipe.clone(), plan, files: files.clone(), ladder, line, owner };
        Ok(Session { held: Arc::new(held), caller: Caller::default(), truncate: Truncate::default() })
    }

    /// The same, but for what `how` says.
    pub(crate) fn but(&self, how: &How) -> Session<P> {
        Session {
            held: self.held.clone(),
            caller: how.caller.as_ref().unwrap_or(&self.caller).clone(),
            truncate: how.truncate.unwrap_or(self.truncate),
        }
    }

    /// Makes tokens, unless nobody waits for them any more.
    pub(crate) fn read<T, E>(&self, read: impl FnOnce(Reader<'_>) -> Result<T, E>) -> Result<T>
    where
        Error: From<E>,
    {
        self.caller.tokenizing(|| Ok(read(self.tokenizer.reader(self.truncate))?))
    }

    /// Runs something else on the device, unless nobody waits for it any more.
    pub(crate) fn call<R: Send + 'static>(
        &self,
        f: impl FnOnce(&Running<P>) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        let (asked, caller) = (Instant::now(), self.caller.clone());
        self.owner.call(move |running| {
            let begun = Instant::now();
            caller.waited(begun.saturating_duration_since(asked));
            caller.check()?;
            let answer = f(running);
            caller.ran(begun.elapsed());
            answer
        })
    }

    /// Runs `works` among those of others. `take` gets a work's number and its results, in the order of the batches; a text of no
    /// tokens, which only static models have, gives none.
    pub(crate) fn run(&self, works: Vec<Work>, take: impl FnMut(usize, &[&[f32]]) -> Result<()>) -> Result<()> {
        self.run_for(Want::Task, works, take)
    }

    /// The same for something else that is wanted of them.
    pub(crate) fn run_for(
        &self,
        want: Want,
        mut works: Vec<Work>,
        mut take: impl FnMut(usize, &[&[f32]]) -> Result<()>,
    ) -> Result<()> {
        for (i, work) in works.iter().enumerate() {
            if let Some(id) = work.sequence.ids.iter().find(|id| **id as usize >= self.plan.vocabulary) {
                let words = self.plan.vocabulary;
                let why =
                    format!("token {id} is beyond the model's {words} words; do tokenizer and model belong together?");
                return Err(Error::Text { text: i, why });
            }
        }
        let numbers: Vec<usize> = (0..works.len()).filter(|i| !works[*i].sequence.ids.is_empty()).collect();
        works.retain(|work| !work.sequence.ids.is_empty());
        let mut ticket = self.line.join(works, want, &self.caller);
        self.owner.wake()?;
        while let Some(part) = ticket.next() {
            let part = part?;
            for (work, place) in &part.whose {
                let (text, own) = (numbers[*work], part.results.of(*place));
                if !own.iter().all(|values| values.iter().all(|v| v.is_finite())) {
                    return Err(Error::Text { text, why: overflow(self.plan.device, self.plan.dtype) });
                }
                take(text, &own)?;
            }
            drop(part);
            if ticket.read() {
                self.owner.wake()?;
            }
        }
        if ticket.is_done() { Ok(()) } else { Err(self.owner.gone()) }
    }
}

/// Why a result is no number, and what to do.
pub(crate) fn overflow(device: Device, dtype: DType) -> String {
    let advice = match dtype {
        DType::F16 => "f16 ends at 65,504: try --dtype bf16 or f32",
        _ => "the weights may be damaged: fetch them again",
    };
    format!("its result in {dtype} on {device} holds infinities or NaN; {advice}")
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
