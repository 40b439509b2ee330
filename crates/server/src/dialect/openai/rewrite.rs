//! Models that write another text for a text (T5), as if they went on from it.
//!
//! Their engine has no sinks: a thread for each request passes on what comes. They are small, and few ask them at once.

use super::flow::{Held, Read};
use super::wish::{Knobs, Wish};
use crate::error::{Fault, FaultKind};
use sconce_engine::Loaded;
use sconce_engine::{Answers, Error, Event, GenerationParams, Search, Seq2Seq, Seq2SeqOptions, Seq2SeqStream, Start};
use std::sync::Arc;

/// Texts to be rewritten.
pub(super) struct Rewrite {
    /// Texts, or their tokens.
    pub(super) inputs: Vec<Start>,
    /// How.
    pub(super) options: Seq2SeqOptions,
}

impl Rewrite {
    /// What is asked of such a model, which cannot do all that others can.
    pub(super) fn new(model: &Seq2Seq, inputs: Vec<Start>, knobs: &Knobs<'_>, wish: &Wish) -> Result<Rewrite, Fault> {
        let cannot = |field: &str| {
            let what = format!("a model that writes another text for a text takes no `{field}`");
            Err(Fault::invalid(what).at(field))
        };
        if !wish.stop.is_empty() {
            return cannot("stop");
        }
        if wish.form.is_some() {
            return cannot("response_format");
        }
        let search = match (model.search(), knobs.chooses()) {
            (_, false) => None,
            (Search::Sample(own), true) => Some(own.clone()),
            (Search::Beams(_), true) => Some(GenerationParams { temperature: 0.0, ..GenerationParams::default() }),
        };
        let vocabulary = sconce_engine::Loaded::plan(model).vocabulary;
        let search = search.map(|own| knobs.params(&own, vocabulary)).transpose()?.map(Search::Sample);
        Ok(Rewrite { inputs, options: Seq2SeqOptions { search, max_tokens: wish.max_tokens, ignore_end: false } })
    }

    fn answers(&self, model: &Seq2Seq) -> usize {
        match self.options.search.as_ref().unwrap_or(model.search()) {
            Search::Sample(params) => params.n as usize,
            Search::Beams(beams) => beams.num_return_sequences,
        }
    }

    pub(super) fn begin(self, model: &Seq2Seq, held: &Arc<Held>) -> Result<Read, Fault> {
        let each = self.answers(model);
        let mut read = Read { answers: each * self.inputs.len(), tokens: 0, characters: 0 };
        for input in &self.inputs {
            read.tokens += match input {
                Start::Text(text) | Start::Rendered(text) => {
                    read.characters += text.chars().count();
                    let (tokens, cut) = model.encode(text)?;
                    if cut {
                        let most = model.longest_input();
                        let what =
                            format!("this model reads at most {most} tokens, and the prompt is longer: shorten it");
                        return Err(Fault::new(FaultKind::TooLong, what).at("prompt"));
                    }
                    tokens.len()
                }
                Start::Tokens(ids) => ids.len(),
            };
        }
        held.expect(read.answers);
        let model = model.with_context(held.call().caller());
        let sampled = matches!(self.options.search.as_ref().unwrap_or(model.search()), Search::Sample(_));
        let options = Arc::new(self.options);
        let mut streams = Vec::new();
        for input in &self.inputs {
            streams.push(match input {
                // Begun here, so that what is wrong with it is told before anything else.
                Start::Text(text) if sampled => Some(model.stream(text, &options)?),
                _ => None,
            });
        }
        // One thread for all of a request: where each prompt had its own, a few requests would take all that there are.
        let (inputs, held) = (self.inputs, held.clone());
        tokio::task::spawn_blocking(move || {
            let begun: Vec<_> = inputs
                .iter()
                .zip(streams)
                .map(|(input, stream)| match (input, stream) {
                    (_, Some(stream)) => Begun::Stream(stream),
                    (Start::Text(text) | Start::Rendered(text), None) => {
                        Begun::Seq2SeqStream(model.begin(text, &options))
                    }
                    (Start::Tokens(ids), None) => Begun::Tokens(ids),
                })
                .collect();
            for (i, begun) in begun.into_iter().enumerate() {
                let first = i * each;
                match begun {
                    Begun::Stream(stream) => stream.for_each(|event| held.tell(first, false, event, &[])),
                    Begun::Seq2SeqStream(writing) => whole(&held, first, writing.and_then(|writing| writing.wait())),
                    Begun::Tokens(ids) => {
                        let answers = model.generate_ids(&[ids.to_vec()], &options);
                        whole(&held, first, answers.map(|mut all| all.remove(0)));
                    }
                }
            }
        });
        Ok(read)
    }
}

/// A prompt whose answers are on their way.
enum Begun<'a> {
    Stream(sconce_engine::Stream),
    Seq2SeqStream(Result<Seq2SeqStream, Error>),
    /// When it is its turn.
    Tokens(&'a [u32]),
}

/// Answers that are known at their end alone.
fn whole(held: &Held, first: usize, answers: Result<Answers, Error>) {
    let answers = match answers {
        Ok(answers) => answers.answers,
        Err(e) => return held.tell(first, false, Err(e), &[]),
    };
    for (answer, written) in answers.into_iter().enumerate() {
        let picks = written.ids.into_iter().map(|id| sconce_engine::SampledToken { id, logprobs: None }).collect();
        held.tell(first, false, Ok(Event::Text { answer, text: written.text, picks }), &[]);
        held.tell(first, false, Ok(Event::End { answer, finish: written.finish, score: written.score }), &[]);
    }
}
