//! State shared by all handlers.

use crate::batches::Batches;
use crate::call::Call;
use crate::config::{Config, Listen};
use crate::dialect::ollama::{FactsCache, PullPermits};
use crate::dialect::worker::Member;
use crate::error::{Fault, FaultKind};
use crate::http_context::HttpContext;
use crate::metrics::Metrics;
use crate::model_manager::ModelManager;
use crate::served_model::RequestKind;
use crate::stop::Stop;
use crate::storage::Storage;
use crate::storage::files::FileStore;
use crate::storage::responses::ResponseStore;
#[cfg(feature = "index")]
use crate::vector_stores::{Surroundings, VectorStores};
use sconce_api::hosts::{AllowedHosts, is_localhost};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Bodies of the largest size that may be read at once; of smaller bodies, correspondingly more.
const MAX_LARGE_BODIES: usize = 64;
/// Files that may be uploaded at once.
const MAX_UPLOADS: usize = 16;
/// Conversations of stored responses that may be in memory at once: each may be as large as many bodies.
const MAX_HISTORIES: usize = 8;
/// Most KiB of bodies at once that the semaphore can count.
const MAX_BODY_KIB: usize = u32::MAX as usize / 2;

fn permits(config: &Config) -> usize {
    config.max_concurrent.clamp(1, Semaphore::MAX_PERMITS)
}

/// State of a server: `State<Arc<App>>` of every handler.
pub struct App {
    /// The configuration.
    pub config: Config,
    /// The model manager.
    pub models: Arc<ModelManager>,
    /// Prometheus metrics.
    pub metrics: Metrics,
    /// Signals shutdown.
    pub stop: Stop,
    /// When the server started.
    pub started_at: Instant,
    /// The host names that requests may have.
    pub(crate) allowed_hosts: AllowedHosts,
    /// State of a worker of a pool.
    pub(crate) member: Option<Arc<Member>>,
    /// Uploaded files; `None` without --data-dir.
    storage: Option<Storage>,
    /// Stored responses, in the data folder or in memory.
    pub(crate) responses: Arc<ResponseStore>,
    batches: Option<Batches>,
    #[cfg(feature = "index")]
    vector_stores: Option<VectorStores>,
    /// Uploads that may still begin.
    pub(crate) uploads: Semaphore,
    /// Conversations of stored responses that may still be read into memory.
    pub(crate) histories: Semaphore,
    /// Requests that may still begin to wait for a model that is being loaded.
    pub(crate) waiting: Semaphore,
    /// What is known about the files of models.
    pub(crate) facts: FactsCache,
    /// Downloads that may still begin.
    pub(crate) pulls: PullPermits,
    gate: Arc<Semaphore>,
    /// Permits of the lines of batches, whose number is bounded elsewhere: they must not take those of
    /// clients.
    background: Arc<Semaphore>,
    /// KiB of bodies that may still be read.
    pub(crate) bodies: Semaphore,
}

impl App {
    /// Opens the data folder, if the configuration has one. The error is for the person who started
    /// the server.
    pub(crate) fn new(config: Config, models: Arc<ModelManager>, stop: Stop) -> Result<Arc<App>, String> {
        let storage = config.data_dir.as_deref().map(Storage::open).transpose()?;
        let responses = match &storage {
            Some(storage) => storage.responses.clone(),
            None => Arc::new(ResponseStore::in_memory()),
        };
        let batches = storage.as_ref().map(|storage| Batches::open(&storage.below("batches")?, storage.files.clone()));
        let batches = batches.transpose()?;
        #[cfg(feature = "index")]
        let vector_stores = match &storage {
            Some(storage) => Some(vector_stores(&config, storage, (&models, &stop))?),
            None => None,
        };
        let (gate, waiting) = (Arc::new(Semaphore::new(permits(&config))), Semaphore::new(permits(&config)));
        let bodies =
            Semaphore::new((config.payload_limit / 1024).saturating_mul(MAX_LARGE_BODIES).clamp(1, MAX_BODY_KIB));
        let metrics = Metrics::new();
        let member = config.worker.clone().map(|w| Arc::new(Member::new(w, metrics.registry())));
        let mut addresses = config.more_hosts.iter().map(String::as_str);
        let address = match &config.listen {
            // An address beyond loopback, if there is one.
            Listen::Tcp { host, .. } if !is_localhost(host) => Some(host.as_str()),
            Listen::Tcp { host, .. } => Some(addresses.find(|host| !is_localhost(host)).unwrap_or(host)),
            Listen::Unix(_) => None,
        };
        let allowed_hosts = AllowedHosts::new(address, !config.api_keys.is_empty(), &config.allowed_hosts);
        let started_at = Instant::now();
        Ok(Arc::new(App {
            config,
            models,
            metrics,
            stop,
            started_at,
            allowed_hosts,
            member,
            storage,
            responses,
            batches,
            #[cfg(feature = "index")]
            vector_stores,
            uploads: Semaphore::new(MAX_UPLOADS),
            histories: Semaphore::new(MAX_HISTORIES),
            waiting,
            facts: FactsCache::default(),
            pulls: PullPermits::default(),
            gate,
            background: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            bodies,
        }))
    }

    /// The uploaded files.
    pub(crate) fn files(&self) -> Result<&Arc<FileStore>, Fault> {
        self.storage.as_ref().map(|storage| &storage.files).ok_or_else(no_storage)
    }

    /// The batches.
    pub(crate) fn batches(&self) -> Result<&Batches, Fault> {
        self.batches.as_ref().ok_or_else(no_storage)
    }

    /// The vector stores.
    #[cfg(feature = "index")]
    pub(crate) fn vector_stores(&self) -> Result<&VectorStores, Fault> {
        self.vector_stores.as_ref().ok_or_else(no_storage)
    }

    /// Deletes a file, and removes it from all vector stores.
    pub(crate) fn delete_file(&self, id: &str) -> Result<(), Fault> {
        let files = self.files()?;
        #[cfg(feature = "index")]
        self.vector_stores()?.forget(id)?;
        files.remove(id)
    }

    /// Deletes the files, batches and responses whose time has passed.
    pub(crate) fn delete_expired(&self) {
        self.responses.delete_expired();
        if let Some(batches) = &self.batches {
            batches.delete_expired();
        }
        for id in self.files().map(|files| files.expired()).unwrap_or_default() {
            if let Err(fault) = self.delete_file(&id) {
                tracing::warn!(file = id, "cannot delete an expired file: {fault}");
            }
        }
    }

    /// Ends the work in the data folder, and lets another server use it.
    pub(crate) fn close_storage(&self) {
        #[cfg(feature = "index")]
        if let Some(stores) = &self.vector_stores {
            stores.close();
        }
        if let Some(storage) = &self.storage {
            storage.close();
        }
    }

    /// Starts a call: leases a model that supports `kind` and takes a concurrency permit, both
    /// until the call ends. `method` is its label in the metrics.
    pub fn call(
        self: &Arc<Self>,
        method: &'static str,
        context: &Arc<HttpContext>,
        model: Option<&str>,
        kind: RequestKind,
    ) -> Result<Call, Fault> {
        context.mark_counted();
        self.begin(method, context, model, kind).inspect_err(|fault| self.metrics.refused(method, fault))
    }

    fn begin(
        self: &Arc<Self>,
        method: &'static str,
        context: &Arc<HttpContext>,
        model: Option<&str>,
        kind: RequestKind,
    ) -> Result<Call, Fault> {
        if let Some(model) = model {
            context.set_model(model);
        }
        if self.stop.is_draining() {
            return Err(Fault::new(FaultKind::Unhealthy, "the server is shutting down and accepts no new requests"));
        }
        let lease = self.models.lease(model, kind)?;
        context.set_model(&lease.served().id);
        let gate = if context.is_background() { &self.background } else { &self.gate };
        let permit = gate.clone().try_acquire_owned().map_err(|_| self.overloaded())?;
        Ok(Call::new(self, method, context.clone(), lease, permit))
    }

    /// The error of a request above --max-concurrent-requests.
    pub(crate) fn overloaded(&self) -> Fault {
        let limit = self.config.max_concurrent;
        let what = format!(
            "the server is at its limit of {limit} concurrent requests (--max-concurrent-requests); retry in a moment"
        );
        Fault::new(FaultKind::Overloaded, what).retry_after(Duration::from_secs(1))
    }

    /// Total concurrency permits.
    pub(crate) fn permits(&self) -> usize {
        permits(&self.config)
    }

    /// Free concurrency permits.
    pub fn free_permits(&self) -> usize {
        self.gate.available_permits()
    }

    /// Refuses an empty batch, and one that exceeds --max-client-batch-size.
    pub fn check_batch(&self, inputs: usize, param: &str) -> Result<(), Fault> {
        let limit = self.config.max_client_batch;
        match inputs {
            0 => Err(Fault::new(FaultKind::Empty, format!("`{param}` is empty; send at least one item")).at(param)),
            n if n > limit => {
                let what =
                    format!("`{param}` has {n} items; the limit is {limit} per request (--max-client-batch-size)");
                Err(Fault::new(FaultKind::TooMany, what).at(param))
            }
            _ => Ok(()),
        }
    }
}

/// The error of a server without a data folder.
fn no_storage() -> Fault {
    let what = "this server keeps no files, batches and vector stores; start it with --data-dir DIR (SCONCE_DATA_DIR)";
    Fault::new(FaultKind::NoRoute, what).code("no_data_dir")
}

#[cfg(feature = "index")]
fn vector_stores(
    config: &Config,
    storage: &Storage,
    (models, stop): (&Arc<ModelManager>, &Stop),
) -> Result<VectorStores, String> {
    use sconce_index::read::{Parser, ParserCommand};
    let this_program = || ParserCommand::this_program().map_err(|e| format!("cannot find this program: {e}"));
    let parser = Parser::new(config.parser.clone().map_or_else(this_program, Ok)?);
    let around = Surroundings { files: storage.files.clone(), models: models.clone(), stop: stop.clone(), parser };
    VectorStores::open(&storage.below("vector_stores")?, around)
}
