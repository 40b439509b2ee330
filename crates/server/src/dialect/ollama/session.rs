//! The model of a request: named, loaded if it is not, and kept as long as the request asks.

use super::model_name;
use crate::app::App;
use crate::dialect::admin::MayManage;
use crate::error::{Fault, FaultKind};
use crate::http_context::HttpContext;
use crate::model_manager::Lease;
use crate::served_model::RequestKind;
use sconce_api::ollama::KeepAlive;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A request that is about to use a model.
pub(super) struct Session<'a> {
    pub(super) app: &'a Arc<App>,
    pub(super) context: &'a Arc<HttpContext>,
    pub(super) may_manage: MayManage,
    pub(super) keep_alive: Option<KeepAlive>,
}

/// A loaded model.
pub(super) struct LoadedModel {
    /// The server's name of it.
    pub(super) name: String,
    /// Keeps it loaded until the request has a lease of its own.
    pub(super) lease: Lease,
    /// How long the request waited for it.
    pub(super) load: Duration,
}

impl Session<'_> {
    /// Waits until the model is loaded.
    pub(super) async fn open(&self, given: &str, kind: RequestKind) -> Result<LoadedModel, Fault> {
        let name = model_name(self.app, given)?;
        self.context.set_model(name);
        let started_at = Instant::now();
        let deadline = self.app.config.request_timeout.map(|timeout| self.context.started_at + timeout);
        // A request that waits has no permit yet, but its body takes memory.
        let waiting = self.app.waiting.try_acquire().map_err(|_| self.app.overloaded())?;
        let lease = self.app.models.lease_loaded(name, kind, deadline).await?;
        drop(waiting);
        match self.keep_alive {
            Some(keep_alive) if self.may_manage.0 => {
                self.app.models.keep_alive(name, keep_alive);
            }
            // Whoever may not unload models must not do it with a time-out either.
            Some(_) => self.context.note_ignored("keep_alive"),
            None => {}
        }
        Ok(LoadedModel { name: name.to_owned(), lease, load: started_at.elapsed() })
    }

    /// Answers a request without a prompt, which only loads the model, or with a `keep_alive` of 0
    /// unloads it. Returns the reason why it is done, and how long loading took.
    pub(super) async fn load_or_unload(&self, given: &str) -> Result<(&'static str, Duration), Fault> {
        if self.keep_alive != Some(KeepAlive::For(Duration::ZERO)) {
            let loaded = self.open(given, RequestKind::Tokenize).await?;
            return Ok(("load", loaded.load));
        }
        self.may_manage.check()?;
        let name = model_name(self.app, given)?;
        self.context.set_model(name);
        match self.app.models.keep_alive(name, KeepAlive::For(Duration::ZERO)) {
            true => Ok(("unload", Duration::ZERO)),
            false => Err(no_model(name)),
        }
    }
}

pub(super) fn no_model(name: &str) -> Fault {
    let what = format!("there is no model `{name}` on this server; GET /api/tags lists the models");
    Fault::new(FaultKind::NoModel, what).at("model")
}

/// Nanoseconds, as all durations of this API are.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
