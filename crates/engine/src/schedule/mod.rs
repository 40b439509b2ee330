//! Schedulers: which requests run together. Pure: requests and free KV blocks come in as arguments,
//! steps come out.

mod decode;
mod encode;
mod seq2seq;
mod step;

pub(crate) use decode::Scheduler;
pub(crate) use encode::EncodeQueue;
pub(crate) use seq2seq::{Input, Row, Seq2SeqBudget, Seq2SeqScheduler, Seq2SeqStep};
pub(crate) use step::{Advance, Budget, Request, Sampled, ScheduledChunk, Step};
