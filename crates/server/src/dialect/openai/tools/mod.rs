//! Tools: how they are shown to a model, how it is made to call them, and how its calls are found in what it writes.

mod grammar;
mod object;
mod reader;
#[cfg(test)]
mod reader_tests;
mod style;
mod told;

pub(crate) use grammar::Demand;
pub(crate) use reader::{Piece, Reader};
pub(crate) use style::Style;
pub(crate) use told::tell;
