//! Stored responses.

use super::super::query::Params;
use crate::app::App;
use crate::error::Fault;
use crate::owner::Owner;
use crate::storage::blocking;
use crate::storage::pages::Page;
use axum::Json;
use axum::extract::{Path, State};
use sconce_api::openai::lists::{Deleted, List};
use sconce_api::openai::responses::input::InputItem;
use sconce_api::openai::responses::request::{InputItemsQuery, RetrieveQuery};
use sconce_api::openai::responses::response::Response;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The most items of a page, and the default, as at OpenAI.
const MAX_PAGE: usize = 100;
const DEFAULT_PAGE: usize = 20;

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(retrieve, delete)).routes(routes!(input_items))
}

/// A stored response.
#[utoipa::path(get, path = "/v1/responses/{response_id}",
    params(("response_id" = String, Path, description = "The response's id"), RetrieveQuery),
    responses((status = 200, description = "The response", body = Response)))]
async fn retrieve(
    State(app): State<Arc<App>>,
    owner: Owner,
    Path(id): Path<String>,
    Params(query): Params<RetrieveQuery>,
) -> Result<Json<Response>, Fault> {
    if query.stream == Some(true) {
        let what = "only a response that is being generated could be streamed, and only complete ones are stored";
        return Err(Fault::invalid(what).at("stream"));
    }
    let stored = blocking(move || app.responses.get(&owner, &id)).await?;
    Ok(Json(stored.response))
}

/// Deletes a stored response. Responses that continue it can be retrieved, but no longer continued.
#[utoipa::path(delete, path = "/v1/responses/{response_id}",
    params(("response_id" = String, Path, description = "The response's id")),
    responses((status = 200, description = "The response is deleted", body = Deleted)))]
async fn delete(State(app): State<Arc<App>>, owner: Owner, Path(id): Path<String>) -> Result<Json<Deleted>, Fault> {
    let deleted = id.clone();
    blocking(move || app.responses.remove(&owner, &deleted)).await?;
    Ok(Json(Deleted { id, object: "response".into(), deleted: true }))
}

/// The input of a stored response, without that of the responses before it.
#[utoipa::path(get, path = "/v1/responses/{response_id}/input_items",
    params(("response_id" = String, Path, description = "The response's id"), InputItemsQuery),
    responses((status = 200, description = "A page of items", body = List<InputItem>)))]
async fn input_items(
    State(app): State<Arc<App>>,
    owner: Owner,
    Path(id): Path<String>,
    Params(query): Params<InputItemsQuery>,
) -> Result<Json<List<InputItem>>, Fault> {
    let limit = Page::limit(query.limit, DEFAULT_PAGE, MAX_PAGE)?;
    let stored = blocking(move || app.responses.get(&owner, &id)).await?;
    let page = Page { after: query.after.as_deref(), before: None, limit, order: query.order.unwrap_or_default() };
    Ok(Json(page.of(&stored.input, |item| item.id.as_deref().unwrap_or_default(), InputItem::clone)?))
}
