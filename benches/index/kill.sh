#!/bin/sh
# Indexing killed by SIGKILL at 200 random moments, with torn files of codes and changed files between
# the runs: benches/index/kill.sh. The test compares every index that comes to its end with that of an
# undisturbed run.
set -eu
cd "$(dirname "$0")/../.."
SCONCE_LONG_TESTS=1 cargo test --release --workspace --test indexing_processes -- a_run_killed_200_times_ends_the_same
