//! Sconce over HTTP, in the dialects that clients already speak: one port, many models, one file a dialect.
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
mod asked;
mod call;
mod config;
pub mod dialect;
mod embedding;
mod error;
mod house;
mod layers;
mod listen;
mod metrics;
mod openapi;
mod patient;
mod served;
mod sse;
mod stop;
mod traces;
mod trail;

pub use answer::{Answer, Compute};
pub use app::App;
pub use asked::Asked;
pub use call::{Call, Usage};
pub use config::{Config, Listen, Secret};
pub use dialect::worker::Membership;
pub use error::{Dialect, Fault, FaultKind};
pub use house::{Gauge, Guest, House, Lease, ModelSpec, Room, Shown, Standing};
pub use listen::{Bound, Error, Server};
pub use metrics::{Finished, Language, Metrics};
pub use sconce_engine::{RequestContext, Times};
pub use served::{Served, Want};
pub use stop::Stop;
pub use traces::Traces;
pub use trail::{Trail, fresh_id};

/// Listens, loads `models`, and answers until `stop` says so.
pub async fn serve(config: Config, models: Vec<ModelSpec>, stop: Stop) -> Result<(), Error> {
    Server::bind(config, models, stop).await?.run().await
}
