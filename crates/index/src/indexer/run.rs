//! A run of indexing, from the walk to the files of codes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::classify::{Plan, Work, plan};
use super::files::{FileWriter, Outcome};
use super::prepare::{Counter, Preparation};
use super::progress::{Phase, Progress};
use super::{Report, Tools, Update, codes, pipeline};
use crate::chunk::{ChunkOptions, Chunker};
use crate::error::{Error, Result};
use crate::index::{Control, OpenOptions};
use crate::models::{Embedder, ModelIdentity};
use crate::store::{FileRecord, Pool, Writer};

/// Changes whenever the same file would give other chunks than before.
const VERSION: u32 = 1;
/// Tokens that are left for the title and the headings above a chunk.
const CONTEXT_TOKENS: usize = 40;
/// The least time between two calls of the progress function.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// Vanished files that are removed in one transaction.
const REMOVED_TOGETHER: usize = 200;

/// See [`Index::update`](crate::Index::update).
pub(crate) fn update(writer: &mut Writer, update: &Update, tools: &Tools<'_>, control: Control<'_>) -> Result<Report> {
    let mut run = Run::new(control);
    if update.rebuild {
        writer.clear(tools.embedder.identity())?;
    }
    set_model(writer, tools.embedder.identity())?;
    let options = chunk_options(update.chunk, tools.embedder);
    if writer.reader().chunk_options()? != Some(options) {
        let batch = writer.begin()?;
        batch.set_chunk_options(&options)?;
        batch.commit()?;
    }
    let settings = format!("{VERSION} {} {}", options.tokens, options.overlap);
    run.call(true);
    let mut planned = {
        let cancel = run.control.cancel;
        let own = writer.path().to_owned();
        let mut observe = |found| {
            run.progress.found = found;
            run.call(false);
        };
        plan(update, &writer.reader(), (&settings, &own), (cancel, &mut observe))?
    };
    run.begin(&mut planned);
    let counter = Counter(tools.embedder);
    let chunker = Chunker::new(options, &counter)?;
    let preparation = Preparation {
        parser: tools.parser,
        chunker: &chunker,
        settings: &settings,
        vanished: Mutex::new(by_hash(planned.vanished.iter().chain(&planned.left_behind))),
    };
    let files = FileWriter { settings: &settings, kind: tools.embedder.identity().kind };
    let pool = Pool::open(writer.path(), OpenOptions::default())?;
    let work = std::mem::take(&mut planned.work);
    pipeline::run(writer, (work, &preparation), (tools.embedder, &pool), (&files, &mut run))?;
    run.check()?;
    if update.prune {
        run.prune(writer, &planned.vanished)?;
    }
    run.finish(writer)
}

/// The model of an index is that of its first run.
pub(super) fn set_model(writer: &mut Writer, identity: &ModelIdentity) -> Result<()> {
    match writer.reader().model()? {
        Some(model) => match model.difference(identity) {
            None => Ok(()),
            Some(difference) => Err(Error::Model(format!(
                "{} was made with the model {} ({difference}); use that model, or build the index anew (--rebuild)",
                writer.path().display(),
                model.name
            ))),
        },
        None => {
            let batch = writer.begin()?;
            batch.set_model(identity)?;
            batch.commit()
        }
    }
}

/// The options for a model, with room for the titles and headings above the chunks.
pub(super) fn chunk_options(options: ChunkOptions, embedder: &dyn Embedder) -> ChunkOptions {
    let most = embedder.max_tokens();
    let options = options.capped(most.saturating_sub(CONTEXT_TOKENS).max(most.min(16)).max(1));
    ChunkOptions { overlap: options.overlap.min(options.tokens / 2), ..options }
}

fn by_hash<'a>(vanished: impl DoubleEndedIterator<Item = &'a FileRecord>) -> HashMap<Vec<u8>, Vec<FileRecord>> {
    let mut by_hash: HashMap<Vec<u8>, Vec<FileRecord>> = HashMap::new();
    // The first path is taken first: the threads take from the end.
    for record in vanished.rev() {
        if let Some(hash) = &record.hash {
            by_hash.entry(hash.clone()).or_default().push(record.clone());
        }
    }
    by_hash
}

/// Progress and report of a run.
pub(super) struct Run<'a> {
    control: Control<'a>,
    started: Instant,
    called: Instant,
    progress: Progress,
    pub(super) report: Report,
}

impl<'a> Run<'a> {
    fn new(control: Control<'a>) -> Run<'a> {
        let now = Instant::now();
        Run { control, started: now, called: now, progress: Progress::default(), report: Report::default() }
    }

    /// Whether the caller has cancelled.
    pub(super) fn cancel(&self) -> &'a AtomicBool {
        self.control.cancel
    }

    fn check(&self) -> Result<()> {
        if self.control.cancel.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Reports progress, if the last report is some time ago or if `now`.
    pub(super) fn call(&mut self, now: bool) {
        if !now && self.called.elapsed() < PROGRESS_EVERY {
            return;
        }
        self.called = Instant::now();
        let progress = &mut self.progress;
        progress.elapsed = self.started.elapsed();
        let part = progress.bytes_done as f64 / progress.bytes.max(1) as f64;
        let left = progress.elapsed.as_secs_f64() * (1.0 - part) / part;
        let is_known = progress.elapsed > Duration::from_secs(2) && part > 0.001 && progress.phase == Phase::Embedding;
        progress.left = is_known.then(|| Duration::try_from_secs_f64(left.max(0.0)).ok()).flatten();
        (self.control.progress)(&self.progress);
    }

    /// The walk has ended.
    fn begin(&mut self, plan: &mut Plan) {
        self.report.unchanged = plan.unchanged;
        self.report.skipped = std::mem::take(&mut plan.skipped);
        self.progress.phase = Phase::Embedding;
        self.progress.found = plan.found();
        self.progress.files = plan.unchanged;
        self.progress.problems = self.report.skipped.len() as u64;
        self.progress.bytes = plan.work.iter().map(|work| work.found.size).sum();
        self.call(true);
    }

    /// How many chunks were embedded so far.
    pub(super) fn set_embedded(&mut self, embedded: u64) {
        self.progress.chunks = embedded;
        self.report.embedded = embedded;
    }

    /// A file is done.
    pub(super) fn add(&mut self, work: Work, outcome: Outcome) {
        self.progress.files += 1;
        self.progress.bytes_done += work.found.size;
        let path: PathBuf = work.found.path;
        match outcome {
            Outcome::Indexed { chunks, notes } => {
                self.report.indexed += 1;
                self.report.chunks += chunks;
                self.report.notes.extend(notes.into_iter().map(|note| (path.clone(), note)));
            }
            Outcome::Unchanged => self.report.unchanged += 1,
            Outcome::Renamed => self.report.renamed += 1,
            Outcome::Failed(reason) => {
                self.progress.problems += 1;
                self.report.failed.push((path.clone(), reason));
            }
            Outcome::Skipped(reason) => {
                self.progress.problems += 1;
                self.report.skipped.push((path.clone(), reason));
            }
            Outcome::Partial => {}
        }
        self.progress.current = Some(path);
    }

    /// Removes the files that have vanished and were not found under another path.
    fn prune(&mut self, writer: &mut Writer, vanished: &[FileRecord]) -> Result<()> {
        for some in vanished.chunks(REMOVED_TOGETHER) {
            let batch = writer.begin()?;
            for record in some {
                // A renamed file does not have this path any more.
                self.report.removed += u64::from(batch.remove_file(&record.path)?);
            }
            batch.commit()?;
            self.call(false);
            self.check()?;
        }
        Ok(())
    }

    fn finish(mut self, writer: &mut Writer) -> Result<Report> {
        self.progress.phase = Phase::Finishing;
        self.call(true);
        let batch = writer.begin()?;
        batch.remove_pending()?;
        batch.set_meta("updated", &seconds_since_1970().to_string())?;
        batch.commit()?;
        codes::refresh(writer, codes::LEAST)?;
        self.report.failed.sort();
        self.report.skipped.sort();
        self.report.notes.sort();
        self.report.elapsed = self.started.elapsed();
        self.call(true);
        Ok(self.report)
    }
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
