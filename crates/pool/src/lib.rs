//! A host's manager of workers: it starts, watches and restarts them, and routes requests to them. It speaks `api` over HTTP and
//! never links the engine: what it must know of devices and models it asks the command itself.
//!
//! [`core`] is its mind, and pure; everything else does what the core wants done and tells it what came of it.

mod ask;
mod client;
mod config;
pub mod core;
mod disk;
mod http;
mod logs;
mod manager;
mod process;
mod serve;
mod start;

/// How something is asked for.
pub use axum::http::Method;
pub use client::Asker;
pub use config::{Config, ConfigError, Declared, PoolFile};
pub use disk::DiskError;
pub use serve::{Error, Pool};
