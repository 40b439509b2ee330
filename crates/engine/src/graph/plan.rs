//! The part of a plan that another engine runs, and what ran of it.

use super::{GraphRuntime, GraphSummary, Provider, ProviderNodes};
use crate::error::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// The part of a [`crate::Plan`] that another engine runs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GraphPlan {
    /// The other engine.
    pub runtime: Arc<dyn GraphRuntime>,
    /// Where the graphs run.
    pub provider: Provider,
    /// Whether nodes that the provider lacks may run on the CPU.
    pub allow_host: bool,
    /// The most tokens in a call, padding included, unless one text has more.
    pub batch_tokens: usize,
    /// The graph; of a two-tower model in two files that of the texts, then that of the images.
    pub files: Vec<GraphFile>,
}

/// A file with a graph.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GraphFile {
    /// What the head of the file says.
    pub summary: GraphSummary,
    /// Whether each call has one text or image.
    pub one_per_call: bool,
    /// What ran.
    pub(crate) counts: Arc<GraphCounts>,
}

/// What ran of a graph since it was opened.
#[derive(Debug, Default)]
pub(crate) struct GraphCounts {
    nodes: OnceLock<(String, Vec<ProviderNodes>)>,
    calls: AtomicU64,
}

impl GraphCounts {
    pub(crate) fn opened(&self, version: String, nodes: Vec<ProviderNodes>) {
        // A graph is opened once; a second one would have the same nodes.
        let _ = self.nodes.set((version, nodes));
    }

    pub(crate) fn add_calls(&self, calls: u64) {
        self.calls.fetch_add(calls, Relaxed);
    }
}

impl GraphFile {
    /// The calls of the graph since it was opened.
    pub fn calls(&self) -> u64 {
        self.counts.calls.load(Relaxed)
    }

    /// The nodes of the opened graph by operator and provider; empty before it is opened.
    pub fn nodes(&self) -> &[ProviderNodes] {
        self.counts.nodes.get().map_or(&[], |(_, nodes)| nodes)
    }
}

impl GraphPlan {
    /// The calls of all files since they were opened.
    pub fn calls(&self) -> u64 {
        self.files.iter().map(GraphFile::calls).sum()
    }

    /// The nodes of all opened files.
    pub fn nodes(&self) -> impl Iterator<Item = &ProviderNodes> {
        self.files.iter().flat_map(GraphFile::nodes)
    }

    /// The paths of the files, for messages.
    pub fn paths(&self) -> String {
        let paths: Vec<_> = self.files.iter().map(|file| file.summary.path.display().to_string()).collect();
        paths.join(" and ")
    }

    /// The other engine and, once a graph is open, its version.
    pub fn engine(&self) -> String {
        match self.files.first().and_then(|file| file.counts.nodes.get()) {
            Some((version, _)) => format!("{} {version}", self.runtime.name()),
            None => self.runtime.name().into(),
        }
    }

    /// Loads the other engine's library and asks whether it has the provider. No graph is opened.
    pub(crate) fn check(&self) -> Result<()> {
        self.runtime.check(self.provider).map_err(|why| self.error(why))
    }

    /// The error for a failure of the other engine.
    pub(crate) fn error(&self, why: String) -> Error {
        Error::Engine { provider: self.provider, why }
    }

    /// Forgets the calls of a sanity check.
    pub(crate) fn reset_calls(&self) {
        self.files.iter().for_each(|file| file.counts.calls.store(0, Relaxed));
    }
}
