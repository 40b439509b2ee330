//! `POST /score` and `POST /v1/score`: rerankers by their score, embedding models by cosine
//! similarity, multi-vector models by MaxSim.

use super::{truncation, usage};
use crate::answer::Answer;
use crate::app::App;
use crate::call::Usage;
use crate::dialect::openai::now;
use crate::embedding::{self, EmbedParams};
use crate::error::Fault;
use crate::http_context::{HttpContext, fresh_id};
use crate::json_body::JsonBody;
use crate::served_model::{RequestKind, ServedModel};
use axum::extract::State;
use sconce_api::input::Item;
use sconce_api::openai::common::OneOrMore;
use sconce_api::vllm::{Score, ScoreRequest, ScoreResponse};
use sconce_engine::{Loaded, RankPooling, RequestContext, Scores, TaskModel};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(score)).routes(routes!(v1_score))
}

/// Scores pairs of texts.
#[utoipa::path(post, path = "/score", request_body = ScoreRequest,
    responses((status = 200, description = "A score per pair", body = ScoreResponse)))]
async fn score(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<ScoreRequest>,
) -> Result<Answer<ScoreResponse>, Fault> {
    scores(&app, &context, "score", body).await
}

/// The same as `/score`.
#[utoipa::path(post, path = "/v1/score", request_body = ScoreRequest,
    responses((status = 200, description = "A score per pair", body = ScoreResponse)))]
async fn v1_score(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<ScoreRequest>,
) -> Result<Answer<ScoreResponse>, Fault> {
    scores(&app, &context, "v1/score", body).await
}

async fn scores(
    app: &Arc<App>,
    context: &Arc<HttpContext>,
    route: &'static str,
    mut body: ScoreRequest,
) -> Result<Answer<ScoreResponse>, Fault> {
    let pairs = Pairs::of(&mut body)?;
    app.check_batch(pairs.second.len(), pairs.second_name)?;
    let (truncate, max_tokens) = truncation(app, body.truncate_prompt_tokens, body.truncation_side)?;
    let params = EmbedParams {
        truncate,
        prompt: app.prompt(None),
        prompt_given: false,
        normalize: true,
        dimensions: None,
        max_tokens,
        pooling: app.config.pooling,
        pooling_given: false,
        param: pairs.second_name,
    };
    let raw = body.use_activation == Some(false);
    let call = app.call(route, context, body.model.as_deref(), RequestKind::Score)?;
    let characters = pairs.first.iter().chain(&pairs.second).map(|text| text.chars().count()).sum();
    let (scores, tokens) = call.run(move |served, caller| pairs.score(served, caller, &params, raw)).await?;
    let score = |(index, score)| Score { index, object: "score".into(), score };
    let response = ScoreResponse {
        id: format!("score-{}", fresh_id()),
        object: "list".into(),
        created: now(),
        model: call.served().id.clone(),
        data: scores.into_iter().enumerate().map(score).collect(),
        usage: usage(tokens),
    };
    Ok(call.answer(response, Usage { tokens, characters }))
}

/// Pairs of texts: as many first as second texts, or one first text for all.
#[derive(Debug)]
struct Pairs {
    first: Vec<String>,
    second: Vec<String>,
    /// The field with the second texts.
    second_name: &'static str,
}

impl Pairs {
    /// Takes the two sides out of a request, under any of their names.
    fn of(body: &mut ScoreRequest) -> Result<Pairs, Fault> {
        let first = [("text_1", body.text_1.take()), ("queries", body.queries.take()), ("data_1", body.data_1.take())];
        let second = [
            ("text_2", body.text_2.take()),
            ("documents", body.documents.take()),
            ("items", body.items.take()),
            ("data_2", body.data_2.take()),
        ];
        let (first_name, first) = side(first, "text_1")?;
        let (second_name, second) = side(second, "text_2")?;
        match (first.len(), second.len()) {
            (0, _) => Err(Fault::invalid(format!("`{first_name}` is empty; send at least one text")).at(first_name)),
            (a, b) if a == b || a == 1 => Ok(Pairs { first, second, second_name }),
            (a, b) => {
                let what = format!(
                    "`{first_name}` has {a} texts and `{second_name}` has {b}; send one first text, or as many as second ones"
                );
                Err(Fault::invalid(what).at(first_name))
            }
        }
    }

    /// The pairs themselves.
    fn pairs(&self) -> Vec<(&str, &str)> {
        // One first text is repeated as often as needed; otherwise both have the same length.
        self.first.iter().cycle().zip(&self.second).map(|(a, b)| (a.as_str(), b.as_str())).collect()
    }

    /// The score of each pair, and the tokens that the model read.
    fn score(
        self,
        served: &ServedModel,
        caller: &RequestContext,
        params: &EmbedParams,
        raw: bool,
    ) -> Result<(Vec<f32>, usize), Fault> {
        if raw && !matches!(served.model, TaskModel::Rerank(_)) {
            let what =
                format!("`{}` is no reranker, so its scores have no activation; leave out `use_activation`", served.id);
            return Err(Fault::invalid(what).at("use_activation"));
        }
        match &served.model {
            TaskModel::Rerank(reranker) => {
                let reranker =
                    reranker.with_context(caller).with_truncation(params.truncate).with_max_tokens(params.max_tokens);
                let output = reranker.logits(&self.pairs(), RankPooling::Pooler)?;
                let scores = if raw { Scores::Raw } else { Scores::Sigmoid };
                Ok((scores.apply(&output.results), output.tokens.iter().sum()))
            }
            TaskModel::Multi(multi) => {
                let multi =
                    multi.with_context(caller).with_truncation(params.truncate).with_max_tokens(params.max_tokens);
                let (queries, documents) = (multi.queries(&self.first)?, multi.documents(&self.second)?);
                let pairs = queries.results.iter().cycle().zip(&documents.results);
                let tokens = queries.tokens.iter().chain(&documents.tokens).sum();
                Ok((pairs.map(|(query, document)| document.max_sim(query)).collect(), tokens))
            }
            _ => {
                let first = self.first.len();
                let items = self.first.into_iter().chain(self.second).map(Item::Text).collect();
                let output = embedding::embed(served, caller, items, params)?;
                let (first, second) = output.rows.split_at(first.min(output.rows.len()));
                let cosines = first.iter().cycle().zip(second).map(|(a, b)| embedding::dot(a, b));
                Ok((cosines.collect(), output.usage.tokens))
            }
        }
    }
}

/// The texts of a side, which exactly one field has.
fn side<const N: usize>(
    fields: [(&'static str, Option<OneOrMore>); N],
    usual: &'static str,
) -> Result<(&'static str, Vec<String>), Fault> {
    let mut given = fields.into_iter().filter_map(|(name, texts)| Some((name, texts?)));
    let Some((name, texts)) = given.next() else {
        let what = format!("the request has no `{usual}`; send the texts of the pairs as `text_1` and `text_2`");
        return Err(Fault::invalid(what).at(usual));
    };
    match given.next() {
        Some((other, _)) => {
            Err(Fault::invalid(format!("`{name}` and `{other}` mean the same; send one of them")).at(other))
        }
        None => Ok((name, texts.into_vec())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pairs(body: Value) -> Result<Pairs, Fault> {
        Pairs::of(&mut serde_json::from_value(body).unwrap())
    }

    #[test]
    fn pairs_are_one_to_one_or_one_to_many_under_any_name() {
        let many = pairs(json!({"queries": "q", "documents": ["a", "b"]})).unwrap();
        assert_eq!((many.pairs(), many.second_name), (vec![("q", "a"), ("q", "b")], "documents"));
        let each = pairs(json!({"text_1": ["p", "q"], "text_2": ["a", "b"]})).unwrap();
        assert_eq!(each.pairs(), [("p", "a"), ("q", "b")]);
        assert_eq!(pairs(json!({"data_1": "q", "data_2": "a"})).unwrap().pairs(), [("q", "a")]);
        assert_eq!(pairs(json!({"queries": ["q"], "items": ["a"]})).unwrap().second_name, "items");
        for (body, param) in [
            (json!({}), "text_1"),
            (json!({"text_1": "a"}), "text_2"),
            (json!({"text_1": [], "text_2": []}), "text_1"),
            (json!({"text_1": ["a", "b"], "text_2": "c"}), "text_1"),
            (json!({"text_1": "a", "queries": "a", "text_2": "c"}), "queries"),
        ] {
            assert_eq!(pairs(body).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
