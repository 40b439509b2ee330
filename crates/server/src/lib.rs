//! HTTP server for transformer models with the APIs of OpenAI, text-embeddings-inference, Cohere,
//! Jina and vLLM: many models on one port, one file or folder per API in `dialect/`.
//!
//! ```no_run
//! # async fn example() -> Result<(), sconce_server::Error> {
//! use sconce_engine::LoadOptions;
//! use sconce_server::{Config, ModelSpec, Stop, serve};
//!
//! let minilm = ModelSpec::new("minilm", LoadOptions::from_env().expect("an environment"));
//! serve(Config::default(), vec![minilm], Stop::on_signals()).await
//! # }
//! ```

mod answer;
mod app;
mod call;
mod config;
mod conversation;
pub mod dialect;
mod embedding;
mod error;
mod http_context;
mod json_body;
mod layers;
mod listen;
mod metrics;
mod model_manager;
mod multipart;
mod openapi;
mod page;
mod served_model;
mod sse;
mod stop;
mod storage;
mod timeout_stream;
mod tls;
#[cfg(feature = "otlp")]
mod traces;
#[cfg(not(feature = "otlp"))]
#[path = "no_traces.rs"]
mod traces;
#[cfg(feature = "index")]
mod vector_stores;

pub use answer::{Answer, Compute};
pub use app::App;
pub use call::{Call, Usage};
pub use config::{Config, Listen, Secret};
pub use dialect::worker::Membership;
pub use error::{Dialect, Fault, FaultKind};
pub use http_context::{HttpContext, fresh_id};
pub use json_body::JsonBody;
pub use layers::presented_key;
pub use listen::{Bound, Error, Server};
pub use metrics::{FinishedAnswer, LlmMetrics, Metrics};
pub use model_manager::{
    Lease, LoadProgress, ModelHandle, ModelManager, ModelSpec, ModelStatus, ModelSummary, Reservation,
};
pub use sconce_engine::{RequestContext, Times};
pub use served_model::{RequestKind, ServedModel};
pub use stop::Stop;
pub use timeout_stream::TimeoutStream;
pub use tls::Tls;
pub use traces::Traces;

/// Binds the listener, loads `models` and serves requests until `stop` is signalled.
pub async fn serve(config: Config, models: Vec<ModelSpec>, stop: Stop) -> Result<(), Error> {
    Server::bind(config, models, stop).await?.run().await
}
