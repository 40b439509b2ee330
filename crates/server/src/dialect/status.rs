//! What runs where: models, memory, devices with doctor's verdict, and plans op by op. The page shows
//! them; our own API.

use super::openai::query::Params;
use super::tei::op_count;
use crate::app::App;
use crate::error::{Fault, FaultKind};
use crate::model_manager::{ModelStatus, ModelSummary};
use crate::served_model::ServedModel;
use crate::storage::blocking;
use axum::Json;
use axum::extract::State;
use sconce_api::status::{
    DeviceStatus, FailedKernel, Generation, MemoryStatus, ModelMemory, ModelPlan, ModelQueue, PlanQuery, PlanStep,
    RequestStatus, Status,
};
use sconce_engine::{Activity, Device, DeviceInfo, GraphPlan, Loaded, Step, TaskModel, Verdict};
use std::collections::BTreeSet;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Routes of this API.
pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(status)).routes(routes!(plan))
}

/// Models with their memory, queue and op counts by rung; devices with doctor's verdict.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, description = "About the server", body = Status)))]
async fn status(State(app): State<Arc<App>>) -> Result<Json<Status>, Fault> {
    let models = app.models.list();
    let used: BTreeSet<Device> =
        models.iter().filter_map(|m| m.served.as_ref()).map(|s| s.model.loaded().plan().device).collect();
    let verdict = app.models.defaults().verdict;
    // A driver may take a moment to answer.
    let devices = blocking(move || Ok(devices(&used, verdict.as_ref()))).await?;
    Ok(Json(Status {
        version: env!("CARGO_PKG_VERSION").into(),
        uptime_seconds: app.started_at.elapsed().as_secs(),
        requests: RequestStatus { running: app.permits().saturating_sub(app.free_permits()), limit: app.permits() },
        memory: MemoryStatus { planned_bytes: app.models.planned_bytes(), budget_bytes: app.config.memory_budget },
        devices,
        models: models.iter().map(model_status).collect(),
    }))
}

/// The CPU, and the devices that models use. Others stay closed: opening a GPU takes memory on it.
fn devices(used: &BTreeSet<Device>, verdict: Option<&Verdict>) -> Vec<DeviceStatus> {
    let others = used.iter().copied().filter(|device| *device != Device::Cpu);
    let known = std::iter::once(Device::Cpu).chain(others).filter_map(|device| device.info().ok());
    known.map(|info| device_status(info, verdict)).collect()
}

fn device_status(info: DeviceInfo, verdict: Option<&Verdict>) -> DeviceStatus {
    let failed = verdict.and_then(|verdict| verdict.failed(&info));
    let kernel =
        |f: sconce_engine::Withdrawn| FailedKernel { op: f.op, dtype: f.dtype.to_string(), rung: f.rung.to_string() };
    DeviceStatus {
        device: info.device.to_string(),
        description: info.description,
        free_bytes: info.free_bytes,
        total_bytes: info.total_bytes,
        doctor: failed.map(|all| all.into_iter().map(kernel).collect()),
    }
}

fn model_status(summary: &ModelSummary) -> sconce_api::status::ModelStatus {
    let served = summary.served.as_deref();
    let loaded = served.map(|s| s.model.loaded());
    let plan = loaded.map(Loaded::plan);
    let (error, progress) = match &summary.status {
        ModelStatus::Failed(why) | ModelStatus::ReloadFailed(why) => (Some(why.clone()), None),
        ModelStatus::Loading(progress) => (None, Some(progress.clone())),
        ModelStatus::Ready | ModelStatus::Unloaded => (None, None),
    };
    sconce_api::status::ModelStatus {
        id: summary.spec.id.clone(),
        state: summary.status.name().into(),
        error,
        progress,
        task: served.map(|s| s.task).or(summary.spec.task).map(|task| task.to_string()),
        device: plan.map(|p| p.runs_on()),
        engine: plan.map(|p| p.graph.as_ref().map_or_else(|| "native".into(), GraphPlan::engine)),
        dtype: plan.map(|p| p.format()),
        dtype_reason: plan.map(|p| p.dtype_reason.clone()),
        source: loaded.map(|m| m.files().origin.to_string()),
        max_tokens: plan.map(|p| p.max_tokens),
        dimension: plan.map(|p| p.dimension),
        leases: summary.leases,
        memory: served.map(memory),
        queue: loaded.map(|m| m.queue()).map(|q| ModelQueue {
            requests: q.requests,
            tokens: q.tokens,
            batch_sequences: q.batch_sequences,
            batch_tokens: q.batch_tokens,
        }),
        generation: served.and_then(generation),
        ran: loaded.map(|m| m.op_calls()).unwrap_or_default().into_iter().map(op_count).collect(),
    }
}

fn memory(served: &ServedModel) -> ModelMemory {
    let loaded = served.model.loaded();
    let plan = loaded.plan();
    ModelMemory {
        weights_bytes: plan.weights,
        cache_bytes: plan.cache,
        workspace_bytes: plan.workspace,
        planned_bytes: served.bytes(),
        peak_bytes: loaded.peak_bytes(),
    }
}

fn generation(served: &ServedModel) -> Option<Generation> {
    let TaskModel::Generate(llm) = &served.model else { return None };
    let Activity { running, waiting, cache_used, prefix_queries, prefix_hits, prompt_tokens, generated_tokens, .. } =
        llm.activity();
    Some(Generation { running, waiting, cache_used, prefix_queries, prefix_hits, prompt_tokens, generated_tokens })
}

/// The plan of a loaded model, op by op: the rung that takes each call, and why no better one does.
#[utoipa::path(get, path = "/v1/plan", params(PlanQuery),
    responses((status = 200, description = "The plan", body = ModelPlan)))]
async fn plan(State(app): State<Arc<App>>, Params(query): Params<PlanQuery>) -> Result<Json<ModelPlan>, Fault> {
    let models = app.models.list();
    let found = match &query.model {
        Some(name) => models.iter().find(|m| m.spec.is_called(name)),
        None => models.iter().find(|m| m.served.is_some()),
    };
    let absent = || {
        let what = match &query.model {
            Some(name) => format!("there is no model `{name}` on this server"),
            None => "this server has no model in memory; load one with POST /v1/models/load".into(),
        };
        Fault::new(FaultKind::NoModel, what).at("model")
    };
    let summary = found.ok_or_else(absent)?;
    let unloaded = || {
        let what = format!("the model `{}` is not in memory; its next request loads it", summary.spec.id);
        Fault::new(FaultKind::NoModel, what).at("model")
    };
    Ok(Json(model_plan(summary.served.as_deref().ok_or_else(unloaded)?)))
}

fn model_plan(served: &ServedModel) -> ModelPlan {
    let loaded = served.model.loaded();
    let (plan, ran) = (loaded.plan(), loaded.op_calls());
    let step = |(step, calls): (&Step, usize)| {
        let (dtype, rung) = (step.dtype.to_string(), step.rung.as_ref().ok().map(ToString::to_string));
        let alike = ran.iter().filter(|r| r.op == step.op && r.dtype == dtype && Some(&r.rung) == rung.as_ref());
        let ran = alike.map(|r| r.calls).sum();
        let refusal = step.rung.as_ref().err();
        PlanStep {
            op: step.op.into(),
            at: step.at.clone(),
            what: step.detail.clone(),
            dtype,
            rung,
            calls,
            ran,
            why_not: step.why_not.iter().chain(refusal).cloned().collect(),
        }
    };
    ModelPlan {
        model: served.id.clone(),
        task: served.task.to_string(),
        device: plan.runs_on(),
        dtype: plan.format(),
        batch_tokens: plan.batch_tokens,
        workspace_bytes: plan.workspace,
        graph: plan.graph.as_ref().map(|graph| format!("{}: {} on {}", graph.engine(), graph.paths(), graph.provider)),
        steps: plan.grouped_steps().into_iter().map(step).collect(),
    }
}
