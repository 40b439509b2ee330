//! The protocol over standard input and output: one JSON-RPC message per line.

use super::{IndexServer, MAX_MESSAGE};
use crate::Failure;
use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use rmcp::transport::async_rw::AsyncRwTransport;

/// Serves until standard input ends.
pub(crate) async fn serve_stdio(server: IndexServer) -> Result<(), Failure> {
    let (input, output) = rmcp::transport::stdio();
    // A longer line is dropped with an error in the log.
    let transport = AsyncRwTransport::new_server(input, output).with_max_line_length(MAX_MESSAGE);
    match server.serve(transport).await {
        Ok(running) => {
            running.waiting().await?;
            Ok(())
        }
        // The client has gone before it said anything.
        Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(e) => Err(format!("the client does not begin as the Model Context Protocol says: {e}").into()),
    }
}
