//! What runs together. Pure: free blocks, and who still waits, come in as arguments; plans come out.

mod decode;
mod encode;
mod plan;

pub(crate) use decode::Scheduler;
pub(crate) use encode::{Queue, Standing};
pub(crate) use plan::{Budget, Next, Piece, Request, Sampled, Step};
