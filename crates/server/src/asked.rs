//! What a client asks, as JSON: bounded, and every field that had no effect is told.

use crate::app::App;
use crate::error::{Fault, FaultKind};
use crate::trail::Trail;
use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde_path_to_error::{Deserializer as PathDeserializer, Track};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::SemaphorePermit;

/// A body that was read and understood.
pub struct Asked<T> {
    /// What it says.
    pub body: T,
    /// Of the request.
    pub trail: Arc<Trail>,
}

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Asked<T> {
    type Rejection = Fault;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Fault> {
        let (bytes, trail) = body(request, app).await?;
        Ok(Asked { body: understood(&bytes, &trail)?, trail })
    }
}

/// The bytes of a body that calls itself JSON.
pub(crate) async fn body(request: Request, app: &App) -> Result<(Vec<u8>, Arc<Trail>), Fault> {
    let trail = request.extensions().get::<Arc<Trail>>().cloned().unwrap_or_else(|| Trail::new(request.headers()));
    let media = request.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let kind = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if kind != "application/json" && !(kind.starts_with("application/") && kind.ends_with("+json")) {
        let what = format!("the body must be JSON and say so: `Content-Type: application/json`, not `{kind}`");
        return Err(Fault::new(FaultKind::Media, what));
    }
    let limit = app.config.payload_limit;
    let too_large = || {
        let what = format!("the body is larger than {limit} bytes; send less at once, or raise --payload-limit");
        Fault::new(FaultKind::TooLarge, what)
    };
    let mut body: Body = request.into_body();
    // Said beforehand, it need not be read to be refused.
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let patience = app.config.request_timeout.map(|most| trail.begun + most);
    let (mut bytes, mut room) = (Vec::new(), None::<SemaphorePermit<'_>>);
    loop {
        let silence = Instant::now() + app.config.silence;
        let until = patience.map_or(silence, |patience| patience.min(silence));
        let frame = tokio::time::timeout_at(until.into(), body.frame()).await;
        let slow = |_| Fault::new(FaultKind::Slow, "the body did not come in time; send it faster, or less at once");
        let frame = match frame.map_err(slow)? {
            None => break,
            Some(frame) => frame.map_err(|e| Fault::invalid(format!("the body could not be read: {e}")))?,
        };
        let Some(data) = frame.data_ref() else { continue };
        if bytes.len() + data.len() > limit {
            return Err(too_large());
        }
        // In whole KiB of the body so far, or small frames would cost more than they hold.
        let (had, has) = (bytes.len().div_ceil(1024), (bytes.len() + data.len()).div_ceil(1024));
        let more = app.bodies.try_acquire_many(u32::try_from(has - had).unwrap_or(u32::MAX)).map_err(|_| {
            let what = "too many large requests are being read at once; come again in a moment";
            Fault::new(FaultKind::Overloaded, what).retry_after(Duration::from_secs(1))
        })?;
        match &mut room {
            Some(room) => room.merge(more),
            none => *none = Some(more),
        }
        bytes.extend_from_slice(data);
    }
    Ok((bytes, trail))
}

/// JSON as a `T`. Fields that `T` does not have are noted in the trail.
pub(crate) fn understood<T: DeserializeOwned>(bytes: &[u8], trail: &Trail) -> Result<T, Fault> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let mut track = Track::new();
    let tracked = PathDeserializer::new(&mut json, &mut track);
    let read = serde_ignored::deserialize(tracked, |path| trail.ignored(&path.to_string()));
    let read = read.and_then(|read| json.end().map(|()| read));
    read.map_err(|e| {
        let said = e.to_string();
        let fault = Fault::invalid(format!("the body is not what this path takes: {said}"));
        // A field that is missing is named by the error, one that is wrong by where it stands.
        let missing = said.strip_prefix("missing field `").and_then(|rest| rest.split_once('`'));
        let path = track.path().to_string();
        match (missing, path.as_str()) {
            (Some((field, _)), "." | "") => fault.at(field),
            (_, "." | "" | "?") => fault,
            (_, path) => fault.at(path),
        }
    })
}
