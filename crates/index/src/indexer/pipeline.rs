//! The threads of a run: some read and chunk files ahead, one embeds, and the caller's thread writes.
//!
//! Files pass from one to the next, so none waits for the one before. The queues between them are
//! bounded by bytes.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::batch::{Batcher, Done};
use super::classify::Work;
use super::codes;
use super::files::{FileWriter, Outcome};
use super::prepare::{Preparation, Prepared};
use super::queue::{Popped, Producer, Queue};
use super::run::Run;
use crate::error::{Error, Result};
use crate::models::Embedder;
use crate::store::{Batch, Pool, Writer};

/// Bytes of text that are read ahead.
const AHEAD: usize = 32 << 20;
/// What an entry of the queue costs beside its text.
const ENTRY: usize = 1 << 10;
/// Bytes of complete files that wait for the writer.
const TO_WRITE: usize = 32 << 20;
/// The most threads that read files.
const MAX_READERS: usize = 8;
/// The longest transaction.
const COMMIT_EVERY: Duration = Duration::from_millis(400);

/// Reads, embeds and writes files. Returns early without an error if the caller cancels; what was
/// written stays.
pub(super) fn run(
    writer: &mut Writer,
    (work, preparation): (Vec<Work>, &Preparation<'_>),
    (embedder, pool): (&dyn Embedder, &Pool),
    (files, run): (&FileWriter<'_>, &mut Run<'_>),
) -> Result<()> {
    // The model needs the processors too. Readers that are ahead of it wait.
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let readers = (cores / 2).clamp(1, MAX_READERS).min(work.len().max(1));
    let queue = Queue::new(AHEAD, readers);
    let (stop, embedded) = (AtomicBool::new(false), AtomicU64::new(0));
    let results = Queue::new(TO_WRITE, 1);
    let done = results.producer();
    let has_pending = writer.reader().has_pending()?;
    let batcher = Batcher { embedder, pool, has_pending, queue: &queue, stop: &stop, embedded: &embedded, done };
    let work = Mutex::new(work.into_iter());
    thread::scope(|scope| {
        // Also if this thread panics: nobody waits any longer.
        let ending = Ending { stop: &stop, queue: &queue, results: &results };
        for _ in 0..readers {
            let producer = queue.producer();
            let (work, stop) = (&work, &stop);
            spawn(scope, "read files", move || read(work, preparation, &producer, stop))?;
        }
        let embedding = spawn(scope, "embed chunks", move || batcher.run())?;
        let written = write(writer, &results, (files, &mut *run), &embedded);
        drop(ending);
        let embedding = embedding.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        run.set_embedded(embedded.load(Ordering::Relaxed));
        written.and(embedding)
    })
}

/// Ends all threads when dropped.
struct Ending<'a> {
    stop: &'a AtomicBool,
    queue: &'a Queue<Prepared>,
    results: &'a Queue<Done>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.queue.stop();
        self.results.stop();
    }
}

fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<thread::ScopedJoinHandle<'scope, T>> {
    let thread = thread::Builder::new().name(name.into()).spawn_scoped(scope, work);
    thread.map_err(|e| Error::Input(format!("the system starts no further thread: {e}")))
}

/// Prepares files until none is left.
fn read(
    work: &Mutex<std::vec::IntoIter<Work>>,
    preparation: &Preparation<'_>,
    producer: &Producer<'_, Prepared>,
    stop: &AtomicBool,
) {
    while !stop.load(Ordering::Relaxed) {
        let next = work.lock().unwrap_or_else(PoisonError::into_inner).next();
        let Some(next) = next else { return };
        let prepared = preparation.prepare(next);
        let text: usize = match &prepared {
            Prepared::Read(file) => file.documents.iter().map(|document| document.document.text.len()).sum(),
            _ => 0,
        };
        if !producer.push(prepared, text + ENTRY) {
            return;
        }
    }
}

/// Writes until the embedding thread ends or the caller cancels.
fn write(
    writer: &mut Writer,
    results: &Queue<Done>,
    (files, run): (&FileWriter<'_>, &mut Run<'_>),
    embedded: &AtomicU64,
) -> Result<()> {
    let mut uncoded = 0;
    while !run.cancel().load(Ordering::Relaxed) {
        run.set_embedded(embedded.load(Ordering::Relaxed));
        run.call(false);
        let first = match results.pop_within(Duration::from_millis(100)) {
            Popped::Item(first) => first,
            Popped::Nothing => continue,
            Popped::End => return Ok(()),
        };
        let began = Instant::now();
        let batch = writer.begin()?;
        uncoded += write_one(&batch, first, (files, &mut *run))?;
        while let Some(left) = COMMIT_EVERY.checked_sub(began.elapsed())
            && let Popped::Item(next) = results.pop_within(left)
        {
            uncoded += write_one(&batch, next, (files, &mut *run))?;
            run.set_embedded(embedded.load(Ordering::Relaxed));
            run.call(false);
        }
        batch.commit()?;
        writer.bound_log()?;
        if uncoded >= codes::EVERY {
            codes::refresh(writer, codes::EVERY)?;
            uncoded = 0;
        }
    }
    Ok(())
}

/// Returns how many chunks were written.
fn write_one(batch: &Batch<'_>, done: Done, (files, run): (&FileWriter<'_>, &mut Run<'_>)) -> Result<u64> {
    let (work, outcome) = files.write(batch, done)?;
    let chunks = match &outcome {
        Outcome::Indexed { chunks, .. } => *chunks,
        _ => 0,
    };
    if let Some(work) = work {
        run.add(work, outcome);
    }
    Ok(chunks)
}
