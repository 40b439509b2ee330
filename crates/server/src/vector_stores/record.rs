//! What is on disk of a vector store, beside its index.

use crate::storage::now;
use sconce_api::openai::vector_stores::{
    Attributes, ChunkingStrategy, ExpiresAfter, FileStatus, LastError, VectorStoreFile,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const DAY: u64 = 86_400;

/// A vector store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoreRecord {
    pub(crate) id: String,
    /// The order of creation.
    pub(crate) sequence: u64,
    pub(crate) created_at: u64,
    pub(crate) last_active_at: u64,
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) expires_after: Option<ExpiresAfter>,
    /// The name of the served model.
    pub(crate) model: String,
}

impl StoreRecord {
    pub(crate) fn expires_at(&self) -> Option<u64> {
        let days = self.expires_after.as_ref()?.days;
        Some(self.last_active_at.saturating_add(days.saturating_mul(DAY)))
    }

    pub(crate) fn is_expired(&self) -> bool {
        self.expires_at().is_some_and(|at| at <= now())
    }
}

/// A file in a vector store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Attachment {
    pub(crate) file_id: String,
    pub(crate) filename: String,
    /// The order of attaching.
    pub(crate) sequence: u64,
    pub(crate) created_at: u64,
    pub(crate) attributes: Attributes,
    pub(crate) chunking: ChunkingStrategy,
    pub(crate) status: FileStatus,
    pub(crate) last_error: Option<LastError>,
    pub(crate) usage_bytes: u64,
    /// The batch that attached it.
    pub(crate) batch: Option<String>,
    /// Ends the work on this file. It also tells one attaching of a file from the next.
    #[serde(skip)]
    pub(crate) cancel: Arc<AtomicBool>,
}

impl Attachment {
    /// As the API has it.
    pub(crate) fn object(&self, store: &str) -> VectorStoreFile {
        VectorStoreFile {
            id: self.file_id.clone(),
            object: "vector_store.file".into(),
            created_at: self.created_at,
            vector_store_id: store.to_owned(),
            usage_bytes: self.usage_bytes,
            status: self.status,
            last_error: self.last_error.clone(),
            attributes: self.attributes.clone(),
            chunking_strategy: self.chunking,
        }
    }

    /// Whether both are the same attaching of the file.
    pub(crate) fn is_same(&self, other: &Attachment) -> bool {
        Arc::ptr_eq(&self.cancel, &other.cancel)
    }
}

/// Files that were attached together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BatchRecord {
    pub(crate) id: String,
    /// The order of creation.
    pub(crate) sequence: u64,
    pub(crate) created_at: u64,
    pub(crate) is_cancelled: bool,
}

/// A file to be attached.
#[derive(Clone, Debug)]
pub(crate) struct NewAttachment {
    pub(crate) file_id: String,
    pub(crate) filename: String,
    pub(crate) attributes: Attributes,
    pub(crate) chunking: ChunkingStrategy,
}
