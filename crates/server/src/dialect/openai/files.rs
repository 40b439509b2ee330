//! Uploaded files.

use super::query::Params;
use super::upload::{Form, receive};
use crate::app::App;
use crate::error::{Fault, FaultKind};
use crate::http_context::HttpContext;
use crate::layers::{is_allowed_origin, is_from_foreign_page};
use crate::owner::Owner;
use crate::storage::blocking;
use crate::storage::files::{MAX_FILE_BYTES, NewFile};
use crate::storage::pages::Page;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, ORIGIN, X_CONTENT_TYPE_OPTIONS};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures_util::stream;
use sconce_api::openai::files::{FileObject, FileQuery, Purpose, UploadForm};
use sconce_api::openai::lists::{Deleted, List};
use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The most files of a page, and the default, as at OpenAI.
const MAX_PAGE: usize = 10_000;
/// How much of a file is read at once.
const READ_BYTES: usize = 256 << 10;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list, upload)).routes(routes!(retrieve, delete)).routes(routes!(content))
}

/// Uploads a file of at most 512 MiB.
#[utoipa::path(post, path = "/v1/files", request_body(content = UploadForm, content_type = "multipart/form-data"),
    responses((status = 200, description = "The file", body = FileObject)))]
async fn upload(
    State(app): State<Arc<App>>,
    Extension(context): Extension<Arc<HttpContext>>,
    owner: Owner,
    request: Request,
) -> Result<Json<FileObject>, Fault> {
    let files = app.files()?.clone();
    refuse_web_pages(&app, &request)?;
    let length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    // A declared length is refused before reading. The rest of the form is small.
    if length.is_some_and(|length| length > MAX_FILE_BYTES + (1 << 20)) {
        let what = format!("the file is larger than {MAX_FILE_BYTES} bytes, the server's limit");
        return Err(Fault::new(FaultKind::TooLarge, what).at("file"));
    }
    let _permit = app.uploads.try_acquire().map_err(|_| {
        let what = "too many files are being uploaded at once; retry in a moment";
        Fault::new(FaultKind::Overloaded, what).retry_after(Duration::from_secs(1))
    })?;
    let Form { upload, new } = receive(&app, &context, request, files).await?;
    let file = blocking(move || upload.finish(NewFile { owner, ..new })).await?;
    Ok(Json(file.object()))
}

/// A web page may send a form to a server on its reader's machine without asking. With a key it
/// cannot. The server's own page may.
fn refuse_web_pages(app: &App, request: &Request) -> Result<(), Fault> {
    let Some(origin) = request.headers().get(ORIGIN).filter(|_| is_from_foreign_page(app, request)) else {
        return Ok(());
    };
    if !app.config.api_keys.is_empty() || is_allowed_origin(&app.config.cors_origins, origin) {
        return Ok(());
    }
    let what = "web pages cannot upload files to this server; it has neither a key (--api-key) nor this origin \
                (--cors-allow-origin)";
    Err(Fault::new(FaultKind::Forbidden, what))
}

/// The uploaded files.
#[utoipa::path(get, path = "/v1/files", params(FileQuery),
    responses((status = 200, description = "A page of files", body = List<FileObject>)))]
async fn list(
    State(app): State<Arc<App>>,
    owner: Owner,
    Params(query): Params<FileQuery>,
) -> Result<Json<List<FileObject>>, Fault> {
    let files = app.files()?;
    let purpose = query.purpose.as_deref().map(str::parse::<Purpose>).transpose();
    let purpose = purpose.map_err(|why| Fault::invalid(format!("`purpose`: {why}")).at("purpose"))?;
    let page = Page {
        after: query.after.as_deref(),
        before: None,
        limit: Page::limit(query.limit, MAX_PAGE, MAX_PAGE)?,
        order: query.order.unwrap_or_default(),
    };
    Ok(Json(page.of(&files.list(&owner, purpose), |file| &file.id, |file| file.object())?))
}

/// One file.
#[utoipa::path(get, path = "/v1/files/{file_id}", params(("file_id" = String, Path, description = "The file's id")),
    responses((status = 200, description = "The file", body = FileObject)))]
async fn retrieve(
    State(app): State<Arc<App>>,
    owner: Owner,
    Path(id): Path<String>,
) -> Result<Json<FileObject>, Fault> {
    Ok(Json(app.files()?.get_for(&owner, &id)?.object()))
}

/// Deletes a file, and removes it from all vector stores.
#[utoipa::path(delete, path = "/v1/files/{file_id}", params(("file_id" = String, Path, description = "The file's id")),
    responses((status = 200, description = "The file is deleted", body = Deleted)))]
async fn delete(State(app): State<Arc<App>>, owner: Owner, Path(id): Path<String>) -> Result<Json<Deleted>, Fault> {
    app.files()?.get_for(&owner, &id)?;
    let deleted = id.clone();
    blocking(move || app.delete_file(&deleted)).await?;
    Ok(Json(Deleted { id, object: "file".into(), deleted: true }))
}

/// The content of a file.
#[utoipa::path(get, path = "/v1/files/{file_id}/content",
    params(("file_id" = String, Path, description = "The file's id")),
    responses((status = 200, description = "The bytes", body = Vec<u8>, content_type = "application/octet-stream")))]
async fn content(State(app): State<Arc<App>>, owner: Owner, Path(id): Path<String>) -> Result<Response, Fault> {
    let files = app.files()?.clone();
    let (file, record) = blocking(move || {
        let record = files.get_for(&owner, &id)?;
        let path = files.content(&record);
        let file = File::open(&path).map_err(crate::storage::io_fault("read the file", &path))?;
        Ok((file, record))
    })
    .await?;
    let body = Body::from_stream(stream::try_unfold(file, |file| async move {
        let read = tokio::task::spawn_blocking(move || read_some(file));
        read.await.map_err(io::Error::other)?
    }));
    // A browser must not show what somebody uploaded as a page of this server.
    let head = [
        (CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (CONTENT_LENGTH, HeaderValue::from(record.bytes)),
        (CONTENT_DISPOSITION, disposition(&record.filename)),
    ];
    Ok((head, body).into_response())
}

/// The next part of a file; `None` at its end.
fn read_some(mut file: File) -> io::Result<Option<(Bytes, File)>> {
    let mut part = vec![0; READ_BYTES];
    let count = file.read(&mut part)?;
    part.truncate(count);
    Ok((count > 0).then(|| (part.into(), file)))
}

/// `attachment` with the file's name, percent-encoded (RFC 5987).
fn disposition(name: &str) -> HeaderValue {
    let mut value = "attachment; filename*=UTF-8''".to_owned();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => value.push(char::from(byte)),
            // Writing to a string cannot fail.
            _ => drop(write!(value, "%{byte:02X}")),
        }
    }
    HeaderValue::from_str(&value).unwrap_or(HeaderValue::from_static("attachment"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_cannot_break_out_of_their_header() {
        assert_eq!(disposition("a b\"\r\n.txt"), "attachment; filename*=UTF-8''a%20b%22%0D%0A.txt");
        assert_eq!(disposition("ä"), "attachment; filename*=UTF-8''%C3%A4");
    }
}
