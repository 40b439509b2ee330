//! `--shards`: files to files in shards that several processes work on. The protocol is in the crate
//! `sconce-shards`; this folder reads the rows, runs the model and writes the outputs.

mod args;
mod commits;
mod open_shard;
mod parquet_input;
mod plan;
mod reader;
mod refused_texts;
mod run;
mod stop;

pub(crate) use args::{ShardArgs, ShardRequest};
pub(crate) use open_shard::OpenShard;
pub(crate) use reader::ShardRow;
pub(crate) use run::{ShardOutput, ShardRun};
