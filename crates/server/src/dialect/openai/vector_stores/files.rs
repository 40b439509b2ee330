//! The files of a vector store.

use super::{DEFAULT_PAGE, MAX_PAGE, attachments, checks, poll_headers};
use crate::app::App;
use crate::dialect::openai::query::Params;
use crate::error::{Fault, FaultKind};
use crate::json_body::JsonBody;
use crate::owner::Owner;
use crate::storage::blocking;
use crate::storage::pages::Page;
use crate::vector_stores::record::Attachment;
use axum::Json;
use axum::extract::{Path, State};
use axum::response::IntoResponse;
use sconce_api::openai::lists::{Deleted, List};
use sconce_api::openai::vector_stores::{
    AttachFile, ContentPart, FileContentPage, FileStatus, UpdateFile, VectorStoreFile, VectorStoreFileQuery,
};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list, attach))
        .routes(routes!(retrieve, update, detach))
        .routes(routes!(content))
}

/// A page of files of a store, of those that `wanted` accepts.
pub(super) fn page_of(
    store: &str,
    files: Vec<Attachment>,
    query: &VectorStoreFileQuery,
) -> Result<Json<List<VectorStoreFile>>, Fault> {
    let page = Page {
        after: query.after.as_deref(),
        before: query.before.as_deref(),
        limit: Page::limit(query.limit, DEFAULT_PAGE, MAX_PAGE)?,
        order: query.order.unwrap_or_default(),
    };
    let is_wanted = |file: &Attachment| query.filter.is_none_or(|status| file.status == status);
    let files: Vec<Attachment> = files.into_iter().filter(is_wanted).collect();
    Ok(Json(page.of(&files, |file| &file.file_id, |file| file.object(store))?))
}

/// Attaches an uploaded file. It is indexed in the background.
#[utoipa::path(post, path = "/v1/vector_stores/{vector_store_id}/files", request_body = AttachFile,
    params(("vector_store_id" = String, Path, description = "The vector store's id")),
    responses((status = 200, description = "The file", body = VectorStoreFile)))]
async fn attach(
    State(app): State<Arc<App>>,
    owner: Owner,
    Path(id): Path<String>,
    JsonBody { body, .. }: JsonBody<AttachFile>,
) -> Result<impl IntoResponse, Fault> {
    let store = app.vector_stores()?.get(&id)?;
    let files = attachments((&app, &owner), vec![body], "file_id")?;
    let attached = blocking(move || Ok(app.vector_stores()?.attach(&store, files, false)?.0)).await?;
    let file = attached.first().ok_or_else(|| Fault::new(FaultKind::Internal, "no file was attached"))?;
    Ok((poll_headers(file.status), Json(file.object(&id))))
}

/// The files of a vector store.
#[utoipa::path(get, path = "/v1/vector_stores/{vector_store_id}/files",
    params(("vector_store_id" = String, Path, description = "The vector store's id"), VectorStoreFileQuery),
    responses((status = 200, description = "A page of files", body = List<VectorStoreFile>)))]
async fn list(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Params(query): Params<VectorStoreFileQuery>,
) -> Result<Json<List<VectorStoreFile>>, Fault> {
    page_of(&id, app.vector_stores()?.get(&id)?.files(), &query)
}

/// One file of a vector store.
#[utoipa::path(get, path = "/v1/vector_stores/{vector_store_id}/files/{file_id}",
    params(("vector_store_id" = String, Path, description = "The vector store's id"),
           ("file_id" = String, Path, description = "The file's id")),
    responses((status = 200, description = "The file", body = VectorStoreFile)))]
async fn retrieve(
    State(app): State<Arc<App>>,
    Path((id, file)): Path<(String, String)>,
) -> Result<impl IntoResponse, Fault> {
    let file = app.vector_stores()?.get(&id)?.file(&file)?;
    Ok((poll_headers(file.status), Json(file.object(&id))))
}

/// Replaces the attributes of a file.
#[utoipa::path(post, path = "/v1/vector_stores/{vector_store_id}/files/{file_id}", request_body = UpdateFile,
    params(("vector_store_id" = String, Path, description = "The vector store's id"),
           ("file_id" = String, Path, description = "The file's id")),
    responses((status = 200, description = "The file", body = VectorStoreFile)))]
async fn update(
    State(app): State<Arc<App>>,
    Path((id, file)): Path<(String, String)>,
    JsonBody { body, .. }: JsonBody<UpdateFile>,
) -> Result<Json<VectorStoreFile>, Fault> {
    let store = app.vector_stores()?.get(&id)?;
    let attributes = body.attributes.unwrap_or_default();
    checks::attributes(&attributes)?;
    let changed = blocking(move || app.vector_stores()?.set_attributes(&store, &file, attributes)).await?;
    Ok(Json(changed.object(&id)))
}

/// Removes a file from a vector store. The uploaded file stays.
#[utoipa::path(delete, path = "/v1/vector_stores/{vector_store_id}/files/{file_id}",
    params(("vector_store_id" = String, Path, description = "The vector store's id"),
           ("file_id" = String, Path, description = "The file's id")),
    responses((status = 200, description = "The file is removed", body = Deleted)))]
async fn detach(State(app): State<Arc<App>>, Path((id, file)): Path<(String, String)>) -> Result<Json<Deleted>, Fault> {
    let store = app.vector_stores()?.get(&id)?;
    // For the error of an unknown file.
    store.file(&file)?;
    let detached = file.clone();
    blocking(move || app.vector_stores()?.detach(&store, &detached)).await?;
    Ok(Json(Deleted { id: file, object: "vector_store.file.deleted".into(), deleted: true }))
}

/// The text of an indexed file.
#[utoipa::path(get, path = "/v1/vector_stores/{vector_store_id}/files/{file_id}/content",
    params(("vector_store_id" = String, Path, description = "The vector store's id"),
           ("file_id" = String, Path, description = "The file's id")),
    responses((status = 200, description = "The text", body = FileContentPage)))]
async fn content(
    State(app): State<Arc<App>>,
    Path((id, file)): Path<(String, String)>,
) -> Result<Json<FileContentPage>, Fault> {
    let store = app.vector_stores()?.get(&id)?;
    let status = store.file(&file)?.status;
    if status != FileStatus::Completed {
        let what = format!("the file `{file}` is not indexed; its `status` says why");
        return Err(Fault::new(FaultKind::Conflict, what).at("file_id"));
    }
    let texts = blocking(move || app.vector_stores()?.content(&store, &file)).await?;
    Ok(Json(FileContentPage {
        object: "vector_store.file_content.page".into(),
        data: texts.into_iter().map(ContentPart::text).collect(),
        has_more: false,
        next_page: None,
    }))
}
