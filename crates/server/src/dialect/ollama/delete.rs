//! `DELETE /api/delete`: removes a model from the server and its files from the caches.

use super::model_name;
use super::session::no_model;
use crate::app::App;
use crate::dialect::admin::MayManage;
use crate::error::{Fault, FaultKind};
use crate::json_body::JsonBody;
use axum::Extension;
use axum::extract::State;
use sconce_api::ollama::DeleteRequest;
use sconce_engine::hub::{HubError, Reference, Removal};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(delete))
}

/// Removes a model from the server, and its files from the caches. Only for requests that may load
/// models. Running requests finish.
#[utoipa::path(delete, path = "/api/delete", request_body = DeleteRequest,
    responses((status = 200, description = "The model is deleted")))]
async fn delete(
    State(app): State<Arc<App>>,
    Extension(may_manage): Extension<MayManage>,
    JsonBody { body, context }: JsonBody<DeleteRequest>,
) -> Result<(), Fault> {
    may_manage.check()?;
    let given = body.model.or(body.name).unwrap_or_default();
    let name = model_name(&app, &given)?.to_owned();
    context.set_model(&name);
    // Deleting a large model takes a while.
    let deleted = tokio::task::spawn_blocking(move || remove(&app, &name));
    deleted.await.unwrap_or_else(|e| {
        tracing::error!("deleting a model panicked: {e}");
        Err(Fault::new(FaultKind::Internal, "internal error, please report it; only this request failed"))
    })
}

/// Deletes nothing unless the model is in the caches: a user's own folder or file stays.
fn remove(app: &App, name: &str) -> Result<(), Fault> {
    let models = app.models.list();
    let served = models.iter().find(|summary| summary.spec.is_called(name));
    let given = served.map_or(name, |summary| &summary.spec.reference);
    let reference: Reference = given.parse().map_err(|e: HubError| Fault::invalid(e.to_string()).at("model"))?;
    let is_own = matches!(reference, Reference::Dir(_) | Reference::Gguf(_));
    let load = served.map_or_else(|| app.models.defaults(), |summary| summary.spec.load.clone());
    let removal = Removal::plan(&reference, &load.hub_options()).map_err(|e| match e {
        HubError::NotCached { .. } if !is_own => no_model(name),
        e => Fault::invalid(e.to_string()).at("model"),
    })?;
    let uses = |other: &str| other.parse::<Reference>().is_ok_and(|other| shares_files(&other, &reference));
    let id = served.map(|summary| &summary.spec.id);
    if let Some(other) = models.iter().find(|m| Some(&m.spec.id) != id && uses(&m.spec.reference)) {
        let what = format!("the model `{}` of this server uses the same files; unload it first", other.spec.id);
        return Err(Fault::new(FaultKind::Conflict, what).at("model"));
    }
    if let Some(id) = id {
        app.models.unload(id)?;
    }
    let what = removal.what.clone();
    removal.run().map_err(|e| Fault::new(FaultKind::Backend, format!("not everything was deleted: {e}")))?;
    tracing::info!(model = name, "deleted {what}");
    Ok(())
}

/// Whether two references may name the same files: one repository or wheel.
fn shares_files(a: &Reference, b: &Reference) -> bool {
    let repository = |reference: &Reference| match reference {
        Reference::Hub { repo, .. } => Some(repo.clone()),
        Reference::Short(short) => Some(short.repo.to_owned()),
        _ => None,
    };
    let package = |reference: &Reference| match reference {
        Reference::Wheel { package, .. } => Some(package.clone()),
        Reference::Short(short) => short.wheel.map(|(package, _)| package.to_owned()),
        _ => None,
    };
    let same = |a: Option<String>, b: Option<String>| a.is_some() && a == b;
    same(repository(a), repository(b)) || same(package(a), package(b))
}
