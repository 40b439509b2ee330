//! Batches of requests.

use super::metadata;
use super::query::Params;
use crate::app::App;
use crate::batches::{NewBatch, WINDOW};
use crate::error::Fault;
use crate::json_body::JsonBody;
use crate::owner::Owner;
use crate::storage::blocking;
use crate::storage::pages::Page;
use axum::Json;
use axum::extract::{Path, State};
use sconce_api::openai::batches::{Batch, BatchQuery, CreateBatch};
use sconce_api::openai::files::Purpose;
use sconce_api::openai::lists::{Deleted, List, Order};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The most batches of a page, and the default, as at OpenAI.
const MAX_PAGE: usize = 100;
const DEFAULT_PAGE: usize = 20;
/// When files with results may expire, in seconds; the last is the default.
const EXPIRY: std::ops::RangeInclusive<u64> = 3_600..=2_592_000;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(retrieve, delete)).routes(routes!(cancel))
}

/// Answers the requests of an uploaded file in the background, at low priority.
#[utoipa::path(post, path = "/v1/batches", request_body = CreateBatch,
    responses((status = 200, description = "The batch", body = Batch)))]
async fn create(
    State(app): State<Arc<App>>,
    owner: Owner,
    JsonBody { body, .. }: JsonBody<CreateBatch>,
) -> Result<Json<Batch>, Fault> {
    app.batches()?;
    if body.completion_window != WINDOW {
        let what = format!("`completion_window` is `{}`; it must be {WINDOW}", body.completion_window);
        return Err(Fault::invalid(what).at("completion_window"));
    }
    body.metadata.as_ref().map(metadata::check).transpose()?;
    let output_expires_after = match &body.output_expires_after {
        None => *EXPIRY.end(),
        Some(after) if after.anchor == "created_at" && EXPIRY.contains(&after.seconds) => after.seconds,
        Some(_) => {
            let (least, most) = (EXPIRY.start(), EXPIRY.end());
            let what =
                format!("`output_expires_after` needs the `anchor` created_at, and `seconds` from {least} to {most}");
            return Err(Fault::invalid(what).at("output_expires_after"));
        }
    };
    let file = app.files()?.get_for(&owner, &body.input_file_id).map_err(|fault| fault.at("input_file_id"))?;
    if file.purpose != Purpose::Batch {
        let what = format!("the file `{}` is for the purpose `{}`; upload it for `batch`", file.id, file.purpose);
        return Err(Fault::invalid(what).at("input_file_id"));
    }
    let new = NewBatch { owner, endpoint: body.endpoint, metadata: body.metadata, output_expires_after };
    Ok(Json(blocking(move || app.batches()?.create(&file, new)).await?))
}

/// The batches, newest first.
#[utoipa::path(get, path = "/v1/batches", params(BatchQuery),
    responses((status = 200, description = "A page of batches", body = List<Batch>)))]
async fn list(
    State(app): State<Arc<App>>,
    owner: Owner,
    Params(query): Params<BatchQuery>,
) -> Result<Json<List<Batch>>, Fault> {
    let page = Page {
        after: query.after.as_deref(),
        before: None,
        limit: Page::limit(query.limit, DEFAULT_PAGE, MAX_PAGE)?,
        order: Order::Desc,
    };
    // A batch is locked while its record is written.
    let listed = blocking(move || Ok(app.batches()?.list(&owner).iter().map(|batch| batch.object()).collect()));
    let objects: Vec<Batch> = listed.await?;
    Ok(Json(page.of(&objects, |batch| &batch.id, Batch::clone)?))
}

/// One batch.
#[utoipa::path(get, path = "/v1/batches/{batch_id}", params(("batch_id" = String, Path, description = "The batch's id")),
    responses((status = 200, description = "The batch", body = Batch)))]
async fn retrieve(State(app): State<Arc<App>>, owner: Owner, Path(id): Path<String>) -> Result<Json<Batch>, Fault> {
    Ok(Json(blocking(move || Ok(app.batches()?.get(&owner, &id)?.object())).await?))
}

/// Deletes a batch that has ended. Its files stay. Our own.
#[utoipa::path(delete, path = "/v1/batches/{batch_id}",
    params(("batch_id" = String, Path, description = "The batch's id")),
    responses((status = 200, description = "The batch is deleted", body = Deleted)))]
async fn delete(State(app): State<Arc<App>>, owner: Owner, Path(id): Path<String>) -> Result<Json<Deleted>, Fault> {
    let deleted = id.clone();
    blocking(move || {
        let batches = app.batches()?;
        let batch = batches.get(&owner, &deleted)?;
        batches.remove(&batch)
    })
    .await?;
    Ok(Json(Deleted { id, object: "batch".into(), deleted: true }))
}

/// Cancels a batch. The results so far are kept.
#[utoipa::path(post, path = "/v1/batches/{batch_id}/cancel",
    params(("batch_id" = String, Path, description = "The batch's id")),
    responses((status = 200, description = "The batch", body = Batch)))]
async fn cancel(State(app): State<Arc<App>>, owner: Owner, Path(id): Path<String>) -> Result<Json<Batch>, Fault> {
    let cancelled = blocking(move || {
        let batches = app.batches()?;
        let batch = batches.get(&owner, &id)?;
        batches.cancel(&batch)?;
        Ok(batch.object())
    });
    Ok(Json(cancelled.await?))
}
