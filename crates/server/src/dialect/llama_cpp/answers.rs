//! Builds responses and stream events from the events of answers.

use super::generation::{Prepared, Prompt};
use crate::conversation::{AnswerEvent, AnswerStream, TokenChoice, TokenText};
use crate::error::Fault;
use sconce_api::llama_cpp::{Completion, CompletionRequest, StopType, TokenProbability, TopToken};
use sconce_engine::Finish;
use serde_json::{Map, Value};
use std::collections::VecDeque;
use std::time::Duration;

/// What a response contains.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    stream: bool,
    return_tokens: bool,
    timings_per_token: bool,
    return_progress: bool,
    post_sampling_probs: bool,
    response_fields: Vec<String>,
    /// The longest time from the first token to the last.
    time_limit: Option<Duration>,
}

impl From<&CompletionRequest> for Wanted {
    fn from(request: &CompletionRequest) -> Wanted {
        let limit = request.t_max_predict_ms.and_then(|ms| u64::try_from(ms).ok()).filter(|ms| *ms > 0);
        Wanted {
            stream: request.stream.unwrap_or(false),
            return_tokens: request.return_tokens.unwrap_or(false),
            timings_per_token: request.timings_per_token.unwrap_or(false),
            return_progress: request.return_progress.unwrap_or(false),
            post_sampling_probs: request.post_sampling_probs.unwrap_or(false),
            response_fields: request.response_fields.clone().unwrap_or_default(),
            time_limit: limit.map(Duration::from_millis),
        }
    }
}

/// The answers to a request, as they are generated.
pub(super) struct Answers {
    stream: AnswerStream,
    prepared: Prepared,
    wanted: Wanted,
    states: Vec<State>,
    ready: VecDeque<Completion>,
}

/// One answer.
#[derive(Clone, Debug, Default)]
struct State {
    content: String,
    tokens: Vec<u32>,
    probabilities: Vec<TokenProbability>,
    predicted: usize,
    has_new_line: bool,
    has_ended: bool,
}

impl Answers {
    pub(super) fn new(stream: AnswerStream, prepared: Prepared, wanted: Wanted) -> Answers {
        let states = vec![State::default(); stream.info().answers];
        Answers { stream, prepared, wanted, states, ready: VecDeque::new() }
    }

    /// The next event of a stream; `None` after the last. Events of ended answers have `stop`.
    pub(super) async fn next(&mut self) -> Option<Result<Completion, Fault>> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Some(Ok(ready));
            }
            // A time limit may end all answers before the engine does.
            if self.states.iter().all(|state| state.has_ended) {
                return None;
            }
            match self.stream.next().await? {
                AnswerEvent::Failed(fault) => return Some(Err(fault)),
                AnswerEvent::Progress(progress) if self.wanted.return_progress => {
                    let total = self.prompt(progress.first).map_or(0, |prompt| prompt.tokens);
                    let prompt_progress = Some(self.stream.clock(progress.first).progress(total));
                    let timings = Some(self.stream.clock(progress.first).timings(total));
                    return Some(Ok(Completion { prompt_progress, timings, ..self.part(progress.first) }));
                }
                AnswerEvent::Progress(_) | AnswerEvent::Text { prompt: true, .. } => {}
                AnswerEvent::Text { answer, text, tokens, ids, .. } => self.grow(answer, text, tokens, ids),
                AnswerEvent::End { answer, finish } => self.end(answer, &finish),
            }
        }
    }

    fn prompt(&self, answer: usize) -> Option<&Prompt> {
        self.prepared.prompts.get(answer / self.prepared.answers_per_prompt.max(1))
    }

    /// A part of an answer without new text.
    fn part(&self, answer: usize) -> Completion {
        Completion {
            index: Some(answer),
            content: Some(String::new()),
            tokens: Some(Vec::new()),
            id_slot: Some(-1),
            stop: Some(false),
            tokens_predicted: self.states.get(answer).map(|state| state.predicted),
            tokens_evaluated: self.prompt(answer).map(|prompt| prompt.tokens),
            ..Completion::default()
        }
    }

    fn grow(&mut self, answer: usize, text: String, tokens: Vec<Option<TokenChoice>>, ids: Vec<u32>) {
        let post = self.wanted.post_sampling_probs;
        let probabilities: Vec<_> = tokens.into_iter().flatten().map(|choice| probability(choice, post)).collect();
        let Some(state) = self.states.get_mut(answer).filter(|state| !state.has_ended) else { return };
        state.predicted += ids.len();
        state.has_new_line |= text.contains('\n');
        if self.wanted.stream {
            // The last tokens may come without text.
            if !(text.is_empty() && ids.is_empty()) {
                let clock = self.stream.clock(answer);
                let total = self.prompt(answer).map_or(0, |prompt| prompt.tokens);
                let part = Completion {
                    content: Some(text),
                    tokens: Some(ids),
                    timings: self.wanted.timings_per_token.then(|| clock.timings(total)),
                    completion_probabilities: (!probabilities.is_empty()).then_some(probabilities),
                    ..self.part(answer)
                };
                self.ready.push_back(part);
            }
        } else {
            state.content.push_str(&text);
            state.probabilities.extend(probabilities);
            if self.wanted.return_tokens {
                state.tokens.extend(ids);
            }
        }
        let is_late = |limit: Duration| self.stream.clock(answer).generating().is_some_and(|took| took >= limit);
        let has_line = self.states.get(answer).is_some_and(|state| state.has_new_line);
        if has_line && self.wanted.time_limit.is_some_and(is_late) {
            self.end(answer, &Finish::Length);
        }
    }

    /// Queues the last event of an answer, which has its text unless it was streamed.
    fn end(&mut self, answer: usize, finish: &Finish) {
        let (stop_type, word) = match finish {
            Finish::End => (StopType::Eos, ""),
            Finish::Stop(word) => (StopType::Word, word.as_str()),
            Finish::Length => (StopType::Limit, ""),
        };
        let prompt = self.prompt(answer).cloned();
        let (tokens, text, is_limited) =
            prompt.map_or((0, String::new(), false), |p| (p.tokens, p.text, p.is_limited_by_context));
        let part = self.part(answer);
        let Some(state) = self.states.get_mut(answer) else { return };
        if std::mem::replace(&mut state.has_ended, true) {
            return;
        }
        let is_full = is_limited && tokens + state.predicted >= self.prepared.context;
        self.ready.push_back(Completion {
            stop: Some(true),
            content: Some(std::mem::take(&mut state.content)),
            tokens: Some(std::mem::take(&mut state.tokens)),
            model: Some(self.stream.info().model.clone()),
            generation_settings: Some(self.prepared.settings.clone()),
            prompt: Some(text),
            has_new_line: Some(state.has_new_line),
            truncated: Some(is_full && stop_type == StopType::Limit),
            stop_type: Some(stop_type),
            stopping_word: Some(word.to_owned()),
            tokens_cached: Some(tokens + state.predicted),
            timings: Some(self.stream.clock(answer).timings(tokens)),
            completion_probabilities: (!state.probabilities.is_empty())
                .then(|| std::mem::take(&mut state.probabilities)),
            ..part
        });
    }

    /// The fields of a response that the request asks for.
    pub(super) fn selected(&self, completion: &Completion) -> Value {
        let all = serde_json::to_value(completion).unwrap_or_default();
        match self.wanted.response_fields.is_empty() || completion.stop != Some(true) {
            true => all,
            false => selected(&all, &self.wanted.response_fields),
        }
    }
}

/// The fields at these paths, by path.
fn selected(all: &Value, paths: &[String]) -> Value {
    let at = |path: &str| path.split('/').try_fold(all, |value, key| value.get(key)).cloned();
    let each = paths.iter().filter_map(|path| Some((path.clone(), at(path)?)));
    Value::Object(each.collect::<Map<_, _>>())
}

fn probability(choice: TokenChoice, post: bool) -> TokenProbability {
    let of = |logprob: f32| if post { (None, Some(logprob.exp())) } else { (Some(logprob), None) };
    let top = choice.top.into_iter().map(|(token, logprob)| {
        let (logprob, prob) = of(logprob);
        let (id, token, bytes) = parts(token);
        TopToken { id, token, bytes, logprob, prob }
    });
    let top: Vec<TopToken> = top.collect();
    let (logprob, prob) = of(choice.logprob.unwrap_or_default());
    let (id, token, bytes) = parts(choice.chosen);
    let (top_probs, top_logprobs) = if post { (Some(top), None) } else { (None, Some(top)) };
    TokenProbability { id, token, bytes, logprob, prob, top_logprobs, top_probs }
}

fn parts(TokenText { id, text, bytes }: TokenText) -> (u32, String, Vec<u8>) {
    let bytes = bytes.unwrap_or_else(|| text.clone().into_bytes());
    (id, text, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selected_fields_have_their_paths_as_names() {
        let all = json!({"content": "a", "settings": {"n": 3}, "b": 1});
        let paths = ["content", "settings/n", "settings/x", "none"].map(String::from);
        assert_eq!(selected(&all, &paths), json!({"content": "a", "settings/n": 3}));
    }

    #[test]
    fn probabilities_have_ids_and_bytes() {
        let token = |id, text: &str| TokenText { id, text: text.into(), bytes: None };
        let choice = TokenChoice { chosen: token(3, "a"), logprob: Some(0.0), top: vec![(token(4, "é"), -1e9)] };
        let TokenProbability { id, logprob, prob, top_logprobs, top_probs, .. } = probability(choice.clone(), false);
        assert_eq!((id, logprob, prob, top_probs), (3, Some(0.0), None, None));
        let top = top_logprobs.unwrap();
        assert_eq!((top[0].id, &top[0].bytes[..]), (4, "é".as_bytes()));
        let after = probability(choice, true);
        assert_eq!((after.prob, after.logprob, after.top_logprobs), (Some(1.0), None, None));
        assert_eq!(after.top_probs.unwrap()[0].prob, Some(0.0));
    }
}
