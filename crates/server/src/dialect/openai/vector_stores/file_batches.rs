//! Files that are attached together.

use super::files::page_of;
use super::{attachments, poll_headers};
use crate::app::App;
use crate::dialect::openai::query::Params;
use crate::error::{Fault, FaultKind};
use crate::json_body::JsonBody;
use crate::owner::Owner;
use crate::storage::blocking;
use axum::Json;
use axum::extract::{Path, State};
use axum::response::IntoResponse;
use sconce_api::openai::lists::List;
use sconce_api::openai::vector_stores::{
    AttachFile, CreateFileBatch, VectorStoreFile, VectorStoreFileBatch, VectorStoreFileQuery,
};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(create))
        .routes(routes!(retrieve))
        .routes(routes!(cancel))
        .routes(routes!(files))
}

/// Attaches files together. They are indexed in the background.
#[utoipa::path(post, path = "/v1/vector_stores/{vector_store_id}/file_batches", request_body = CreateFileBatch,
    params(("vector_store_id" = String, Path, description = "The vector store's id")),
    responses((status = 200, description = "The batch", body = VectorStoreFileBatch)))]
async fn create(
    State(app): State<Arc<App>>,
    owner: Owner,
    Path(id): Path<String>,
    JsonBody { body, .. }: JsonBody<CreateFileBatch>,
) -> Result<impl IntoResponse, Fault> {
    let store = app.vector_stores()?.get(&id)?;
    let files = match (body.file_ids, body.files) {
        (Some(ids), None) => {
            let (attributes, chunking_strategy) = (body.attributes, body.chunking_strategy);
            let attach = |file_id| AttachFile { file_id, attributes: attributes.clone(), chunking_strategy };
            attachments((&app, &owner), ids.into_iter().map(attach).collect(), "file_ids")?
        }
        (None, Some(_)) if body.attributes.is_some() || body.chunking_strategy.is_some() => {
            let what = "with `files`, each file has its own `attributes` and `chunking_strategy`; leave out those of \
                        the batch";
            return Err(Fault::invalid(what).at("files"));
        }
        (None, Some(files)) => attachments((&app, &owner), files, "files")?,
        _ => return Err(Fault::invalid("send either `file_ids` or `files`").at("file_ids")),
    };
    if files.is_empty() {
        return Err(Fault::new(FaultKind::Empty, "a batch needs at least one file").at("file_ids"));
    }
    let batch = blocking(move || {
        let (_, batch) = app.vector_stores()?.attach(&store, files, true)?;
        let batch = batch.ok_or_else(|| Fault::new(FaultKind::Internal, "no batch was made"))?;
        store.batch(&batch.id)
    })
    .await?;
    Ok((poll_headers(batch.status), Json(batch)))
}

/// One batch.
#[utoipa::path(get, path = "/v1/vector_stores/{vector_store_id}/file_batches/{batch_id}",
    params(("vector_store_id" = String, Path, description = "The vector store's id"),
           ("batch_id" = String, Path, description = "The batch's id")),
    responses((status = 200, description = "The batch", body = VectorStoreFileBatch)))]
async fn retrieve(
    State(app): State<Arc<App>>,
    Path((id, batch)): Path<(String, String)>,
) -> Result<impl IntoResponse, Fault> {
    let batch = app.vector_stores()?.get(&id)?.batch(&batch)?;
    Ok((poll_headers(batch.status), Json(batch)))
}

/// Cancels the files of a batch that are not indexed yet. The others stay.
#[utoipa::path(post, path = "/v1/vector_stores/{vector_store_id}/file_batches/{batch_id}/cancel",
    params(("vector_store_id" = String, Path, description = "The vector store's id"),
           ("batch_id" = String, Path, description = "The batch's id")),
    responses((status = 200, description = "The batch", body = VectorStoreFileBatch)))]
async fn cancel(
    State(app): State<Arc<App>>,
    Path((id, batch)): Path<(String, String)>,
) -> Result<Json<VectorStoreFileBatch>, Fault> {
    let store = app.vector_stores()?.get(&id)?;
    blocking(move || {
        store.cancel_batch(&batch)?;
        store.batch(&batch).map(Json)
    })
    .await
}

/// The files of a batch.
#[utoipa::path(get, path = "/v1/vector_stores/{vector_store_id}/file_batches/{batch_id}/files",
    params(("vector_store_id" = String, Path, description = "The vector store's id"),
           ("batch_id" = String, Path, description = "The batch's id"), VectorStoreFileQuery),
    responses((status = 200, description = "A page of files", body = List<VectorStoreFile>)))]
async fn files(
    State(app): State<Arc<App>>,
    Path((id, batch)): Path<(String, String)>,
    Params(query): Params<VectorStoreFileQuery>,
) -> Result<Json<List<VectorStoreFile>>, Fault> {
    let store = app.vector_stores()?.get(&id)?;
    // For the error of an unknown batch.
    store.batch(&batch)?;
    let files = store.files().into_iter().filter(|file| file.batch.as_ref() == Some(&batch)).collect();
    page_of(&id, files, &query)
}
