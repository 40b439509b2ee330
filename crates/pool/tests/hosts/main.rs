//! A pool with fake workers, which are real processes without a model. One binary, because each
//! takes long to build.
#![cfg(unix)]

mod clients;
mod common;
mod faults;
mod jobs;
mod restart;

/// Not a test: the fake `sconce` command.
#[test]
#[ignore = "the fake worker"]
fn fake() {
    common::fake::main();
}
