//! `POST /v1/completions`.

use super::flow::{self, About, Flow, Likely, News, Work};
use super::rewrite::Rewrite;
use super::wish::{Knobs, Wish};
use super::{id, now};
use crate::app::App;
use crate::asked::Asked;
use crate::error::Fault;
use crate::served::{Served, Want};
use crate::sse;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use sconce_api::openai::common::{FinishReason, Usage};
use sconce_api::openai::completions::{Completion, CompletionChoice, CompletionLogprobs, CompletionRequest, Prompt};
use sconce_engine::TaskModel;
use sconce_engine::{Finish, Format, Loaded, Request, Start};
use std::collections::VecDeque;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Tokens of an answer where nothing is said, as at OpenAI.
const MAX_TOKENS: usize = 16;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(completions))
}

/// Goes on from texts, at once or piece by piece; a model that rewrites texts (T5) rewrites them.
#[utoipa::path(post, path = "/v1/completions", request_body = CompletionRequest, responses(
    (status = 200, description = "The answers; a stream of them in pieces if `stream` is true", content(
        (Completion = "application/json"), (Completion = "text/event-stream")))))]
async fn completions(
    State(app): State<Arc<App>>,
    Asked { body, trail }: Asked<CompletionRequest>,
) -> Result<Response, Fault> {
    check(&body)?;
    let starts = starts(&body.prompt);
    app.check_batch(starts.len(), "prompt")?;
    let wish = Knobs::from(&body).wish()?;
    wish.check_answers(starts.len(), app.config.max_client_batch)?;
    if body.stream_options.as_ref().and_then(|o| o.include_obfuscation) == Some(true) {
        trail.ignored("stream_options.include_obfuscation");
    }
    let call = app.call("v1/completions", &trail, body.model.as_deref(), Want::Generate)?;
    let asked = wish.clone();
    let (flow, ()) =
        flow::begin((&app, &trail), call, move |served| work(served, &body, starts, asked).map(|work| (work, ())))
            .await?;
    let script = Script::new(flow.about(), &wish);
    if wish.stream {
        return Ok(stream(flow, script));
    }
    whole(flow, script).await.map(|completion| Json(completion).into_response())
}

fn check(request: &CompletionRequest) -> Result<(), Fault> {
    if request.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
        return Err(Fault::invalid("no model here fills in the middle: leave out `suffix`").at("suffix"));
    }
    let n = request.n.unwrap_or(1);
    if request.best_of.is_some_and(|best| best != n) {
        let what = "`best_of` is taken if it is `n`: no answers are made that are not given";
        return Err(Fault::invalid(what).at("best_of"));
    }
    Ok(())
}

/// What each prompt starts from.
fn starts(prompt: &Prompt) -> Vec<Start> {
    match prompt {
        Prompt::Text(text) => vec![Start::Text(text.clone())],
        Prompt::Texts(texts) => texts.iter().map(|text| Start::Text(text.clone())).collect(),
        Prompt::Tokens(ids) => vec![Start::Tokens(ids.clone())],
        Prompt::Several(all) => all.iter().map(|ids| Start::Tokens(ids.clone())).collect(),
    }
}

fn work(served: &Served, body: &CompletionRequest, starts: Vec<Start>, wish: Wish) -> Result<Work, Fault> {
    let (knobs, echo) = (Knobs::from(body), body.echo.unwrap_or(false));
    match &served.model {
        TaskModel::Generate(llm) => {
            let params = knobs.params(llm.params(), llm.plan().vocabulary)?;
            let format = wish.form.map(Format::from);
            let request = |start| Request {
                start,
                params: Some(params.clone()),
                max_tokens: Some(wish.max_tokens.unwrap_or(MAX_TOKENS)),
                stop: wish.stop.clone(),
                echo,
                ignore_end: body.ignore_eos.unwrap_or(false),
                format: format.clone(),
            };
            Ok(Work::Write { requests: starts.into_iter().map(request).collect(), marks: Vec::new() })
        }
        TaskModel::Seq2Seq(_) if echo => {
            Err(Fault::invalid("a model that writes another text for a text has nothing to `echo`").at("echo"))
        }
        TaskModel::Seq2Seq(model) => Rewrite::new(model, starts, &knobs, &wish).map(Work::Rewrite),
        _ => Err(served.unfit(Want::Generate)),
    }
}

/// Words what happens to the answers.
struct Script {
    id: String,
    created: u64,
    about: About,
    /// Characters of each answer so far: where its next token begins.
    lengths: Vec<usize>,
    written: usize,
    include_usage: bool,
}

impl Script {
    fn new(about: &About, wish: &Wish) -> Script {
        Script {
            id: id("cmpl-"),
            created: now(),
            about: about.clone(),
            lengths: vec![0; about.answers],
            written: 0,
            include_usage: wish.include_usage,
        }
    }

    /// What `news` adds to which answer.
    fn choice(&mut self, news: News) -> Result<CompletionChoice, Fault> {
        match news {
            News::Text { answer: index, prompt, text, tokens } => {
                self.written += if prompt { 0 } else { tokens.len() };
                let likely: Vec<Likely> = tokens.into_iter().flatten().collect();
                let logprobs = (!likely.is_empty()).then(|| logprobs(likely, self.lengths[index]));
                self.lengths[index] += text.chars().count();
                Ok(CompletionChoice { text, index, logprobs, finish_reason: None })
            }
            News::End { answer: index, finish } => {
                let reason = match finish {
                    Finish::Length => FinishReason::Length,
                    Finish::End | Finish::Stop(_) => FinishReason::Stop,
                };
                Ok(CompletionChoice { index, finish_reason: Some(reason), ..CompletionChoice::default() })
            }
            News::Failed(fault) => Err(fault),
        }
    }

    fn completion(&self, choices: Vec<CompletionChoice>, usage: Option<Option<Usage>>) -> Completion {
        Completion {
            id: self.id.clone(),
            object: "text_completion".into(),
            created: self.created,
            model: self.about.model.clone(),
            choices,
            system_fingerprint: self.about.fingerprint.clone(),
            usage,
        }
    }

    fn usage(&self) -> Usage {
        Usage::new(self.about.prompt_tokens, self.about.cached_tokens(), self.written)
    }
}

/// How likely tokens were that begin at a character of the answer.
fn logprobs(likely: Vec<Likely>, mut at: usize) -> CompletionLogprobs {
    let mut all = CompletionLogprobs::default();
    for Likely { chosen, logprob, top } in likely {
        all.text_offset.push(at);
        at += chosen.text.chars().count();
        all.tokens.push(chosen.text);
        all.token_logprobs.push(logprob);
        all.top_logprobs.push(logprob.map(|_| top.into_iter().map(|(word, logprob)| (word.text, logprob)).collect()));
    }
    all
}

/// The answers in one piece.
async fn whole(mut flow: Flow, mut script: Script) -> Result<Completion, Fault> {
    let open = |index| CompletionChoice { index, ..CompletionChoice::default() };
    let mut choices: Vec<CompletionChoice> = (0..script.about.answers).map(open).collect();
    while let Some(news) = flow.next().await {
        let CompletionChoice { text, index, logprobs, finish_reason } = script.choice(news)?;
        let choice = &mut choices[index];
        choice.text.push_str(&text);
        choice.finish_reason = choice.finish_reason.or(finish_reason);
        if let Some(more) = logprobs {
            let all = choice.logprobs.get_or_insert_default();
            all.tokens.extend(more.tokens);
            all.token_logprobs.extend(more.token_logprobs);
            all.top_logprobs.extend(more.top_logprobs);
            all.text_offset.extend(more.text_offset);
        }
    }
    Ok(script.completion(choices, Some(Some(script.usage()))))
}

/// The answers piece by piece.
fn stream(flow: Flow, script: Script) -> Response {
    let state = Some((flow, script, VecDeque::new()));
    sse::answer(stream::unfold(state, |state| async move {
        let (mut flow, mut script, mut ready) = state?;
        loop {
            if let Some(event) = ready.pop_front() {
                return Some((event, Some((flow, script, ready))));
            }
            match flow.next().await.map(|news| script.choice(news)) {
                Some(Ok(choice)) => {
                    let usage = script.include_usage.then_some(None);
                    ready.push_back(sse::data(&script.completion(vec![choice], usage)));
                }
                Some(Err(fault)) => {
                    ready.push_back(sse::failed(&fault));
                    script.include_usage = false;
                }
                None if script.include_usage => {
                    let usage = Some(Some(script.usage()));
                    ready.push_back(sse::data(&script.completion(Vec::new(), usage)));
                    script.include_usage = false;
                }
                None => return Some((sse::done(), None)),
            }
        }
    }))
}
