//! Manager of the workers of a host: it starts, probes and restarts them, and routes requests to
//! them, and to servers on other hosts. It speaks `api` over HTTP and never links the engine: it
//! learns about devices and models by running the `sconce` command.
//!
//! [`core`] makes the decisions and is pure; the other modules carry out its actions and report the
//! resulting events to it.

mod client;
mod config;
pub mod core;
mod disk;
mod host_config;
mod hosts;
mod http;
mod ids;
mod inspect;
mod logs;
mod manager;
mod process;
mod reconcile;
mod restore;
mod serve;
mod spawn;

/// Re-exported for [`ManagerClient::request`].
pub use axum::http::Method;
pub use client::ManagerClient;
pub use config::{Config, ConfigError, Declared, PoolFile};
pub use disk::DiskError;
pub use host_config::{DeclaredHost, HostConfig, Key};
pub use serve::{Error, Pool};
