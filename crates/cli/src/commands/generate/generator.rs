//! The model that answers prompts: a language model or a sequence-to-sequence model (T5).

use super::Generate;
use super::prompts::{GenerateOptions, Prompt, PromptInput, ThoughtFormat};
use super::results::PromptAnswers;
use crate::Failure;
use crate::report::Report;
use crate::sampling::Sampling;
use sconce_engine::hub::resolve;
use sconce_engine::{
    BeamSearch, GenerationParams, Llm, Loaded, RequestContext, Search, Seq2Seq, Seq2SeqLimits, Seq2SeqOptions,
    Seq2SeqStream, Stream, Task,
};

/// Default number of answers generated at once.
const DEFAULT_PARALLEL: usize = 64;

pub(super) enum Generator {
    Language(Llm),
    Seq2Seq(Seq2Seq),
}

/// A running generation.
pub(super) enum RunningGeneration {
    Stream(Stream, Option<ThoughtFormat>),
    Seq2SeqStream(Seq2SeqStream),
}

/// Options of a prompt: those of its own line, then the flags.
struct PromptOptions {
    sampling: Sampling,
    generate_options: GenerateOptions,
}

impl PromptOptions {
    fn new(prompt: &Prompt, flags: &Generate) -> PromptOptions {
        PromptOptions {
            sampling: prompt.sampling.clone().with_defaults(&flags.sampling),
            generate_options: prompt.generate_options.with_defaults(flags.options),
        }
    }

    fn answers(&self) -> usize {
        self.generate_options.n.unwrap_or(1).max(1) as usize
    }
}

impl Generator {
    /// Loads the model, with a KV cache for as many answers as may run at once. For a language
    /// model and a single prompt, these are the answers to that prompt.
    pub(super) fn load(flags: &Generate, only: Option<&Prompt>, report: &Report) -> Result<Generator, Failure> {
        let mut options = flags.model.run_args.options()?;
        let files = resolve(&flags.model.model.parse()?, &options.hub, report)?;
        let answers = only.map(|prompt| PromptOptions::new(prompt, flags).answers());
        if Task::detect(files.root())? != Task::Seq2Seq {
            reject_beams(flags.options)?;
            let parallel = flags.parallel.unwrap_or(DEFAULT_PARALLEL).min(answers.unwrap_or(usize::MAX));
            let options = flags.model.kv_cache.apply_to(options, parallel);
            return Ok(Generator::Language(Llm::load_from(&files, &options, report)?));
        }
        reject_unsupported(&flags.sampling, flags.options)?;
        if flags.model.kv_cache.context.is_some() {
            return Err(
                "--context is for language models; the input length of a sequence-to-sequence model is fixed".into()
            );
        }
        let usual = Seq2SeqLimits::default();
        // All beams of an answer run together, however few answers run at once; and the model's
        // generation config may set a number of beams.
        let sequences = flags.parallel.unwrap_or(usual.sequences).max(flags.options.beams.unwrap_or(1) as usize);
        let output = flags.sampling.max_tokens.unwrap_or(0).max(usual.output);
        options.seq2seq =
            usual.with_sequences(sequences).with_output(output).with_cache_format(flags.model.kv_cache.kv_dtype);
        Ok(Generator::Seq2Seq(Seq2Seq::load_from(&files, &options, report)?))
    }

    /// The same model, whose answers end when `context` is cancelled.
    pub(super) fn with_context(&self, context: &RequestContext) -> Generator {
        match self {
            Generator::Language(llm) => Generator::Language(llm.with_context(context)),
            Generator::Seq2Seq(model) => Generator::Seq2Seq(model.with_context(context)),
        }
    }

    pub(super) fn loaded(&self) -> &dyn Loaded {
        match self {
            Generator::Language(llm) => llm,
            Generator::Seq2Seq(model) => model,
        }
    }

    /// Streams the only answer to a prompt; `None` if it cannot be streamed.
    pub(super) fn stream(&self, prompt: &Prompt, flags: &Generate) -> Result<Option<Stream>, Failure> {
        let prompt_options = PromptOptions::new(prompt, flags);
        if prompt_options.generate_options.n.unwrap_or(1) != 1 {
            return Ok(None);
        }
        match self {
            Generator::Language(llm) => Ok(Some(start_language_model(llm, prompt, &prompt_options)?.0)),
            Generator::Seq2Seq(model) => {
                let (text, options, _) = seq2seq_request(model, prompt, &prompt_options)?;
                let searched = matches!(options.search, Some(Search::Beams(_)));
                Ok(if searched { None } else { Some(model.stream(text, &options)?) })
            }
        }
    }

    /// Starts a prompt. The seed, if sampling is random, reproduces the result.
    pub(super) fn begin(&self, prompt: &Prompt, flags: &Generate) -> Result<(RunningGeneration, Option<u64>), Failure> {
        let prompt_options = PromptOptions::new(prompt, flags);
        Ok(match self {
            Generator::Language(llm) => {
                let (stream, thoughts, seed) = start_language_model(llm, prompt, &prompt_options)?;
                (RunningGeneration::Stream(stream, thoughts), Some(seed))
            }
            Generator::Seq2Seq(model) => {
                let (text, options, seed) = seq2seq_request(model, prompt, &prompt_options)?;
                (RunningGeneration::Seq2SeqStream(model.begin(text, &options)?), seed)
            }
        })
    }

    /// Gives a prompt whose answer is sampled this seed, if it has none, so that another process
    /// computes the same answer.
    pub(super) fn with_seed(&self, mut prompt: Prompt, flags: &Generate, seed: u64) -> Prompt {
        let PromptOptions { sampling, generate_options } = PromptOptions::new(&prompt, flags);
        let is_beam_search = match self {
            Generator::Language(_) => false,
            // A seed alone would make it sample.
            Generator::Seq2Seq(model) => {
                let is_advised = matches!(model.search(), Search::Beams(_)) && sampling_names(&sampling).is_empty();
                generate_options.beams.is_some() || is_advised
            }
        };
        if !is_beam_search {
            prompt.sampling.seed.get_or_insert(seed);
        }
        prompt
    }

    /// Waits for the answers.
    pub(super) fn wait(&self, running: RunningGeneration, seed: Option<u64>) -> Result<PromptAnswers, Failure> {
        match (self, running) {
            (Generator::Language(llm), RunningGeneration::Stream(stream, thoughts)) => {
                PromptAnswers::of_language_model(llm, stream.wait()?, thoughts, seed)
            }
            (_, RunningGeneration::Seq2SeqStream(writing)) => Ok(PromptAnswers::of_seq2seq(writing.wait()?, seed)),
            (Generator::Seq2Seq(_), RunningGeneration::Stream(..)) => Err("a stream of another model".into()),
        }
    }
}

fn start_language_model(
    llm: &Llm,
    prompt: &Prompt,
    prompt_options: &PromptOptions,
) -> Result<(Stream, Option<ThoughtFormat>, u64), Failure> {
    reject_beams(prompt_options.generate_options)?;
    let request = prompt_options.generate_options.apply_to(prompt_options.sampling.request(llm.params()));
    let seed = request.params.as_ref().map_or(0, |p| p.seed);
    let (stream, thoughts) = prompt.input.start(llm, request)?;
    Ok((stream, thoughts, seed))
}

/// The input text, the options and the seed.
fn seq2seq_request<'a>(
    model: &Seq2Seq,
    prompt: &'a Prompt,
    prompt_options: &PromptOptions,
) -> Result<(&'a str, Seq2SeqOptions, Option<u64>), Failure> {
    let PromptOptions { sampling, generate_options } = prompt_options;
    reject_unsupported(sampling, *generate_options)?;
    let PromptInput::Text(text) = &prompt.input else {
        return Err("sequence-to-sequence models have no chat template; give a `prompt` instead of `messages`".into());
    };
    let search = search(model.search(), sampling, *generate_options);
    let seed = match &search {
        Search::Sample(params) => Some(params.seed),
        Search::Beams(_) => None,
    };
    let (max_tokens, ignore_end) = (sampling.max_tokens, generate_options.ignore_eos.unwrap_or(false));
    Ok((
        text,
        Seq2SeqOptions::default().with_search(Some(search)).with_max_tokens(max_tokens).with_ignore_end(ignore_end),
        seed,
    ))
}

/// Search of a sequence-to-sequence model whose generation config says `advised`: beam search if it
/// was requested, or advised and no sampling parameter was given.
fn search(advised: &Search, sampling: &Sampling, generate_options: GenerateOptions) -> Search {
    let beams = match advised {
        Search::Beams(beams) => beams.clone(),
        Search::Sample(_) => BeamSearch::default(),
    };
    let answers = |usual: usize| generate_options.n.map_or(usual, |n| n as usize);
    match (generate_options.beams, advised) {
        (Some(n), _) => Search::Beams(BeamSearch { num_beams: n as usize, num_return_sequences: answers(1), ..beams }),
        (None, Search::Beams(_)) if sampling_names(sampling).is_empty() => {
            Search::Beams(BeamSearch { num_return_sequences: answers(beams.num_return_sequences), ..beams })
        }
        (None, advised) => {
            let params = match advised {
                Search::Sample(params) => params.clone(),
                Search::Beams(_) => GenerationParams::default().with_temperature(0.0),
            };
            Search::Sample(generate_options.apply_to(sampling.request(&params)).params.unwrap_or(params))
        }
    }
}

/// Names of the sampling parameters that were given.
fn sampling_names(sampling: &Sampling) -> Vec<String> {
    sampling.explicit().into_iter().map(|(name, _)| name).filter(|name| name != "max_tokens").collect()
}

fn reject_beams(generate_options: GenerateOptions) -> Result<(), Failure> {
    match generate_options.beams {
        None => Ok(()),
        Some(_) => Err("beam search is for sequence-to-sequence models such as T5".into()),
    }
}

/// Rejects options that sequence-to-sequence models do not support.
fn reject_unsupported(sampling: &Sampling, generate_options: GenerateOptions) -> Result<(), Failure> {
    let sampling_names = sampling_names(sampling);
    let unsupported = [
        ("logprobs", generate_options.logprobs.is_some()),
        ("echo", generate_options.echo == Some(true)),
        ("stop", sampling_names.iter().any(|c| c == "stop")),
    ];
    if let Some((name, _)) = unsupported.into_iter().find(|(_, is_set)| *is_set) {
        return Err(format!("{name} is for language models; this is a sequence-to-sequence model").into());
    }
    match (generate_options.beams, sampling_names.first()) {
        (Some(_), Some(name)) => {
            Err(format!("beam search does not sample, so {name} has no effect; leave out one of them").into())
        }
        _ => Ok(()),
    }
}
