//! Models that read a text and write another: translation, summaries, answers (T5 and its kin).

mod advice;
mod model;
mod options;
mod task;
mod worker;

use crate::config::lm_text::Words;
use crate::generate::{self, About, Ends, Finish, Listener, Stream, root_of};
use crate::line::Waiting;
use crate::loaded::Loaded;
use crate::plan::Plan;
use crate::run::Owner;
use crate::sample::{BeamOptions, Beams, Hypothesis, Params};
use crate::{Caller, Error, LoadOptions, Result};
use advice::Advice;
use model::Layout;
pub use options::{Answers, BeamSearch, Search, Seq2SeqOptions, Seq2SeqRoom, Written};
use sconce_formats::{Model, trim_allocator};
use sconce_hub::{self as hub, Files, Progress, Reference};
use sconce_ops::{Counted, Device, Ladder};
use sconce_text::stream::{Detok, Stops};
use sconce_text::{TextToken, text_of, text_tokens};
use std::cell::RefCell;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use task::{Finder, How, Job};
use worker::Running;

/// A model that reads a text and writes another, loaded and proven.
///
/// Inputs of any number of threads run together: each step of the model computes the next token of every answer. Clones are the
/// same model.
#[derive(Clone)]
pub struct Seq2Seq {
    words: Arc<Words>,
    advice: Arc<Advice>,
    layout: Arc<Layout>,
    files: Files,
    ladder: Arc<Ladder>,
    jobs: Arc<Mutex<Sender<Job>>>,
    owner: Arc<Owner<RefCell<Running>>>,
    caller: Caller,
}

impl Seq2Seq {
    /// Finds the files, plans, loads and proves the model. Nothing is loaded that the plan says cannot run or will not fit.
    pub fn load(
        reference: &Reference,
        options: &LoadOptions,
        room: &Seq2SeqRoom,
        progress: &dyn Progress,
    ) -> Result<Seq2Seq> {
        Self::load_from(&hub::resolve(reference, &options.source, progress)?, options, room, progress)
    }

    /// The same from files that are here.
    pub fn load_from(
        files: &Files,
        options: &LoadOptions,
        room: &Seq2SeqRoom,
        progress: &dyn Progress,
    ) -> Result<Seq2Seq> {
        options.somewhere(progress, |device| Self::on(device, files, options, room, progress))
    }

    /// What the model will take on `device`, without loading it.
    pub fn plan_on(device: Device, files: &Files, options: &LoadOptions, room: &Seq2SeqRoom) -> Result<Plan> {
        let options = &device.info().map_or_else(|_| options.clone(), |info| options.on(&info));
        plan(&root_of(files), device, options, room)
    }

    fn on(
        device: Device,
        files: &Files,
        options: &LoadOptions,
        room: &Seq2SeqRoom,
        progress: &dyn Progress,
    ) -> Result<Seq2Seq> {
        let info = device.info()?;
        let options = options.on(&info);
        let root = root_of(files);
        let layout = model::plan(&root, device, &options, room)?;
        layout.plan.check(info.free_bytes)?;
        let model = Model::open(&root)?;
        let words = Words::open(&root, &model)?;
        let advice = Advice::read(&root, &model.config, &words.params, layout.plan.vocabulary)?;
        advice.notes.iter().for_each(|note| progress.note(note));
        // Before weights come: what is left of reading would lie beside them.
        trim_allocator();
        let ladder = Ladder::new(options.policy.clone());
        let (jobs, inbox) = channel();
        let (planned, start) = (layout.clone(), advice.start);
        let owner = Owner::start(device, ladder.clone(), move || {
            Ok(RefCell::new(Running::load(&planned, &options, start, inbox)?))
        })?;
        ladder.ledger.hold(layout.plan.bytes());
        Ok(Seq2Seq {
            words: Arc::new(words),
            advice: Arc::new(advice),
            layout: Arc::new(layout),
            files: files.clone(),
            ladder,
            jobs: Arc::new(Mutex::new(jobs)),
            owner: Arc::new(owner),
            caller: Caller::default(),
        })
    }

    /// The same model, working for `caller`: what it is asked ends when that is cancelled or late.
    pub fn on_behalf_of(&self, caller: &Caller) -> Seq2Seq {
        Seq2Seq { caller: caller.clone(), ..self.clone() }
    }

    /// How the model's makers find answers.
    pub fn search(&self) -> &Search {
        &self.advice.search
    }

    /// The longest input, in tokens.
    pub fn longest_input(&self) -> usize {
        self.layout.input
    }

    /// The tokens of a text as the model will read it, and whether it had to be cut.
    pub fn encode(&self, text: &str) -> Result<(Vec<u32>, bool)> {
        self.words.encode_to(text, self.layout.input)
    }

    /// The text of tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.words.parsed.decode(ids, true).map_err(|e| Error::Input(e.to_string()))
    }

    /// Reads `texts` and writes the answers to each, all together.
    pub fn generate<T: AsRef<str>>(&self, texts: &[T], options: &Seq2SeqOptions) -> Result<Vec<Answers>> {
        let of = |(i, text): (usize, &T)| {
            self.encode(text.as_ref()).map_err(|e| Error::Text { text: i, why: e.to_string() })
        };
        let inputs = self.caller.tokenizing(|| texts.iter().enumerate().map(of).collect::<Result<Vec<_>>>())?;
        self.run(inputs, options)
    }

    /// The same for inputs that are tokens already, the last one by which they end included.
    pub fn generate_ids(&self, inputs: &[Vec<u32>], options: &Seq2SeqOptions) -> Result<Vec<Answers>> {
        self.run(inputs.iter().map(|ids| (ids.clone(), false)).collect(), options)
    }

    /// The answers to one text as they come, token by token; a beam search knows its answers only at its end. A text that is
    /// too long is cut, and the stream says so. Dropping the stream cancels it.
    pub fn stream(&self, text: &str, options: &Seq2SeqOptions) -> Result<Stream> {
        let wish = self.wish(options)?;
        if matches!(wish.search, Search::Beams(_)) {
            let what =
                "a beam search knows its answers only when it is done, and cannot be streamed; use generate, or sample";
            return Err(Error::Input(what.into()));
        }
        let (job, asked) = self.asked(self.caller.tokenizing(|| self.encode(text))?, &wish)?;
        self.submit([job])?;
        match asked {
            Asked::Stream(stream) => Ok(stream),
            Asked::Beams(_) => Err(Error::Input("a beam search cannot be streamed".into())),
        }
    }

    /// Begins to write the answers to one text, and does not wait for them: others may join in meanwhile.
    pub fn begin(&self, text: &str, options: &Seq2SeqOptions) -> Result<Writing<'_>> {
        let (ids, truncated) = self.caller.tokenizing(|| self.encode(text))?;
        let input_tokens = ids.len();
        let (job, asked) = self.asked((ids, truncated), &self.wish(options)?)?;
        self.submit([job])?;
        Ok(Writing { model: self, asked, input_tokens, truncated })
    }

    /// Nothing is begun unless all can be.
    fn run(&self, inputs: Vec<(Vec<u32>, bool)>, options: &Seq2SeqOptions) -> Result<Vec<Answers>> {
        let wish = self.wish(options)?;
        let (mut jobs, mut all) = (Vec::new(), Vec::new());
        for (i, (ids, truncated)) in inputs.into_iter().enumerate() {
            let input_tokens = ids.len();
            let asked = self.asked((ids, truncated), &wish);
            let (job, asked) = asked.map_err(|e| Error::Text { text: i, why: e.to_string() })?;
            jobs.push(job);
            all.push(Writing { model: self, asked, input_tokens, truncated });
        }
        self.submit(jobs)?;
        let of = |(i, writing): (usize, Writing)| writing.wait().map_err(|e| at(i, e));
        all.into_iter().enumerate().map(of).collect()
    }

    /// What the options come to.
    fn wish(&self, options: &Seq2SeqOptions) -> Result<Wish> {
        let Layout { output, sequences, plan, .. } = &*self.layout;
        let search = options.search.clone().unwrap_or_else(|| self.advice.search.clone());
        let most = options.max_tokens.unwrap_or_else(|| self.advice.most.unwrap_or(*output).min(*output));
        if most == 0 || most > *output {
            return Err(Error::Input(format!("answers of {most} tokens: there is room for 1 to {output}")));
        }
        let width = match &search {
            Search::Sample(params) => {
                params.check(plan.vocabulary).map_err(|invalid| Error::Input(invalid.to_string()))?;
                params.n as usize
            }
            Search::Beams(beams) => beams.num_beams,
        };
        if width > *sequences {
            let what =
                format!("{width} answers at once, and there is room for {sequences}: ask for fewer, or load with more");
            return Err(Error::Input(what));
        }
        Ok(Wish { search, most, ignore_end: options.ignore_end })
    }

    /// A job, and where its answers will come.
    fn asked(&self, (ids, truncated): (Vec<u32>, bool), wish: &Wish) -> Result<(Job, Asked)> {
        let (longest, vocabulary) = (self.layout.input, self.layout.plan.vocabulary);
        if ids.is_empty() || ids.len() > longest {
            return Err(Error::Input(format!("{} tokens to read: there is room for 1 to {longest}", ids.len())));
        }
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocabulary) {
            let what = format!("token {id} is beyond the model's {vocabulary} words");
            return Err(Error::Input(what + "; do tokenizer and model belong together?"));
        }
        let (how, asked) = match &wish.search {
            Search::Sample(params) => self.sampled(params, wish, (ids.len(), truncated)),
            Search::Beams(search) => self.searched(search, wish)?,
        };
        Ok((Job { ids, most: wish.most, how }, asked))
    }

    fn sampled(&self, params: &Params, wish: &Wish, (prompt_tokens, truncated): (usize, bool)) -> (How, Asked) {
        let (events, inbox) = channel();
        let ends = if wish.ignore_end { Arc::default() } else { self.words.ends.clone() };
        let (device, answers) = (self.layout.plan.device, params.n.max(1) as usize);
        // Nobody takes it if the stream was dropped; the next step finds out.
        let sink = Box::new(move |event| drop(events.send(event)));
        let listener = Arc::new(Listener::new(self.caller.clone(), device, answers, None, sink));
        let heard = Arc::downgrade(&listener);
        // What is written begins with a token of its own: to penalties it is the prompt.
        let how = How::Sample(generate::Job {
            tokens: vec![self.advice.start],
            params: Arc::new(params.clone()),
            ends: Ends { tokens: ends, stop: Arc::default(), most: wish.most },
            detok: Detok::new(self.words.parsed.clone(), true),
            stops: Stops::default(),
            forms: Vec::new(),
            scored: false,
            listener,
        });
        let about = About { device, answers, prompt_tokens, truncated };
        (how, Asked::Stream(Stream::new(inbox, heard, about)))
    }

    fn searched(&self, search: &BeamSearch, wish: &Wish) -> Result<(How, Asked)> {
        let ends = if wish.ignore_end { Vec::new() } else { self.words.ends.iter().copied().collect() };
        let beams = Beams::new(BeamOptions {
            beams: search.num_beams,
            length_penalty: search.length_penalty,
            early_stopping: search.early_stopping,
            answers: search.num_return_sequences,
            ends,
            most: wish.most,
        });
        let (found, inbox) = channel();
        let listener = Arc::new(());
        let beams = Box::new(beams.map_err(Error::Input)?);
        let (caller, asked, begun) = (self.caller.clone(), Instant::now(), None);
        let to = Finder { caller, asked, begun, found, listener: Arc::downgrade(&listener) };
        let how = How::Beams { beams, width: search.num_beams, to };
        Ok((how, Asked::Beams(Found { inbox, _listener: listener })))
    }

    /// Hands jobs over and has the thread look at them.
    fn submit(&self, jobs: impl IntoIterator<Item = Job>) -> Result<()> {
        {
            let inbox = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
            // If the thread is gone, so is its end of the channel; the owner knows why.
            jobs.into_iter().for_each(|job| drop(inbox.send(job)));
        }
        self.owner.post(|running| running.borrow_mut().drive())
    }

    fn answers(&self, asked: Asked) -> Result<Vec<Written>> {
        match asked {
            Asked::Stream(stream) => {
                let written = |answer: generate::Answer| {
                    let ids = answer.picks.iter().map(|pick| pick.id).collect();
                    Written { text: answer.text, ids, score: None, finish: answer.finish.unwrap_or(Finish::Length) }
                };
                Ok(stream.wait()?.answers.into_iter().map(written).collect())
            }
            Asked::Beams(found) => {
                let device = self.layout.plan.device;
                let gone = |_| Err(Error::Stopped { device, why: "no reason given".into() });
                let found = found.inbox.recv().unwrap_or_else(gone)?;
                found.into_iter().map(|hypothesis| self.written(hypothesis)).collect()
            }
        }
    }

    fn written(&self, Hypothesis { tokens: mut ids, score }: Hypothesis) -> Result<Written> {
        let ended = ids.last().is_some_and(|id| self.words.ends.contains(id));
        let finish = if ended { Finish::End } else { Finish::Length };
        if ended {
            ids.pop();
        }
        Ok(Written { text: self.decode(&ids)?, ids, score: Some(score), finish })
    }
}

/// An error at one of several inputs; that nobody waits is about all of them.
fn at(text: usize, error: Error) -> Error {
    match error {
        over @ (Error::Cancelled | Error::Late { .. }) => over,
        other => Error::Text { text, why: other.to_string() },
    }
}

/// What the model in `root` will take on `device`.
pub(crate) fn plan(root: &Path, device: Device, options: &LoadOptions, room: &Seq2SeqRoom) -> Result<Plan> {
    Ok(model::plan(root, device, options, room)?.plan)
}

/// What options come to, with defaults filled in.
struct Wish {
    search: Search,
    most: usize,
    ignore_end: bool,
}

/// Answers to one text that are being written. Dropping it cancels them.
pub struct Writing<'a> {
    model: &'a Seq2Seq,
    asked: Asked,
    input_tokens: usize,
    truncated: bool,
}

impl Writing<'_> {
    /// The answers, once they are done.
    pub fn wait(self) -> Result<Answers> {
        let Writing { model, asked, input_tokens, truncated } = self;
        Ok(Answers { answers: model.answers(asked)?, input_tokens, truncated })
    }
}

/// Where the answers to an input will come.
enum Asked {
    Stream(Stream),
    Beams(Found),
}

struct Found {
    inbox: Receiver<Result<Vec<Hypothesis>>>,
    /// While it is there, somebody listens.
    _listener: Arc<()>,
}

impl Loaded for Seq2Seq {
    fn plan(&self) -> &Plan {
        &self.layout.plan
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
    /// Not known: inputs are taken as they come.
    fn waiting(&self) -> Waiting {
        Waiting::default()
    }
    fn tokenize(&self, text: &str, special: bool) -> Result<Vec<TextToken>> {
        Ok(text_tokens(&self.words.parsed, text, special)?)
    }
    fn detokenize(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        Ok(text_of(&self.words.parsed, ids, skip_special)?)
    }
}
