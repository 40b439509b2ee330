//! A pool with fake workers, which are real processes without a model, and fake servers on other
//! hosts, which are threads. One binary, because each takes long to build.
#![cfg(unix)]

mod clients;
mod common;
mod faults;
mod jobs;
mod remote;
mod remote_models;
mod restart;
mod tls;

/// Not a test: the fake `sconce` command.
#[test]
#[ignore = "the fake worker"]
fn fake() {
    common::fake::main();
}
