//! A host's manager of workers: it starts, watches and restarts them, and routes requests to them. It speaks `api` over HTTP and
//! never links the engine: what it must know of devices and models it asks the command itself.

pub mod core;
