//! The files with the results of a batch that has ended.

use super::ask::result_id;
use super::batch::Batch;
use super::input::Lines;
use super::journal::{Journal, is_success, results};
use super::line::Line;
use super::record::{Outcome, OutputIds, Record};
use crate::error::Fault;
use crate::storage::files::{FileStore, NewFile};
use crate::storage::io_fault;
use crate::storage::upload::Upload;
use sconce_api::openai::batches::{BatchUsage, ResultError, ResultLine};
use sconce_api::openai::files::Purpose;
use serde_json::Value;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;

/// The most bytes of a file with results. The limit of all files together is the server's.
const MAX_BYTES: u64 = 64 << 30;
/// Results of lines that were not answered are recorded in groups of this size.
const GROUP: usize = 1_000;
/// Bytes that are gathered before they are written.
const BUFFER: usize = 1 << 20;

/// The files that were written; none of the two if it would be empty.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) results: Option<String>,
    pub(super) errors: Option<String>,
    pub(super) usage: BatchUsage,
}

/// Records a result for every line that has none, because the batch ended before.
pub(super) fn settle_rest(
    mut lines: Lines,
    (journal, done): (&mut Journal, &HashSet<String>),
    outcome: Outcome,
) -> io::Result<()> {
    let (code, message) = match outcome {
        Outcome::Completed => return Ok(()),
        Outcome::Expired => ("batch_expired", "the request was not answered within the completion window"),
        Outcome::Cancelled => ("batch_cancelled", "the request was not answered before the batch was cancelled"),
    };
    let mut group = Vec::new();
    while let Some(raw) = lines.next()? {
        // The file was checked.
        let Some(line) = raw.bytes.as_deref().and_then(|bytes| Line::read(bytes).ok()) else { continue };
        if done.contains(&line.custom_id) {
            continue;
        }
        let error = ResultError { code: code.into(), message: message.into() };
        group.push(ResultLine { id: result_id(), custom_id: line.custom_id, response: None, error: Some(error) });
        if group.len() >= GROUP {
            journal.append(&group)?;
            group.clear();
        }
    }
    match group.is_empty() {
        true => Ok(()),
        false => journal.append(&group),
    }
}

/// Writes the files with the results. Files that an earlier attempt has written stay.
pub(super) fn write(batch: &Batch, record: &Record, ids: &OutputIds, files: &Arc<FileStore>) -> Result<Output, Fault> {
    let journal = batch.journal();
    let mut output = Output::default();
    let mut writers = [Writer::new(&ids.results, files), Writer::new(&ids.errors, files)];
    for line in results(&journal).map_err(io_fault("read the results", &journal))? {
        let line = line.map_err(io_fault("read the results", &journal))?;
        add_usage(&mut output.usage, &line);
        let [good, bad] = &mut writers;
        if is_success(&line) { good } else { bad }.write(&line)?;
    }
    let [good, bad] = writers;
    output.results = good.finish(record, "output")?;
    output.errors = bad.finish(record, "error")?;
    Ok(output)
}

/// A file with results.
struct Writer<'a> {
    id: &'a str,
    files: &'a Arc<FileStore>,
    /// `None` before the first line, and if the file is there.
    upload: Option<Upload>,
    is_there: bool,
    buffer: Vec<u8>,
}

impl<'a> Writer<'a> {
    fn new(id: &'a str, files: &'a Arc<FileStore>) -> Writer<'a> {
        Writer { id, files, upload: None, is_there: files.get(id).is_ok(), buffer: Vec::new() }
    }

    fn write(&mut self, line: &ResultLine) -> Result<(), Fault> {
        if self.is_there {
            return Ok(());
        }
        let unwritable = |e| Fault::new(crate::error::FaultKind::Internal, format!("a result cannot be written: {e}"));
        serde_json::to_writer(&mut self.buffer, line).map_err(unwritable)?;
        self.buffer.push(b'\n');
        if self.buffer.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Fault> {
        let upload = match &mut self.upload {
            Some(upload) => upload,
            none => none.insert(self.files.begin_as(self.id.to_owned(), MAX_BYTES)?),
        };
        upload.write(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    /// The id of the file, if there is one.
    fn finish(mut self, record: &Record, kind: &str) -> Result<Option<String>, Fault> {
        if !self.is_there && !self.buffer.is_empty() {
            self.flush()?;
        }
        if let Some(upload) = self.upload {
            upload.finish(NewFile {
                filename: format!("{}_{kind}.jsonl", record.id),
                purpose: Purpose::BatchOutput,
                expires_after: Some(record.output_expires_after),
                owner: record.owner.clone(),
            })?;
            self.is_there = true;
        }
        Ok(self.is_there.then(|| self.id.to_owned()))
    }
}

/// Adds the tokens of a response, whose names differ between the endpoints.
fn add_usage(sum: &mut BatchUsage, line: &ResultLine) {
    let Some(usage) = line.response.as_ref().and_then(|response| response.body.get("usage")) else { return };
    let number = |value: Option<&Value>| value.and_then(Value::as_u64).unwrap_or(0);
    let of = |names: [&str; 2]| names.map(|name| number(usage.get(name))).into_iter().max().unwrap_or(0);
    let detail = |objects: [&str; 2], name: &str| {
        objects
            .map(|object| number(usage.get(object).and_then(|object| object.get(name))))
            .into_iter()
            .max()
            .unwrap_or(0)
    };
    let (input, output) = (of(["prompt_tokens", "input_tokens"]), of(["completion_tokens", "output_tokens"]));
    sum.input_tokens = sum.input_tokens.saturating_add(input);
    sum.output_tokens = sum.output_tokens.saturating_add(output);
    sum.total_tokens = sum.input_tokens.saturating_add(sum.output_tokens);
    let cached = detail(["prompt_tokens_details", "input_tokens_details"], "cached_tokens");
    let details = &mut sum.input_tokens_details;
    details.cached_tokens = details.cached_tokens.saturating_add(cached);
    let reasoning = detail(["completion_tokens_details", "output_tokens_details"], "reasoning_tokens");
    let details = &mut sum.output_tokens_details;
    details.reasoning_tokens = details.reasoning_tokens.saturating_add(reasoning);
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_api::openai::batches::ResultResponse;
    use serde_json::json;

    #[test]
    fn usage_of_all_endpoints_is_added() {
        let mut sum = BatchUsage::default();
        for body in [
            json!({"usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7,
                             "prompt_tokens_details": {"cached_tokens": 3}}}),
            json!({"usage": {"input_tokens": 10, "output_tokens": 20, "output_tokens_details": {"reasoning_tokens": 4}}}),
            json!({"usage": {"prompt_tokens": 1, "total_tokens": 1}}),
            json!({"error": {"message": "no"}}),
            json!({"usage": {"prompt_tokens": -1}}),
        ] {
            let response = ResultResponse { status_code: 200, request_id: String::new(), body };
            let line =
                ResultLine { id: String::new(), custom_id: String::new(), response: Some(response), error: None };
            add_usage(&mut sum, &line);
        }
        assert_eq!((sum.input_tokens, sum.output_tokens, sum.total_tokens), (16, 22, 38));
        assert_eq!((sum.input_tokens_details.cached_tokens, sum.output_tokens_details.reasoning_tokens), (3, 4));
    }
}
