//! Loading and unloading models at run time. (`GET /v1/models` and `GET /info` list them.)
//!
//! A client that can load models can read any directory as a model and fill the memory. So these
//! paths require the server's API key; a server without a key accepts them only from this machine,
//! and not through a proxy or from a web page other than its own.

use crate::app::App;
use crate::error::{Fault, FaultKind};
use crate::json_body::JsonBody;
use crate::layers::{host_of, is_from_foreign_page};
use crate::listen::Peer;
use crate::model_manager::{ModelSpec, ModelStatus};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use sconce_api::admin::{LoadRequest, ModelState, UnloadRequest};
use sconce_api::hosts::is_localhost;
use sconce_engine::hub::Reference;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Routes of this API.
pub(crate) fn routes(app: &Arc<App>) -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(load)).routes(routes!(unload)).layer(from_fn_with_state(app.clone(), guard))
}

/// Whether a request may change the models of the server: load, unload, download and delete them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MayManage(pub(super) bool);

impl MayManage {
    /// A request with an API key may, and one from this machine if the server has no key.
    fn of(app: &App, request: &Request) -> MayManage {
        // If the server has keys, the outer layer has checked the request's key.
        if !app.config.api_keys.is_empty() {
            return MayManage(true);
        }
        let head = request.headers();
        let direct = !head.contains_key("forwarded") && !head.contains_key("x-forwarded-for");
        // A web page in a browser on this machine is not a local program, unless it is the server's.
        let direct = direct && !is_from_foreign_page(app, request);
        let local = request.extensions().get::<Peer>().is_some_and(|peer| peer.local);
        MayManage(local && direct && host_of(request).is_none_or(is_localhost))
    }

    /// Refuses requests that may not.
    pub(super) fn check(self) -> Result<(), Fault> {
        match self.0 {
            true => Ok(()),
            false => {
                let what = "without --api-key, this path accepts requests from this machine only";
                Err(Fault::new(FaultKind::Forbidden, what))
            }
        }
    }
}

/// Refuses requests that may not change the models.
pub(super) async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match MayManage::of(&app, &request).check() {
        Ok(()) => next.run(request).await,
        Err(fault) => fault.into_response(),
    }
}

/// Records in each request whether it may change the models, for paths that only sometimes do.
pub(super) async fn mark(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let may_manage = MayManage::of(&app, &request);
    request.extensions_mut().insert(may_manage);
    next.run(request).await
}

/// Loads a model in addition to those already loaded.
#[utoipa::path(post, path = "/v1/models/load", request_body = LoadRequest,
    responses((status = 200, description = "The model is loaded", body = ModelState),
              (status = 202, description = "The model is loading", body = ModelState)))]
async fn load(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<LoadRequest>,
) -> Result<(StatusCode, Json<ModelState>), Fault> {
    let spec = spec(&app, &body)?;
    let id = spec.id.clone();
    context.set_model(&id);
    let mut changes = app.models.changes();
    let progress = app.models.load(spec)?;
    if !body.wait {
        let state = ModelState { model: id, state: "loading".into(), progress: Some(progress.snapshot()) };
        return Ok((StatusCode::ACCEPTED, Json(state)));
    }
    loop {
        let status = app.models.list().into_iter().find(|m| m.spec.id == id).map(|m| m.status);
        match status {
            Some(ModelStatus::Loading(_)) => {}
            Some(ModelStatus::Failed(why)) => {
                // Remove the entry: the client gets the error.
                let _ = app.models.unload(&id);
                return Err(Fault::invalid(format!("`{id}` could not be loaded: {why}")).at("model"));
            }
            Some(ModelStatus::ReloadFailed(why)) => {
                let _ = app.models.unload(&id);
                let what = format!("`{id}` could not be loaded: {why}");
                return Err(Fault::new(FaultKind::Memory, what).at("model"));
            }
            Some(ModelStatus::Ready | ModelStatus::Unloaded) => {
                return Ok((StatusCode::OK, Json(ModelState { model: id, state: "ready".into(), progress: None })));
            }
            None => {
                let what = format!("`{id}` was unloaded while it was loading");
                return Err(Fault::new(FaultKind::Conflict, what).at("model"));
            }
        }
        if changes.changed().await.is_err() {
            return Err(Fault::new(FaultKind::Unhealthy, "the server is shutting down"));
        }
    }
}

/// The command line's options, overridden by the request.
fn spec(app: &App, body: &LoadRequest) -> Result<ModelSpec, Fault> {
    let mut spec = ModelSpec::new(&body.model, app.models.defaults());
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
    }
    spec.load.llm.context = body.context.or(spec.load.llm.context);
    Ok(spec)
}

/// Unloads a model. Running requests finish.
#[utoipa::path(post, path = "/v1/models/unload", request_body = UnloadRequest,
    responses((status = 200, description = "The model is unloaded", body = ModelState)))]
async fn unload(
    State(app): State<Arc<App>>,
    JsonBody { body, .. }: JsonBody<UnloadRequest>,
) -> Result<Json<ModelState>, Fault> {
    let model = app.models.unload(&body.model)?;
    Ok(Json(ModelState { model, state: "unloaded".into(), progress: None }))
}
