//! The shard that is being computed.

use super::commits::Session;
use super::plan::Needed;
use super::reader::{BadRows, ShardReader, ShardRow, without_origin};
use crate::Failure;
use crate::input::{Text, TextIterator};
use crate::output::Writer;
use sconce_shards::{Claim, Finished, Progress};
use std::time::Instant;

/// The shard that is being computed.
pub(crate) struct OpenShard<'a> {
    pub(crate) writer: Writer,
    pub(super) reader: Option<ShardReader>,
    pub(super) bad: BadRows,
    pub(super) session: Session<'a>,
    pub(super) throughput: &'a mut Throughput,
    pub(super) claim: &'a Claim,
    pub(super) counts: ResultCounts,
}

/// Counts of a shard's rows with results.
#[derive(Default)]
pub(super) struct ResultCounts {
    rows: u64,
    tokens: u64,
    truncated: u64,
}

/// Rows of this process, over all its shards.
pub(super) struct Throughput {
    started: Instant,
    rows: u64,
}

impl Throughput {
    pub(super) fn start() -> Throughput {
        Throughput { started: Instant::now(), rows: 0 }
    }

    fn rate(&self) -> f64 {
        let seconds = self.started.elapsed().as_secs_f64();
        if seconds > 0.0 { self.rows as f64 / seconds } else { 0.0 }
    }
}

/// The shard is not computed further: another process has it, or the user stopped this one.
#[derive(Debug)]
pub(super) struct Abandoned;

impl std::fmt::Display for Abandoned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the shard is left to another process")
    }
}

impl std::error::Error for Abandoned {}

impl OpenShard<'_> {
    /// The rows of the shard; none at a second call.
    pub(crate) fn rows(&mut self) -> impl Iterator<Item = Result<ShardRow, Failure>> + Send + use<> {
        self.reader.take().into_iter().flatten()
    }

    /// The texts of the rows.
    pub(super) fn texts(&mut self, needed: &Needed) -> TextIterator {
        let reader = self.reader.take().into_iter();
        let (field, pair_field) = (needed.field.clone(), needed.pair_field.clone());
        let texts = reader.flat_map(move |reader| reader.texts(field.clone(), pair_field.clone()));
        let texts: Box<dyn Iterator<Item = Result<Text, Failure>> + Send> = Box::new(texts);
        texts.peekable()
    }

    /// Sets a row aside.
    pub(crate) fn add_bad(&mut self, row: u64, origin: &str, why: &str) {
        self.bad.add(row, without_origin(why, origin));
    }

    /// Ends the work on a shard that this process no longer has.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self.session.coordinator.is_lost(self.claim.shard) || self.session.stop.is_now() {
            true => Err(Abandoned.into()),
            false => Ok(()),
        }
    }

    /// Counts rows with results.
    pub(crate) fn count(&mut self, rows: u64, tokens: u64, truncated: u64) {
        self.counts.rows += rows;
        self.counts.tokens += tokens;
        self.counts.truncated += truncated;
        self.throughput.rows += rows;
        let progress = Progress { rows: self.counts.rows + self.bad.count(), rate: self.throughput.rate() };
        self.session.coordinator.progress(self.claim.shard, progress);
    }

    /// Completes the output.
    pub(super) fn finish(self) -> Result<Finished, Failure> {
        self.check()?;
        let OpenShard { writer, bad, session, claim, counts: ResultCounts { rows, tokens, truncated }, .. } = self;
        let (read, manifest) = (rows + bad.count(), session.manifest);
        let expected = manifest.shards.get(claim.shard).map_or(0, |shard| shard.rows);
        if read != expected {
            let name = manifest.shard_name(claim.shard);
            return Err(format!(
                "shard {name}: {read} rows were read, but the manifest counts {expected}; has its input changed?"
            )
            .into());
        }
        let content = writer.finish_shard()?;
        Ok(Finished {
            file: claim.file.clone(),
            bytes: content.bytes,
            sha256: content.sha256,
            rows,
            bad: bad.count(),
            tokens,
            truncated,
            bad_rows: bad.lines(),
        })
    }
}
