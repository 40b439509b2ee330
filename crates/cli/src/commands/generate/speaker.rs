//! What answers prompts: a language model, or one that reads a text and writes another.

use super::Generate;
use super::prompts::{Begin, Prompt, Wanted};
use super::results::Made;
use crate::Failure;
use crate::report::Report;
use crate::sampling::Sampling;
use sconce_engine::hub::resolve;
use sconce_engine::{
    BeamSearch, GenerationParams, Llm, Loaded, Search, Seq2Seq, Seq2SeqLimits, Seq2SeqOptions, Seq2SeqStream, Stream,
    Task,
};

/// Answers that are worked on at once unless said otherwise.
const PARALLEL: usize = 64;

pub(super) enum Speaker {
    Language(Llm),
    Seq2Seq(Seq2Seq),
}

/// An answer that is under way.
pub(super) enum Begun {
    Stream(Stream),
    Seq2SeqStream(Seq2SeqStream),
}

/// How a prompt is answered: its own line first, then the flags.
struct Asked {
    sampling: Sampling,
    wanted: Wanted,
}

impl Asked {
    fn new(prompt: &Prompt, flags: &Generate) -> Asked {
        Asked { sampling: prompt.sampling.clone().over(&flags.sampling), wanted: prompt.wanted.over(flags.wanted) }
    }

    fn answers(&self) -> usize {
        self.wanted.n.unwrap_or(1).max(1) as usize
    }
}

impl Speaker {
    /// Loads the model, with room for as many answers at once as may have to be worked on: of a language model, for `only` its
    /// own.
    pub(super) fn load(flags: &Generate, only: Option<&Prompt>, report: &Report) -> Result<Speaker, Failure> {
        let mut options = flags.model.how.language_options()?;
        let files = resolve(&flags.model.model.parse()?, &options.hub, report)?;
        let answers = only.map(|prompt| Asked::new(prompt, flags).answers());
        if Task::detect(files.root())? != Task::Seq2Seq {
            not_beams(flags.wanted)?;
            let parallel = flags.parallel.unwrap_or(PARALLEL).min(answers.unwrap_or(usize::MAX));
            let options = flags.model.room.within(options, parallel);
            return Ok(Speaker::Language(Llm::load_from(&files, &options, report)?));
        }
        understood(&flags.sampling, flags.wanted)?;
        if flags.model.room.context.is_some() {
            return Err(
                "--context is for language models; this one reads a text, of its own longest, and writes another"
                    .into(),
            );
        }
        let usual = Seq2SeqLimits::default();
        options.seq2seq = Seq2SeqLimits {
            // Beams are followed together, however few answers are worked on; and the model's makers may advise some.
            sequences: flags.parallel.unwrap_or(usual.sequences).max(flags.wanted.beams.unwrap_or(1) as usize),
            output: flags.sampling.max_tokens.unwrap_or(0).max(usual.output),
            cache_format: flags.model.room.kv_dtype,
            ..usual
        };
        Ok(Speaker::Seq2Seq(Seq2Seq::load_from(&files, &options, report)?))
    }

    pub(super) fn loaded(&self) -> &dyn Loaded {
        match self {
            Speaker::Language(llm) => llm,
            Speaker::Seq2Seq(model) => model,
        }
    }

    /// The one answer to a prompt as it comes; none where it does not come bit by bit.
    pub(super) fn stream(&self, prompt: &Prompt, flags: &Generate) -> Result<Option<Stream>, Failure> {
        let asked = Asked::new(prompt, flags);
        if asked.wanted.n.unwrap_or(1) != 1 {
            return Ok(None);
        }
        match self {
            Speaker::Language(llm) => Ok(Some(language(llm, prompt, &asked)?.0)),
            Speaker::Seq2Seq(model) => {
                let (text, options, _) = rewritten(model, prompt, &asked)?;
                let searched = matches!(options.search, Some(Search::Beams(_)));
                Ok(if searched { None } else { Some(model.stream(text, &options)?) })
            }
        }
    }

    /// Hands a prompt over. The seed, where something is left to chance, makes the same of it again.
    pub(super) fn begin(&self, prompt: &Prompt, flags: &Generate) -> Result<(Begun, Option<u64>), Failure> {
        let asked = Asked::new(prompt, flags);
        Ok(match self {
            Speaker::Language(llm) => {
                let (stream, seed) = language(llm, prompt, &asked)?;
                (Begun::Stream(stream), Some(seed))
            }
            Speaker::Seq2Seq(model) => {
                let (text, options, seed) = rewritten(model, prompt, &asked)?;
                (Begun::Seq2SeqStream(model.begin(text, &options)?), seed)
            }
        })
    }

    /// What came of it.
    pub(super) fn wait(&self, begun: Begun, seed: Option<u64>) -> Result<Made, Failure> {
        match (self, begun) {
            (Speaker::Language(llm), Begun::Stream(stream)) => Made::spoken(llm, stream.wait()?, seed),
            (_, Begun::Seq2SeqStream(writing)) => Ok(Made::written(writing.wait()?, seed)),
            (Speaker::Seq2Seq(_), Begun::Stream(_)) => Err("a stream of another model".into()),
        }
    }
}

fn language(llm: &Llm, prompt: &Prompt, asked: &Asked) -> Result<(Stream, u64), Failure> {
    not_beams(asked.wanted)?;
    let request = asked.wanted.of(asked.sampling.request(llm.params()));
    let seed = request.params.as_ref().map_or(0, |p| p.seed);
    Ok((prompt.begin.start(llm, request)?, seed))
}

/// The text to read, how its answers are found, and their seed.
fn rewritten<'a>(
    model: &Seq2Seq,
    prompt: &'a Prompt,
    asked: &Asked,
) -> Result<(&'a str, Seq2SeqOptions, Option<u64>), Failure> {
    let Asked { sampling, wanted } = asked;
    understood(sampling, *wanted)?;
    let Begin::Text(text) = &prompt.begin else {
        return Err("this model reads a text and writes another, and knows no chats; give it a `prompt`".into());
    };
    let search = search(model.search(), sampling, *wanted);
    let seed = match &search {
        Search::Sample(params) => Some(params.seed),
        Search::Beams(_) => None,
    };
    let (max_tokens, ignore_end) = (sampling.max_tokens, wanted.ignore_eos.unwrap_or(false));
    Ok((text, Seq2SeqOptions { search: Some(search), max_tokens, ignore_end }, seed))
}

/// How answers are found, where the model's makers would have it as `advised`: a beam search where one is asked for, or advised
/// and nothing is said of choosing.
fn search(advised: &Search, sampling: &Sampling, wanted: Wanted) -> Search {
    let beams = match advised {
        Search::Beams(beams) => beams.clone(),
        Search::Sample(_) => BeamSearch::default(),
    };
    let answers = |usual: usize| wanted.n.map_or(usual, |n| n as usize);
    match (wanted.beams, advised) {
        (Some(n), _) => Search::Beams(BeamSearch { num_beams: n as usize, num_return_sequences: answers(1), ..beams }),
        (None, Search::Beams(_)) if choices(sampling).is_empty() => {
            Search::Beams(BeamSearch { num_return_sequences: answers(beams.num_return_sequences), ..beams })
        }
        (None, advised) => {
            let params = match advised {
                Search::Sample(params) => params.clone(),
                Search::Beams(_) => GenerationParams { temperature: 0.0, ..GenerationParams::default() },
            };
            Search::Sample(wanted.of(sampling.request(&params)).params.unwrap_or(params))
        }
    }
}

/// What was said of choosing tokens.
fn choices(sampling: &Sampling) -> Vec<String> {
    sampling.given().into_iter().map(|(name, _)| name).filter(|name| name != "max_tokens").collect()
}

fn not_beams(wanted: Wanted) -> Result<(), Failure> {
    match wanted.beams {
        None => Ok(()),
        Some(_) => Err("beams are for models that read a text and write another, such as T5".into()),
    }
}

/// Refuses what a model that reads a text and writes another does not do.
fn understood(sampling: &Sampling, wanted: Wanted) -> Result<(), Failure> {
    let choices = choices(sampling);
    let asked = [
        ("logprobs", wanted.logprobs.is_some()),
        ("echo", wanted.echo == Some(true)),
        ("stop", choices.iter().any(|c| c == "stop")),
    ];
    if let Some((name, _)) = asked.into_iter().find(|(_, asked)| *asked) {
        return Err(format!("{name} is for language models; this one reads a text and writes another").into());
    }
    match (wanted.beams, choices.first()) {
        (Some(_), Some(name)) => {
            Err(format!("a beam search looks for the likeliest answers, and {name} has no say in it; leave out one")
                .into())
        }
        _ => Ok(()),
    }
}
