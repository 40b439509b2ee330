//! Sequence-to-sequence models (T5) behind `/v1/completions`: the prompt is the encoder's input.
//!
//! Their engine has no sinks, so one blocking thread per request forwards the events. These models
//! are small, with few concurrent requests.

use super::answer_stream::{PromptTotals, SinkState};
use super::params::{OutputParams, SharedFields};
use crate::error::{Fault, FaultKind};
use sconce_engine::Loaded;
use sconce_engine::{Answers, Error, Event, GenerationParams, Search, Seq2Seq, Seq2SeqOptions, Seq2SeqStream, Start};
use std::sync::Arc;

/// Inputs of one request.
pub(crate) struct Seq2SeqRequest {
    /// Texts or token ids.
    pub(crate) inputs: Vec<Start>,
    /// Generation options.
    pub(crate) options: Seq2SeqOptions,
}

impl Seq2SeqRequest {
    /// Checks a request: these models support fewer parameters than causal language models.
    pub(crate) fn new(
        model: &Seq2Seq,
        inputs: Vec<Start>,
        fields: &SharedFields<'_>,
        output: &OutputParams,
    ) -> Result<Seq2SeqRequest, Fault> {
        let unsupported = |field: &str| {
            let what = format!("sequence-to-sequence models (T5) do not support `{field}`; leave it out");
            Err(Fault::invalid(what).at(field))
        };
        if !output.stop.is_empty() {
            return unsupported("stop");
        }
        if output.format.is_some() {
            return unsupported("response_format");
        }
        let search = match (model.search(), fields.sets_sampling()) {
            (_, false) => None,
            (Search::Sample(defaults), true) => Some(defaults.clone()),
            (Search::Beams(_), true) => Some(GenerationParams::default().with_temperature(0.0)),
        };
        let vocabulary = sconce_engine::Loaded::plan(model).vocabulary;
        let search = search.map(|defaults| fields.params(&defaults, vocabulary)).transpose()?.map(Search::Sample);
        Ok(Seq2SeqRequest {
            inputs,
            options: Seq2SeqOptions::default()
                .with_search(search)
                .with_max_tokens(output.max_tokens)
                .with_ignore_end(false),
        })
    }

    fn answers(&self, model: &Seq2Seq) -> usize {
        match self.options.search.as_ref().unwrap_or(model.search()) {
            Search::Sample(params) => params.n as usize,
            Search::Beams(beams) => beams.num_return_sequences,
        }
    }

    pub(crate) fn begin(self, model: &Seq2Seq, sink: &Arc<SinkState>) -> Result<PromptTotals, Fault> {
        let answers_per_prompt = self.answers(model);
        let mut totals = PromptTotals { answers: answers_per_prompt * self.inputs.len(), tokens: 0, characters: 0 };
        for input in &self.inputs {
            totals.tokens += match input {
                Start::Text(text) | Start::Rendered(text) => {
                    totals.characters += text.chars().count();
                    let (tokens, truncated) = model.encode(text)?;
                    if truncated {
                        let limit = model.longest_input();
                        let what = format!("the prompt is longer than the model's limit of {limit} tokens; shorten it");
                        return Err(Fault::new(FaultKind::TooLong, what).at("prompt"));
                    }
                    tokens.len()
                }
                Start::Tokens(ids) => ids.len(),
            };
        }
        sink.expect(totals.answers);
        let model = model.with_context(sink.call().caller());
        let sampled = matches!(self.options.search.as_ref().unwrap_or(model.search()), Search::Sample(_));
        let options = Arc::new(self.options);
        let mut streams = Vec::new();
        for input in &self.inputs {
            streams.push(match input {
                // Started here, so that errors are returned before the response begins.
                Start::Text(text) if sampled => Some(model.stream(text, &options)?),
                _ => None,
            });
        }
        // One thread per request: with one per prompt, a few requests would use up the blocking
        // threads.
        let (inputs, sink) = (self.inputs, sink.clone());
        tokio::task::spawn_blocking(move || {
            let running: Vec<_> = inputs
                .iter()
                .zip(streams)
                .map(|(input, stream)| match (input, stream) {
                    (_, Some(stream)) => Running::Stream(stream),
                    (Start::Text(text) | Start::Rendered(text), None) => {
                        Running::Seq2SeqStream(model.begin(text, &options))
                    }
                    (Start::Tokens(ids), None) => Running::Tokens(ids),
                })
                .collect();
            for (i, running) in running.into_iter().enumerate() {
                let first = i * answers_per_prompt;
                match running {
                    Running::Stream(stream) => stream.for_each(|event| sink.send(first, false, event, &[])),
                    Running::Seq2SeqStream(stream) => {
                        send_complete(&sink, first, stream.and_then(|stream| stream.wait()))
                    }
                    Running::Tokens(ids) => {
                        let answers = model.generate_ids(&[ids.to_vec()], &options);
                        send_complete(&sink, first, answers.map(|mut all| all.remove(0)));
                    }
                }
            }
        });
        Ok(totals)
    }
}

/// A prompt whose answers are being generated.
enum Running<'a> {
    Stream(sconce_engine::Stream),
    Seq2SeqStream(Result<Seq2SeqStream, Error>),
    /// Generated when its turn comes.
    Tokens(&'a [u32]),
}

/// Sends answers that are only known when complete.
fn send_complete(sink: &SinkState, first: usize, answers: Result<Answers, Error>) {
    let answers = match answers {
        Ok(answers) => answers.answers,
        Err(e) => return sink.send(first, false, Err(e), &[]),
    };
    for (answer, written) in answers.into_iter().enumerate() {
        let sampled = written.ids.into_iter().map(|id| sconce_engine::SampledToken { id, logprobs: None }).collect();
        sink.send(first, false, Ok(Event::Text { answer, text: written.text, sampled }), &[]);
        sink.send(first, false, Ok(Event::End { answer, finish: written.finish, score: written.score }), &[]);
    }
}
