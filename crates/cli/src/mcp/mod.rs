//! The MCP server: tools over an index, for programs that speak the Model Context Protocol.
//!
//! Everything that a client can read comes out of the database. No argument is ever used as a path
//! to a file.

mod arguments;
mod http;
mod library;
mod output;
mod server;
mod stdio;
mod tools;

pub(crate) use http::{HttpOptions, serve_http};
pub(crate) use library::Library;
pub(crate) use server::IndexServer;
pub(crate) use stdio::serve_stdio;

/// The largest message of a client, in bytes.
const MAX_MESSAGE: usize = 1 << 20;
