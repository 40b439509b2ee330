//! What is known of a batch, on disk and in the API.

use crate::owner::Owner;
use sconce_api::openai::batches::{
    Batch as Object, BatchError, BatchErrors, BatchUsage, Endpoint, RequestCounts, Status,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The only completion window, as at OpenAI.
pub(crate) const WINDOW: &str = "24h";
/// That time, in seconds.
pub(super) const WINDOW_SECONDS: u64 = 24 * 3_600;

/// How a batch whose lines are settled ends.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// Every line was answered.
    Completed,
    /// Time ran out.
    Expired,
    /// A client cancelled.
    Cancelled,
}

/// A batch to be made.
pub(crate) struct NewBatch {
    pub(crate) owner: Owner,
    pub(crate) endpoint: Endpoint,
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    /// Seconds until the files with the results are deleted.
    pub(crate) output_expires_after: u64,
}

/// The ids of the files with the results. They are chosen before the files are made, so that a crash
/// in between does not leave a file twice.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct OutputIds {
    pub(super) results: String,
    pub(super) errors: String,
}

/// What is known of a batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) id: String,
    /// The order of creation.
    pub(super) sequence: u64,
    pub(super) owner: Owner,
    pub(super) endpoint: Endpoint,
    pub(super) input_file_id: String,
    pub(super) output_expires_after: u64,
    pub(super) metadata: Option<BTreeMap<String, String>>,
    pub(super) status: Status,
    /// Set when the lines are settled.
    pub(super) outcome: Option<Outcome>,
    pub(super) outputs: Option<OutputIds>,
    pub(super) model: Option<String>,
    pub(super) counts: RequestCounts,
    pub(super) usage: Option<BatchUsage>,
    pub(super) errors: Vec<BatchError>,
    pub(super) output_file_id: Option<String>,
    pub(super) error_file_id: Option<String>,
    pub(super) created_at: u64,
    pub(super) expires_at: u64,
    pub(super) in_progress_at: Option<u64>,
    pub(super) finalizing_at: Option<u64>,
    pub(super) cancelling_at: Option<u64>,
    /// When it completed, failed, expired or was cancelled.
    pub(super) ended_at: Option<u64>,
}

impl Record {
    pub(super) fn new(id: String, sequence: u64, input_file_id: String, new: NewBatch, now: u64) -> Record {
        Record {
            id,
            sequence,
            owner: new.owner,
            endpoint: new.endpoint,
            input_file_id,
            output_expires_after: new.output_expires_after,
            metadata: new.metadata,
            status: Status::Validating,
            outcome: None,
            outputs: None,
            model: None,
            counts: RequestCounts::default(),
            usage: None,
            errors: Vec::new(),
            output_file_id: None,
            error_file_id: None,
            created_at: now,
            expires_at: now.saturating_add(WINDOW_SECONDS),
            in_progress_at: None,
            finalizing_at: None,
            cancelling_at: None,
            ended_at: None,
        }
    }

    /// As the API has it.
    pub(super) fn object(&self) -> Object {
        let ended = |status| self.ended_at.filter(|_| self.status == status);
        let errors = BatchErrors { object: "list".into(), data: self.errors.clone() };
        Object {
            id: self.id.clone(),
            object: "batch".into(),
            endpoint: self.endpoint,
            model: self.model.clone(),
            errors: (!self.errors.is_empty()).then_some(errors),
            input_file_id: self.input_file_id.clone(),
            completion_window: WINDOW.into(),
            status: self.status,
            output_file_id: self.output_file_id.clone(),
            error_file_id: self.error_file_id.clone(),
            created_at: self.created_at,
            in_progress_at: self.in_progress_at,
            expires_at: Some(self.expires_at),
            finalizing_at: self.finalizing_at,
            completed_at: ended(Status::Completed),
            failed_at: ended(Status::Failed),
            expired_at: ended(Status::Expired),
            cancelling_at: self.cancelling_at,
            cancelled_at: ended(Status::Cancelled),
            request_counts: self.counts,
            usage: self.usage,
            metadata: self.metadata.clone(),
        }
    }
}
