//! What clients ask about a server: `/props`, `/slots`, `/lora-adapters` and `/models`.

use super::generation;
use crate::app::App;
use crate::call::Call;
use crate::dialect::openai;
use crate::error::Fault;
use crate::http_context::HttpContext;
use crate::served_model::RequestKind;
use axum::extract::State;
use axum::{Extension, Json};
use sconce_api::llama_cpp::{DefaultSettings, LoraAdapter, Modalities, Props, Slot};
use sconce_api::openai::models::ModelList;
use sconce_engine::Llm;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(props)).routes(routes!(slots)).routes(routes!(adapters)).routes(routes!(models))
}

/// Properties of the server and its first language model. They cannot be changed.
#[utoipa::path(get, path = "/props", responses((status = 200, description = "The properties", body = Props)))]
async fn props(
    State(app): State<Arc<App>>,
    Extension(context): Extension<Arc<HttpContext>>,
) -> Result<Json<Props>, Fault> {
    let call = app.call("props", &context, None, RequestKind::Generate)?;
    let path = app.models.list().into_iter().find(|model| model.spec.id == call.served().id);
    let path = path.map_or_else(String::new, |model| model.spec.reference.clone());
    let props = call.run(move |served, _| {
        let llm = generation::language_model(served)?;
        let (bos_token, eos_token) = (text(llm, llm.begin_token()), text(llm, llm.end_tokens().next()));
        Ok(Props {
            default_generation_settings: DefaultSettings {
                params: generation::default_settings(llm.params()),
                n_ctx: llm.context(),
            },
            total_slots: llm.sequences(),
            model_alias: served.id.clone(),
            model_path: path,
            modalities: Modalities::default(),
            endpoint_slots: true,
            endpoint_props: false,
            endpoint_metrics: true,
            chat_template: llm.template(false).unwrap_or_default().to_owned(),
            bos_token,
            eos_token,
            build_info: format!("sconce-{}", env!("CARGO_PKG_VERSION")),
            is_sleeping: false,
        })
    });
    let props = props.await?;
    call.done(crate::call::Usage::default());
    Ok(Json(props))
}

fn text(llm: &Llm, token: Option<u32>) -> String {
    token.and_then(|id| llm.token(id).ok()).map_or_else(String::new, |token| token.text)
}

/// The sequences that the first language model may run at once, and which of them it runs.
#[utoipa::path(get, path = "/slots", responses((status = 200, description = "The slots", body = Vec<Slot>)))]
async fn slots(
    State(app): State<Arc<App>>,
    Extension(context): Extension<Arc<HttpContext>>,
) -> Result<Json<Vec<Slot>>, Fault> {
    let call: Call = app.call("slots", &context, None, RequestKind::Generate)?;
    let llm = generation::language_model(call.served())?;
    let (n_ctx, running) = (llm.context(), llm.activity().running);
    let slot = |id| Slot { id, n_ctx, speculative: false, is_processing: id < running };
    let slots = (0..llm.sequences()).map(slot).collect();
    call.done(crate::call::Usage::default());
    Ok(Json(slots))
}

/// The adapters of the weights: none.
#[utoipa::path(get, path = "/lora-adapters", responses(
    (status = 200, description = "The adapters", body = Vec<LoraAdapter>)))]
async fn adapters() -> Json<Vec<LoraAdapter>> {
    Json(Vec::new())
}

/// The same as `/v1/models`.
#[utoipa::path(get, path = "/models", responses((status = 200, description = "The models", body = ModelList)))]
async fn models(State(app): State<Arc<App>>) -> Json<ModelList> {
    Json(openai::model_list(&app))
}
