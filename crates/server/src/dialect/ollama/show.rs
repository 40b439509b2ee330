//! `POST /api/show`: what a model is and can do.

use super::facts::Facts;
use super::model_name;
use super::models::describe;
use super::session::no_model;
use crate::app::App;
use crate::conversation::infill_tokens;
use crate::error::Fault;
use crate::json_body::JsonBody;
use crate::model_manager::ModelSummary;
use axum::Json;
use axum::extract::State;
use sconce_api::ollama::{ShowAnswer, ShowRequest};
use sconce_api::time::rfc3339;
use sconce_engine::{GenerationParams, Task, TaskModel};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(show))
}

/// What a model is and can do. Does not load it.
#[utoipa::path(post, path = "/api/show", request_body = ShowRequest,
    responses((status = 200, description = "The model", body = ShowAnswer)))]
async fn show(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<ShowRequest>,
) -> Result<Json<ShowAnswer>, Fault> {
    let given = body.model.or(body.name).unwrap_or_default();
    let name = model_name(&app, &given)?.to_owned();
    context.set_model(&name);
    let wanted = name.clone();
    let found = describe(&app, move |summary| summary.spec.is_called(&wanted)).await?.into_iter().next();
    let (summary, facts) = found.ok_or_else(|| no_model(&name))?;
    let task = summary.served.as_ref().map_or(summary.spec.task.or(facts.task), |served| Some(served.task));
    let model = summary.served.as_ref().map(|served| &served.model);
    let (template, parameters) = match model {
        Some(TaskModel::Generate(llm)) => {
            (llm.template(false).unwrap_or_default().to_owned(), parameters(llm.params()))
        }
        _ => Default::default(),
    };
    Ok(Json(ShowAnswer {
        template,
        parameters,
        model_info: model_info(&summary, &facts),
        capabilities: capabilities(task, model),
        modified_at: rfc3339(facts.modified),
        details: facts.details.clone(),
    }))
}

/// What the model can do. Whether a language model has a chat template is known once it is loaded.
fn capabilities(task: Option<Task>, model: Option<&TaskModel>) -> Vec<String> {
    let mut all = vec![match task {
        None => return Vec::new(),
        Some(Task::Generate | Task::Seq2Seq) => "completion",
        Some(Task::Embed | Task::M3 | Task::Clip) => "embedding",
        Some(other) => other.name(),
    }];
    if let Some(TaskModel::Generate(llm)) = model {
        // A template without tools gets them in the system message.
        all.extend(llm.template(true).map(|_| "tools"));
        all.extend(llm.reasoning().map(|_| "thinking"));
        all.extend(infill_tokens(llm).map(|_| "insert"));
    }
    all.into_iter().map(str::to_owned).collect()
}

/// The sampling parameters that differ from sampling the model's own distribution.
fn parameters(params: &GenerationParams) -> String {
    let plain = GenerationParams::default();
    let lines = [
        (params.temperature != plain.temperature).then(|| format!("temperature {}", params.temperature)),
        params.top_k.map(|k| format!("top_k {k}")),
        (params.top_p != plain.top_p).then(|| format!("top_p {}", params.top_p)),
        (params.min_p != plain.min_p).then(|| format!("min_p {}", params.min_p)),
        (params.repetition_penalty != plain.repetition_penalty)
            .then(|| format!("repeat_penalty {}", params.repetition_penalty)),
    ];
    lines.into_iter().flatten().collect::<Vec<_>>().join("\n")
}

/// The names of GGUF metadata, whatever the format of the files.
fn model_info(summary: &ModelSummary, facts: &Facts) -> Map<String, Value> {
    let family = &facts.details.family;
    let mut info = Map::new();
    info.insert("general.architecture".into(), json!(family));
    info.extend(facts.parameters.map(|n| ("general.parameter_count".to_owned(), json!(n))));
    if let Some(served) = &summary.served {
        let plan = served.model.loaded().plan();
        for (key, value) in
            [("context_length", plan.max_tokens), ("embedding_length", plan.dimension), ("vocab_size", plan.vocabulary)]
        {
            if value > 0 {
                info.insert(format!("{family}.{key}"), json!(value));
            }
        }
    }
    info
}
