//! JSON body extractor: bounded in bytes and time; records every field that the type does not have.

use crate::app::App;
use crate::error::{Fault, FaultKind};
use crate::http_context::HttpContext;
use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use serde_path_to_error::{Deserializer as PathDeserializer, Track};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::SemaphorePermit;

/// A parsed JSON body. Like `axum::Json`, with the limits of this server.
pub struct JsonBody<T> {
    /// The parsed value.
    pub body: T,
    /// The request's context.
    pub context: Arc<HttpContext>,
}

impl<T: DeserializeOwned> FromRequest<Arc<App>> for JsonBody<T> {
    type Rejection = Fault;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Fault> {
        let (bytes, context) = read(request, app).await?;
        Ok(JsonBody { body: parse(&bytes, &context)?, context })
    }
}

/// Reads the bytes of a body whose content type is JSON.
pub(crate) async fn read(request: Request, app: &App) -> Result<(Vec<u8>, Arc<HttpContext>), Fault> {
    let context =
        request.extensions().get::<Arc<HttpContext>>().cloned().unwrap_or_else(|| HttpContext::new(request.headers()));
    let media = request.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let kind = media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if kind != "application/json" && !(kind.starts_with("application/") && kind.ends_with("+json")) {
        let what = format!("the body must be JSON with `Content-Type: application/json`, not `{kind}`");
        return Err(Fault::new(FaultKind::Media, what));
    }
    let limit = app.config.payload_limit;
    let too_large = || {
        let what = format!("the body is larger than {limit} bytes; send less per request, or raise --payload-limit");
        Fault::new(FaultKind::TooLarge, what)
    };
    let mut body: Body = request.into_body();
    // A declared length is refused before reading.
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let deadline = app.config.request_timeout.map(|timeout| context.started_at + timeout);
    let (mut bytes, mut permits) = (Vec::new(), None::<SemaphorePermit<'_>>);
    loop {
        let idle_deadline = Instant::now() + app.config.silence;
        let until = deadline.map_or(idle_deadline, |deadline| deadline.min(idle_deadline));
        let frame = tokio::time::timeout_at(until.into(), body.frame()).await;
        let slow = |_| {
            Fault::new(
                FaultKind::ClientTooSlow,
                "the body did not arrive in time; send it faster, or send less per request",
            )
        };
        let frame = match frame.map_err(slow)? {
            None => break,
            Some(frame) => frame.map_err(|e| Fault::invalid(format!("cannot read the body: {e}")))?,
        };
        let Some(data) = frame.data_ref() else { continue };
        if bytes.len() + data.len() > limit {
            return Err(too_large());
        }
        // Permits are whole KiB of the body so far; rounding up each small frame would overcount.
        let (had, has) = (bytes.len().div_ceil(1024), (bytes.len() + data.len()).div_ceil(1024));
        let permit = app.bodies.try_acquire_many(u32::try_from(has - had).unwrap_or(u32::MAX)).map_err(|_| {
            let what = "too many large requests are being read at once; retry in a moment";
            Fault::new(FaultKind::Overloaded, what).retry_after(Duration::from_secs(1))
        })?;
        match &mut permits {
            Some(permits) => permits.merge(permit),
            none => *none = Some(permit),
        }
        bytes.extend_from_slice(data);
    }
    Ok((bytes, context))
}

/// Parses JSON as a `T`. Records fields that `T` does not have in the context.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8], context: &HttpContext) -> Result<T, Fault> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let mut track = Track::new();
    let tracked = PathDeserializer::new(&mut json, &mut track);
    // The path has a `?` for each optional field on the way, which is no part of the name.
    let note = |path: serde_ignored::Path<'_>| context.note_ignored(&path.to_string().replace(".?", ""));
    let parsed = serde_ignored::deserialize(tracked, note);
    let parsed = parsed.and_then(|value| json.end().map(|()| value));
    parsed.map_err(|e| {
        let message = e.to_string();
        let fault = Fault::invalid(format!("the body does not match this path's request schema: {message}"));
        // serde names a missing field in its message, and an invalid one by its path.
        let missing = message.strip_prefix("missing field `").and_then(|rest| rest.split_once('`'));
        let path = track.path().to_string();
        match (missing, path.as_str()) {
            (Some((field, _)), "." | "") => fault.at(field),
            (_, "." | "" | "?") => fault,
            (_, path) => fault.at(path),
        }
    })
}
