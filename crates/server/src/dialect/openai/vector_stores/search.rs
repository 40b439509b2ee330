//! Searches in a vector store.

use crate::answer::Answer;
use crate::app::App;
use crate::call::Usage;
use crate::error::Fault;
use crate::json_body::JsonBody;
use crate::served_model::RequestKind;
use crate::vector_stores::model::embedder;
use crate::vector_stores::search::Search;
use axum::extract::{Path, State};
use sconce_api::openai::vector_stores::{RankingOptions, SearchPage, SearchRequest};
use sconce_index::Filter;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The most results, as at OpenAI.
const MAX_RESULTS: usize = 50;
/// The results of a request that does not say.
const DEFAULT_RESULTS: usize = 10;
/// The most queries of a request.
const MAX_QUERIES: usize = 16;

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(search))
}

/// Finds passages in the files of a vector store.
#[utoipa::path(post, path = "/v1/vector_stores/{vector_store_id}/search", request_body = SearchRequest,
    params(("vector_store_id" = String, Path, description = "The vector store's id")),
    responses((status = 200, description = "The results, best first", body = SearchPage)))]
async fn search(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    JsonBody { body, context }: JsonBody<SearchRequest>,
) -> Result<Answer<SearchPage>, Fault> {
    let store = app.vector_stores()?.get(&id)?;
    let search = checked(body)?;
    let search_query = search.queries.clone();
    let usage = Usage { tokens: 0, characters: search_query.iter().map(|query| query.chars().count()).sum() };
    let call = app.call("v1/vector_stores/search", &context, Some(&store.record().model), RequestKind::Embed)?;
    let data = call.run(move |served, caller| {
        store.touch()?;
        let index = app.vector_stores()?.index(&store)?;
        search.run(&store, &index, &embedder(served, Some(caller))?)
    });
    let data = data.await?;
    let object = "vector_store.search_results.page".into();
    Ok(call.answer(SearchPage { object, search_query, data, has_more: false, next_page: None }, usage))
}

fn checked(body: SearchRequest) -> Result<Search, Fault> {
    let queries = body.query.into_vec();
    if !(1..=MAX_QUERIES).contains(&queries.len()) {
        let what = format!("`query` has {} queries; send 1 to {MAX_QUERIES}", queries.len());
        return Err(Fault::invalid(what).at("query"));
    }
    if queries.iter().any(|query| query.trim().is_empty()) {
        return Err(Fault::invalid("`query` is empty").at("query"));
    }
    if body.rewrite_query == Some(true) {
        let what = "this server does not rewrite queries; leave out `rewrite_query`, or send false";
        return Err(Fault::invalid(what).at("rewrite_query"));
    }
    let limit = body.max_num_results.unwrap_or(DEFAULT_RESULTS);
    if !(1..=MAX_RESULTS).contains(&limit) {
        let what = format!("`max_num_results` is {limit}; it must be 1 to {MAX_RESULTS}");
        return Err(Fault::invalid(what).at("max_num_results"));
    }
    let RankingOptions { ranker, score_threshold } = body.ranking_options.unwrap_or_default();
    let threshold = score_threshold.unwrap_or(0.0);
    if !(0.0..=1.0).contains(&threshold) {
        let what = format!("`score_threshold` is {threshold}; it must be 0 to 1");
        return Err(Fault::invalid(what).at("ranking_options.score_threshold"));
    }
    let filter = body.filters.as_ref().map(Filter::from_json).transpose();
    let filter = filter.map_err(|e| Fault::invalid(e.to_string()).at("filters"))?;
    Ok(Search { queries, filter, limit, ranker: ranker.unwrap_or_default(), threshold })
}
