//! Vector stores: files that can be searched.

mod checks;
mod file_batches;
mod files;
mod search;

use super::metadata;
use super::query::Params;
use crate::app::App;
use crate::error::Fault;
use crate::json_body::JsonBody;
use crate::owner::Owner;
use crate::served_model::RequestKind;
use crate::storage::blocking;
use crate::storage::pages::Page;
use crate::vector_stores::model::embedder;
use crate::vector_stores::record::{NewAttachment, StoreRecord};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderName;
use sconce_api::openai::lists::{Deleted, List, PageQuery};
use sconce_api::openai::vector_stores::{AttachFile, CreateVectorStore, FileStatus, UpdateVectorStore, VectorStore};
use std::collections::HashSet;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The most objects of a page, and the default, as at OpenAI.
const MAX_PAGE: usize = 100;
const DEFAULT_PAGE: usize = 20;
/// The most files that a request attaches, as at OpenAI.
const MAX_ATTACHED: usize = 2_000;

/// Tells OpenAI's clients how long to wait before they ask again.
const POLL_AFTER: HeaderName = HeaderName::from_static("openai-poll-after-ms");
/// That time, in milliseconds.
const POLL_MS: &str = "250";

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(retrieve, update, delete))
        .merge(files::routes())
        .merge(file_batches::routes())
        .merge(search::routes())
}

/// The headers of an object that a client polls.
fn poll_headers(status: FileStatus) -> Option<[(HeaderName, &'static str); 1]> {
    (status == FileStatus::InProgress).then_some([(POLL_AFTER, POLL_MS)])
}

fn page(query: &PageQuery) -> Result<Page<'_>, Fault> {
    Ok(Page {
        after: query.after.as_deref(),
        before: query.before.as_deref(),
        limit: Page::limit(query.limit, DEFAULT_PAGE, MAX_PAGE)?,
        order: query.order.unwrap_or_default(),
    })
}

/// Checks files to attach, each only once.
fn attachments(
    (app, caller): (&App, &Owner),
    files: Vec<AttachFile>,
    param: &str,
) -> Result<Vec<NewAttachment>, Fault> {
    if files.len() > MAX_ATTACHED {
        let what = format!("`{param}` has {} files; the limit is {MAX_ATTACHED} per request", files.len());
        return Err(Fault::invalid(what).at(param));
    }
    let mut seen = HashSet::new();
    let mut new = Vec::with_capacity(files.len());
    for file in files {
        let attributes = file.attributes.unwrap_or_default();
        checks::attributes(&attributes)?;
        let chunking = file.chunking_strategy.unwrap_or_default();
        checks::chunking(chunking)?;
        // A store shows the text of its files to every key, so only their owner attaches them.
        app.files()?.get_for(caller, &file.file_id)?;
        if seen.insert(file.file_id.clone()) {
            // The store knows the name.
            new.push(NewAttachment { file_id: file.file_id, filename: String::new(), attributes, chunking });
        }
    }
    Ok(new)
}

/// Creates a vector store. Its files are indexed in the background.
#[utoipa::path(post, path = "/v1/vector_stores", request_body = CreateVectorStore,
    responses((status = 200, description = "The vector store", body = VectorStore)))]
async fn create(
    State(app): State<Arc<App>>,
    owner: Owner,
    JsonBody { body, context }: JsonBody<CreateVectorStore>,
) -> Result<Json<VectorStore>, Fault> {
    app.vector_stores()?;
    let (name, metadata) = (body.name.unwrap_or_default(), body.metadata.unwrap_or_default());
    checks::text(&name, "name")?;
    checks::text(body.description.as_deref().unwrap_or_default(), "description")?;
    metadata::check(&metadata)?;
    body.expires_after.as_ref().map(checks::expires_after).transpose()?;
    let chunking_strategy = body.chunking_strategy;
    let attach = |file_id| AttachFile { file_id, attributes: None, chunking_strategy };
    let files: Vec<AttachFile> = body.file_ids.unwrap_or_default().into_iter().map(attach).collect();
    // Before anything is made.
    let files = attachments((&app, &owner), files, "file_ids")?;
    let lease = app.models.lease(body.embedding_model.as_deref(), RequestKind::Embed);
    let lease = lease.map_err(|fault| fault.at("embedding_model"))?;
    context.set_model(&lease.served().id);
    let store = blocking(move || {
        embedder(lease.served(), None)?;
        let stores = app.vector_stores()?;
        let store = stores.create(StoreRecord {
            id: String::new(),
            sequence: 0,
            created_at: 0,
            last_active_at: 0,
            name,
            description: body.description,
            metadata,
            expires_after: body.expires_after,
            model: lease.served().id.clone(),
        })?;
        stores.attach(&store, files, false)?;
        Ok(store)
    })
    .await?;
    Ok(Json(store.object()))
}

/// The vector stores.
#[utoipa::path(get, path = "/v1/vector_stores", params(PageQuery),
    responses((status = 200, description = "A page of vector stores", body = List<VectorStore>)))]
async fn list(State(app): State<Arc<App>>, Params(query): Params<PageQuery>) -> Result<Json<List<VectorStore>>, Fault> {
    Ok(Json(page(&query)?.of(&app.vector_stores()?.list(), |store| &store.id, |store| store.object())?))
}

/// One vector store.
#[utoipa::path(get, path = "/v1/vector_stores/{vector_store_id}",
    params(("vector_store_id" = String, Path, description = "The vector store's id")),
    responses((status = 200, description = "The vector store", body = VectorStore)))]
async fn retrieve(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<VectorStore>, Fault> {
    Ok(Json(app.vector_stores()?.get(&id)?.object()))
}

/// Changes a vector store.
#[utoipa::path(post, path = "/v1/vector_stores/{vector_store_id}", request_body = UpdateVectorStore,
    params(("vector_store_id" = String, Path, description = "The vector store's id")),
    responses((status = 200, description = "The vector store", body = VectorStore)))]
async fn update(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    JsonBody { body, .. }: JsonBody<UpdateVectorStore>,
) -> Result<Json<VectorStore>, Fault> {
    let store = app.vector_stores()?.get(&id)?;
    body.name.iter().flatten().try_for_each(|name| checks::text(name, "name"))?;
    body.metadata.iter().flatten().try_for_each(metadata::check)?;
    body.expires_after.iter().flatten().try_for_each(checks::expires_after)?;
    blocking(move || {
        store.update(body)?;
        Ok(Json(store.object()))
    })
    .await
}

/// Deletes a vector store. Its files stay.
#[utoipa::path(delete, path = "/v1/vector_stores/{vector_store_id}",
    params(("vector_store_id" = String, Path, description = "The vector store's id")),
    responses((status = 200, description = "The vector store is deleted", body = Deleted)))]
async fn delete(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Deleted>, Fault> {
    let deleted = id.clone();
    blocking(move || app.vector_stores()?.remove(&deleted)).await?;
    Ok(Json(Deleted { id, object: "vector_store.deleted".into(), deleted: true }))
}
