//! Models at run time: load, unload. (`GET /v1/models` and `GET /info` list them.)
//!
//! Whoever may load a model may read any directory as one and fill the memory. So these paths want the server's key; where it has
//! none, they are there for this machine alone, and not for what a proxy or a web page sends from it.

use crate::app::App;
use crate::asked::Asked;
use crate::error::{Fault, FaultKind};
use crate::house::{ModelSpec, Standing};
use crate::listen::Peer;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{HOST, ORIGIN};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use sconce_api::admin::{LoadRequest, ModelState, UnloadRequest};
use sconce_engine::WeightFormat;
use sconce_engine::hub::Reference;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Its paths.
pub(crate) fn routes(app: &Arc<App>) -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(load)).routes(routes!(unload)).layer(from_fn_with_state(app.clone(), guard))
}

/// Lets those in who may.
pub(super) async fn guard(
    State(app): State<Arc<App>>,
    peer: Option<Extension<Peer>>,
    request: Request,
    next: Next,
) -> Response {
    // With a key, the layer around everything has asked for it.
    if app.config.api_keys.is_empty() {
        let head = request.headers();
        let host = head.get(HOST).and_then(|h| h.to_str().ok()).or(request.uri().authority().map(|a| a.as_str()));
        let direct = !head.contains_key("forwarded") && !head.contains_key("x-forwarded-for");
        // A page that somebody on this machine looks at is not somebody on this machine.
        let direct = direct && !head.contains_key(ORIGIN);
        if !(peer.is_some_and(|p| p.local) && direct && host.is_none_or(is_this_machine)) {
            let what = "without an API key (--api-key) this is for programs on this machine alone";
            return Fault::new(FaultKind::Forbidden, what).into_response();
        }
    }
    next.run(request).await
}

/// Whether a `Host` is a name of this machine itself: a page that has its own name point here is not.
fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Loads a model beside those that are there.
#[utoipa::path(post, path = "/v1/models/load", request_body = LoadRequest,
    responses((status = 200, description = "It is loaded", body = ModelState),
              (status = 202, description = "It is being loaded", body = ModelState)))]
async fn load(
    State(app): State<Arc<App>>,
    Asked { body, trail }: Asked<LoadRequest>,
) -> Result<(StatusCode, Json<ModelState>), Fault> {
    let spec = spec(&app, &body)?;
    let id = spec.id.clone();
    trail.asks(&id);
    let mut changes = app.house.changes();
    let gauge = app.house.load(spec)?;
    if !body.wait {
        let told = ModelState { model: id, state: "loading".into(), progress: Some(gauge.told()) };
        return Ok((StatusCode::ACCEPTED, Json(told)));
    }
    loop {
        let standing = app.house.list().into_iter().find(|m| m.spec.id == id).map(|m| m.standing);
        match standing {
            Some(Standing::Loading(_)) => {}
            Some(Standing::Failed(why)) => {
                // Nothing of it stays: who asked has been told.
                let _ = app.house.unload(&id);
                return Err(Fault::invalid(format!("`{id}` could not be loaded: {why}")).at("model"));
            }
            Some(Standing::Troubled(why)) => {
                let _ = app.house.unload(&id);
                let what = format!("`{id}` could not be loaded: {why}");
                return Err(Fault::new(FaultKind::Memory, what).at("model"));
            }
            Some(Standing::Ready | Standing::Resting) => {
                return Ok((StatusCode::OK, Json(ModelState { model: id, state: "ready".into(), progress: None })));
            }
            None => {
                let what = format!("`{id}` was unloaded before it was loaded");
                return Err(Fault::new(FaultKind::Conflict, what).at("model"));
            }
        }
        if changes.changed().await.is_err() {
            return Err(Fault::new(FaultKind::Unhealthy, "the server is ending"));
        }
    }
}

/// As the command line would have it, but for what the request says.
fn spec(app: &App, body: &LoadRequest) -> Result<ModelSpec, Fault> {
    let mut spec = ModelSpec::new(&body.model, app.house.defaults());
    if let Some(name) = &body.name {
        spec.id = name.clone();
    }
    for (given, field) in [(&spec.reference, "model"), (&spec.id, "name")] {
        if given.trim().is_empty() {
            return Err(Fault::invalid(format!("`{field}` is empty")).at(field));
        }
    }
    let refused = |field: &'static str| move |e: &dyn std::fmt::Display| Fault::invalid(e.to_string()).at(field);
    spec.reference.parse::<Reference>().map_err(|e| refused("model")(&e))?;
    if let Some(task) = &body.task {
        spec.task = Some(task.parse().map_err(|e| refused("task")(&e))?);
    }
    if let Some(device) = &body.device {
        spec.load.device = device.parse().map_err(|e| refused("device")(&e))?;
    }
    if let Some(dtype) = &body.dtype {
        spec.load.dtype = dtype.parse().map_err(|e| refused("dtype")(&e))?;
        // What the command line chose was for what it named.
        (spec.load.auto, spec.load.weight_format) =
            (false, spec.load.weight_format.filter(|keep| *keep != WeightFormat::Bytes));
    }
    spec.load.llm.context = body.context.or(spec.load.llm.context);
    Ok(spec)
}

/// Forgets a model. Requests that it is answering are answered.
#[utoipa::path(post, path = "/v1/models/unload", request_body = UnloadRequest,
    responses((status = 200, description = "It is gone", body = ModelState)))]
async fn unload(
    State(app): State<Arc<App>>,
    Asked { body, .. }: Asked<UnloadRequest>,
) -> Result<Json<ModelState>, Fault> {
    let model = app.house.unload(&body.model)?;
    Ok(Json(ModelState { model, state: "unloaded".into(), progress: None }))
}

#[cfg(test)]
mod tests {
    use super::is_this_machine;

    #[test]
    fn only_this_machines_own_names_are_its() {
        for host in ["localhost", "LocalHost:8080", "127.0.0.1:80", "[::1]:8080", "[::1]"] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "10.0.0.1", "[fe80::1]:80", ""] {
            assert!(!is_this_machine(host), "{host}");
        }
    }
}
