//! The server's side of the protocol.

use super::arguments::sentence;
use super::library::Library;
use super::tools::{INSTRUCTIONS, IndexTool, definitions};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Calls that run at once; others wait.
pub(super) const MAX_CALLS: usize = 8;

/// Serves an index. Clones serve the same one.
#[derive(Clone)]
pub(crate) struct IndexServer {
    library: Arc<Library>,
    permits: Arc<Semaphore>,
}

impl IndexServer {
    pub(crate) fn new(library: Library) -> IndexServer {
        IndexServer { library: Arc::new(library), permits: Arc::new(Semaphore::new(MAX_CALLS)) }
    }

    /// Threads of a runtime for this server: for calls, and for standard input and output.
    pub(crate) fn blocking_threads() -> usize {
        MAX_CALLS + 4
    }
}

impl ServerHandler for IndexServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("sconce", env!("CARGO_PKG_VERSION")).with_title("Sconce"))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(definitions()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        IndexTool::named(name).map(IndexTool::definition)
    }

    /// A call that cannot be done is a result with a sentence, which the model reads. Only a tool
    /// that does not exist is an error of the protocol.
    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = IndexTool::named(&request.name) else {
            let what = format!("there is no tool `{}`; `tools/list` names all", request.name);
            return Err(ErrorData::invalid_params(sentence(&what), None));
        };
        let Ok(permit) = self.permits.clone().acquire_owned().await else {
            return Err(ErrorData::internal_error("the server is shutting down", None));
        };
        let (library, arguments) = (self.library.clone(), request.arguments.unwrap_or_default());
        let call = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            tool.call(&library, arguments)
        });
        let error = |what: String| CallToolResult::error(vec![ContentBlock::text(what)]);
        let result = match call.await {
            // As JSON twice: in the text, quotes keep the words of a document apart from ours.
            Ok(Ok(result)) => CallToolResult::structured(result),
            Ok(Err(what)) => error(what),
            Err(_) => error("internal error, please report it; only this call failed".into()),
        };
        Ok(result.into())
    }
}
