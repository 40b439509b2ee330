//! The three kinds of models, each a [`crate::runtime::Workload`].

pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod seq2seq;
