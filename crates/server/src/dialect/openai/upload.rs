//! The form of an upload: fields in any order, bounded in bytes and time, the file straight to disk.

use crate::app::App;
use crate::error::{Fault, FaultKind};
use crate::http_context::HttpContext;
use crate::multipart::{Clock, Multipart};
use crate::owner::Owner;
use crate::storage::blocking;
use crate::storage::files::{FileStore, NewFile};
use crate::storage::upload::Upload;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use sconce_api::openai::files::Purpose;
use std::sync::Arc;
use tokio::sync::mpsc::{Receiver, channel};

/// The most bytes of a field that is not the file.
const MAX_FIELD: usize = 4 << 10;
/// The most fields.
const MAX_FIELDS: usize = 32;
/// When an uploaded file may expire, in seconds.
const EXPIRY: std::ops::RangeInclusive<u64> = 3_600..=2_592_000;

/// A form that was read.
pub(super) struct Form {
    /// The content.
    pub(super) upload: Upload,
    /// What the other fields say about it. They do not say who sends it.
    pub(super) new: NewFile,
}

/// The fields so far.
#[derive(Default)]
struct Fields {
    file: Option<(Upload, String)>,
    purpose: Option<Purpose>,
    anchor: Option<String>,
    seconds: Option<u64>,
}

/// Reads a form.
pub(super) async fn receive(
    app: &App,
    context: &HttpContext,
    request: Request,
    files: Arc<FileStore>,
) -> Result<Form, Fault> {
    let clock = Clock {
        silence: app.config.silence,
        deadline: app.config.request_timeout.map(|timeout| context.started_at + timeout),
    };
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_owned();
    let mut form = Multipart::new(&kind, request.into_body(), clock)?;
    let mut fields = Fields::default();
    let mut count = 0;
    while let Some(head) = form.next_field().await? {
        count += 1;
        if count > MAX_FIELDS {
            return Err(Fault::invalid(format!("the form has more than {MAX_FIELDS} fields")));
        }
        let name = head.name;
        match name.as_str() {
            "file" if fields.file.is_some() => {
                return Err(Fault::invalid("the form has two files; send one per request").at("file"));
            }
            "file" => {
                fields.file = Some((store(&mut form, files.clone()).await?, head.filename.unwrap_or_default()));
            }
            "purpose" => {
                let text = text(&mut form, &name).await?;
                let purpose = text.parse().map_err(|why| Fault::invalid(format!("`purpose` is `{text}`; {why}")));
                fields.purpose = Some(purpose.map_err(|fault| fault.at("purpose"))?);
            }
            "expires_after[anchor]" => fields.anchor = Some(text(&mut form, &name).await?),
            "expires_after[seconds]" => {
                let text = text(&mut form, &name).await?;
                let wrong = |_| Fault::invalid(format!("`{name}` is `{text}`, not a number of seconds")).at(&name);
                fields.seconds = Some(text.parse().map_err(wrong)?);
            }
            other => context.note_ignored(other),
        }
    }
    fields.form()
}

impl Fields {
    fn form(self) -> Result<Form, Fault> {
        let missing = |field: &str| Fault::invalid(format!("the form has no field `{field}`")).at(field);
        let purpose = self.purpose.ok_or_else(|| missing("purpose"))?;
        if purpose == Purpose::BatchOutput {
            return Err(Fault::invalid("`purpose`: only the server makes files for `batch_output`").at("purpose"));
        }
        let expires_after = match (self.anchor.as_deref(), self.seconds) {
            // As at OpenAI; other files stay.
            (None, None) => (purpose == Purpose::Batch).then_some(*EXPIRY.end()),
            (Some("created_at"), Some(seconds)) if EXPIRY.contains(&seconds) => Some(seconds),
            _ => {
                let what = format!(
                    "`expires_after` needs the `anchor` created_at, and `seconds` from {} to {}",
                    EXPIRY.start(),
                    EXPIRY.end()
                );
                return Err(Fault::invalid(what).at("expires_after"));
            }
        };
        let (upload, filename) = self.file.ok_or_else(|| missing("file"))?;
        Ok(Form { upload, new: NewFile { filename, purpose, expires_after, owner: Owner::default() } })
    }
}

/// A short field.
async fn text(form: &mut Multipart, name: &str) -> Result<String, Fault> {
    let mut bytes = Vec::new();
    while let Some(part) = form.chunk().await? {
        if bytes.len() + part.len() > MAX_FIELD {
            return Err(Fault::invalid(format!("`{name}` has more than {MAX_FIELD} bytes")).at(name));
        }
        bytes.extend_from_slice(&part);
    }
    String::from_utf8(bytes).map_err(|_| Fault::invalid(format!("`{name}` is not UTF-8")).at(name))
}

/// Writes a field to disk while it arrives. If the client disconnects, what was written is removed
/// with the result of the task.
async fn store(form: &mut Multipart, files: Arc<FileStore>) -> Result<Upload, Fault> {
    let (sender, receiver) = channel::<Vec<u8>>(8);
    let writing = tokio::spawn(blocking(move || write(&files, receiver)));
    while let Some(part) = form.chunk().await? {
        // The task ends early with an error only.
        if sender.send(part).await.is_err() {
            break;
        }
    }
    drop(sender);
    let internal = |_| Fault::new(FaultKind::Internal, "internal error, please report it; only this request failed");
    writing.await.map_err(internal)?
}

fn write(files: &Arc<FileStore>, mut parts: Receiver<Vec<u8>>) -> Result<Upload, Fault> {
    let mut upload = files.begin()?;
    while let Some(part) = parts.blocking_recv() {
        upload.write(&part)?;
    }
    Ok(upload)
}
