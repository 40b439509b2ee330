//! A host with its workers, which are processes, but made of nothing. One binary: each would take long to build.
#![cfg(unix)]

mod clients;
mod comeback;
mod common;
mod faults;

/// Not a test: what the wrapper of the command runs.
#[test]
#[ignore = "the fake worker"]
fn fake() {
    common::fake::main();
}
