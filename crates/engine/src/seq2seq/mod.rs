//! Models that read a text and write another: translation, summaries, answers (T5 and its kin).

mod advice;
mod model;
mod task;
mod worker;

use crate::generate::{self, Ends, Finish, Stream, root_of};
use crate::load::Model;
use crate::plan::Plan;
use crate::run::Owner;
use crate::sample::{BeamOptions, Beams, EarlyStopping, Hypothesis, Params};
use crate::session::Loaded;
use crate::source::{self, Files, Progress, Reference};
use crate::text::lm::Words;
use crate::{Error, LoadOptions, Result};
use advice::Advice;
use model::Layout;
use sconce_ops::{Counted, DType, Device, Ladder};
use std::cell::RefCell;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use task::{How, Job};
use worker::Running;

/// How much room such a model is to have.
#[derive(Clone, Copy, Debug)]
pub struct Seq2SeqRoom {
    /// The longest input, in tokens; what is longer is cut, and said to be. `None`: what the model was trained with.
    pub input: Option<usize>,
    /// The longest answer, in tokens.
    pub output: usize,
    /// The most answers that are written at once; every beam counts as one.
    pub sequences: usize,
    /// The format of what is kept of tokens; `None`: f16 beside weights that are not f32.
    pub cache_dtype: Option<DType>,
}

impl Default for Seq2SeqRoom {
    fn default() -> Seq2SeqRoom {
        Seq2SeqRoom { input: None, output: 256, sequences: 16, cache_dtype: None }
    }
}

/// How an answer is found.
#[derive(Clone, Debug, PartialEq)]
pub enum Search {
    /// Token by token. A temperature of 0 takes the most likely each time.
    Sample(Params),
    /// The likeliest whole answers.
    Beams(BeamSearch),
}

impl Search {
    /// The most likely token each time.
    pub fn greedy() -> Search {
        Search::Sample(Params { temperature: 0.0, ..Params::default() })
    }
}

/// A search for the likeliest answers, as transformers' `generate` does it.
#[derive(Clone, Debug, PartialEq)]
pub struct BeamSearch {
    /// Answers that are followed at once.
    pub num_beams: usize,
    /// An answer's score is the logarithm of its probability over its length to this power: above 0 favours long ones.
    pub length_penalty: f32,
    /// When to stop looking for better ones.
    pub early_stopping: EarlyStopping,
    /// Answers to give, the best first.
    pub num_return_sequences: usize,
}

impl Default for BeamSearch {
    fn default() -> BeamSearch {
        BeamSearch { num_beams: 4, length_penalty: 1.0, early_stopping: EarlyStopping::No, num_return_sequences: 1 }
    }
}

/// What is asked for, of all inputs of a call alike.
#[derive(Clone, Debug, Default)]
pub struct Seq2SeqOptions {
    /// How answers are found; `None`: as the model's own files recommend.
    pub search: Option<Search>,
    /// The most tokens of an answer; `None`: what the model's files recommend, or as many as there is room for.
    pub max_tokens: Option<usize>,
    /// Whether an answer goes on behind the model's own end.
    pub ignore_end: bool,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// Its text.
    pub text: String,
    /// Its tokens, without those that begin and end every answer.
    pub ids: Vec<u32>,
    /// Of a beam search: the logarithm of its probability over its length to the penalty.
    pub score: Option<f32>,
    /// Why it ended.
    pub finish: Finish,
}

/// What came of one input.
#[derive(Clone, Debug, PartialEq)]
pub struct Answers {
    /// The answers, the best first.
    pub answers: Vec<Written>,
    /// Tokens of the input.
    pub input_tokens: usize,
    /// Whether the input was longer, and was cut.
    pub truncated: bool,
}

/// A model that reads a text and writes another, loaded and proven.
///
/// Inputs of any number of threads run together: each step of the model computes the next token of every answer.
pub struct Seq2Seq {
    words: Words,
    advice: Advice,
    layout: Layout,
    files: Files,
    ladder: Arc<Ladder>,
    jobs: Mutex<Sender<Job>>,
    owner: Owner<RefCell<Running>>,
}

impl Seq2Seq {
    /// Finds the files, plans, loads and proves the model. Nothing is loaded that the plan says cannot run or will not fit.
    pub fn load(
        reference: &Reference,
        options: &LoadOptions,
        room: &Seq2SeqRoom,
        progress: &dyn Progress,
    ) -> Result<Seq2Seq> {
        Self::load_from(&source::resolve(reference, &options.source, progress)?, options, room, progress)
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
        Ok(model::plan(&root_of(files), device, options, room)?.plan)
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
        let ladder = Ladder::new(options.policy.clone());
        let (jobs, inbox) = channel();
        let (planned, tokenizer, start) = (layout.clone(), words.parsed.clone(), advice.start);
        let owner = Owner::start(device, ladder.clone(), move || {
            Ok(RefCell::new(Running::load(&planned, &options, (tokenizer, start), inbox)?))
        })?;
        Ok(Seq2Seq { words, advice, layout, files: files.clone(), ladder, jobs: Mutex::new(jobs), owner })
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
        let inputs = texts.iter().enumerate().map(of).collect::<Result<Vec<_>>>()?;
        self.run(inputs, options)
    }

    /// The same for inputs that are tokens already, the last one by which they end included.
    pub fn generate_ids(&self, inputs: &[Vec<u32>], options: &Seq2SeqOptions) -> Result<Vec<Answers>> {
        self.run(inputs.iter().map(|ids| (ids.clone(), false)).collect(), options)
    }

    /// The answers to one text as they come, token by token; a beam search knows its answers only at its end. Dropping the
    /// stream cancels it.
    pub fn stream(&self, text: &str, options: &Seq2SeqOptions) -> Result<Stream> {
        let (ids, _) = self.encode(text)?;
        match self.wish(options)? {
            Wish { search: Search::Beams(_), .. } => {
                let what = "a beam search knows its answers only when it is done, and cannot be streamed; use generate, or \
                            sample";
                Err(Error::Input(what.into()))
            }
            Wish { search: Search::Sample(params), most } => {
                let stream = self.sampled(ids, params, (most, options.ignore_end))?;
                self.go()?;
                Ok(stream)
            }
        }
    }

    fn run(&self, inputs: Vec<(Vec<u32>, bool)>, options: &Seq2SeqOptions) -> Result<Vec<Answers>> {
        let Wish { search, most } = self.wish(options)?;
        let asked = inputs.into_iter().enumerate().map(|(i, (ids, truncated))| {
            let input_tokens = ids.len();
            let asked = match &search {
                Search::Sample(params) => {
                    self.sampled(ids, params.clone(), (most, options.ignore_end)).map(Asked::Stream)
                }
                Search::Beams(beams) => self.searched(ids, beams, (most, options.ignore_end)).map(Asked::Beams),
            };
            Ok((asked.map_err(|e| Error::Text { text: i, why: e.to_string() })?, input_tokens, truncated))
        });
        let asked = asked.collect::<Result<Vec<_>>>()?;
        self.go()?;
        let outputs = asked.into_iter().enumerate().map(|(i, (asked, input_tokens, truncated))| {
            let answers = self.answers(asked).map_err(|e| Error::Text { text: i, why: e.to_string() })?;
            Ok(Answers { answers, input_tokens, truncated })
        });
        outputs.collect()
    }

    /// What the options come to.
    fn wish(&self, options: &Seq2SeqOptions) -> Result<Wish> {
        let Layout { output, sequences, plan, .. } = &self.layout;
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
        Ok(Wish { search, most })
    }

    fn sampled(&self, ids: Vec<u32>, params: Params, (most, ignore_end): (usize, bool)) -> Result<Stream> {
        let (events, inbox) = channel();
        let listener = Arc::new(());
        let (answers, prompt_tokens) = (params.n.max(1) as usize, ids.len());
        let ends = if ignore_end { Arc::default() } else { self.words.ends.clone() };
        // What is written begins with a token of its own: to penalties it is the prompt.
        let job = generate::Job {
            tokens: vec![self.advice.start],
            params: Arc::new(params),
            ends: Ends { tokens: ends, stop: Arc::default(), most },
            forms: Vec::new(),
            events,
            listener: Arc::downgrade(&listener),
        };
        self.submit(ids, most, How::Sample(job))?;
        Ok(Stream { events: inbox, _listener: listener, left: answers, prompt_tokens })
    }

    fn searched(&self, ids: Vec<u32>, search: &BeamSearch, (most, ignore_end): (usize, bool)) -> Result<Found> {
        let ends = if ignore_end { Vec::new() } else { self.words.ends.iter().copied().collect() };
        let beams = Beams::new(BeamOptions {
            beams: search.num_beams,
            length_penalty: search.length_penalty,
            early_stopping: search.early_stopping,
            answers: search.num_return_sequences,
            ends,
            most,
        });
        let (found, inbox) = channel();
        let listener = Arc::new(());
        let beams = Box::new(beams.map_err(Error::Input)?);
        let how = How::Beams { beams, width: search.num_beams, found, listener: Arc::downgrade(&listener) };
        self.submit(ids, most, how)?;
        Ok(Found { inbox, _listener: listener })
    }

    fn submit(&self, ids: Vec<u32>, most: usize, how: How) -> Result<()> {
        let (longest, vocabulary) = (self.layout.input, self.layout.plan.vocabulary);
        if ids.is_empty() || ids.len() > longest {
            return Err(Error::Input(format!("{} tokens to read: there is room for 1 to {longest}", ids.len())));
        }
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocabulary) {
            let what = format!("token {id} is beyond the model's {vocabulary} words");
            return Err(Error::Input(what + "; do tokenizer and model belong together?"));
        }
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.send(Job { ids, most, how }).map_err(|_| Error::Input("the model's thread is gone".into()))
    }

    /// Has the thread look at what was submitted.
    fn go(&self) -> Result<()> {
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
                let gone = |_| Err(Error::Input("the model's thread is gone".into()));
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

/// What options come to, with defaults filled in.
struct Wish {
    search: Search,
    most: usize,
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
}
