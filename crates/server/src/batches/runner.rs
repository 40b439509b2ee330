//! Answers the lines of a file that have no result yet. The server and `sconce batch` share it.
//!
//! Three stages with bounded queues between them: a thread reads lines, the task asks some of them
//! at once, a thread records results in groups, each group with one wait for the disk.

use super::ask::Asker;
use super::input::Lines;
use super::journal::{Counts, Journal};
use super::line::Line;
use futures_util::{StreamExt, stream};
use sconce_api::openai::batches::ResultLine;
use std::collections::HashSet;
use std::io;
use std::pin::pin;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;

/// Lines that are read ahead, and results that wait to be recorded.
const AHEAD: usize = 64;
/// The most results of a group.
const MAX_GROUP: usize = 256;

/// Lines to be answered, and where the results go.
pub(crate) struct Run {
    /// The input file, which was checked.
    pub(crate) lines: Lines,
    /// Where results are recorded.
    pub(crate) journal: Journal,
    /// Ids of lines that have a result.
    pub(crate) done: HashSet<String>,
    /// The most lines that are begun at once; the gate may allow fewer.
    pub(crate) width: usize,
}

impl Run {
    /// Answers all lines, or as many as possible until `stop` is ready. Calls `progress` after each
    /// group of results is on the disk. Returns the results so far, and what `stop` gave if it came
    /// first.
    pub(crate) async fn answer<S>(
        self,
        asker: &Asker,
        stop: impl Future<Output = S>,
        progress: impl FnMut(Counts) + Send + 'static,
    ) -> io::Result<(Counts, Option<S>)> {
        let Run { lines, journal, done, width } = self;
        let (found, queue) = channel(AHEAD);
        let (results, inbox) = channel(AHEAD);
        let reading = thread("batch reader", move || read(lines, &done, &found))?;
        let writing = thread("batch writer", move || write(journal, inbox, progress))?;
        let lines = stream::unfold(queue, |mut queue: Receiver<Line>| async move {
            let line = queue.recv().await?;
            Some((line, queue))
        });
        let answering = async move {
            let mut answers = pin!(lines.map(|line| asker.ask(line)).buffer_unordered(width.max(1)));
            while let Some(result) = answers.next().await {
                // The thread that records results ends early only if it cannot.
                if results.send(result).await.is_err() {
                    break;
                }
            }
        };
        let ended = tokio::select! {
            () = answering => None,
            stopped = stop => Some(stopped),
        };
        // Both threads end, because their queues are closed.
        let lost = |_| io::Error::other("a thread of the batch panicked");
        let counts = writing.await.map_err(lost)??;
        reading.await.map_err(lost)??;
        Ok((counts, ended))
    }
}

/// Reads the lines that have no result.
fn read(mut lines: Lines, done: &HashSet<String>, found: &Sender<Line>) -> io::Result<()> {
    while let Some(raw) = lines.next()? {
        let changed = |why: &str| io::Error::other(format!("line {} of the input has changed: {why}", raw.number));
        let line = raw.bytes.as_deref().ok_or_else(|| changed("it is too long"))?;
        let line = Line::read(line).map_err(|wrong| changed(&wrong.message))?;
        // Nobody asks any more: the run was stopped.
        if !done.contains(&line.custom_id) && found.blocking_send(line).is_err() {
            break;
        }
    }
    Ok(())
}

/// Records results, all that wait at once.
fn write(
    mut journal: Journal,
    mut inbox: Receiver<ResultLine>,
    mut progress: impl FnMut(Counts),
) -> io::Result<Counts> {
    let mut group = Vec::new();
    while inbox.blocking_recv_many(&mut group, MAX_GROUP) > 0 {
        journal.append(&group)?;
        group.clear();
        progress(journal.counts());
    }
    Ok(journal.counts())
}

/// Runs `work` on a thread of its own: it may wait for hours, and tokio's threads are for requests.
pub(super) fn thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<oneshot::Receiver<T>> {
    let (sender, receiver) = oneshot::channel();
    // The receiver is gone if the server stops.
    let run = move || drop(sender.send(work()));
    std::thread::Builder::new().name(name.into()).spawn(run)?;
    Ok(receiver)
}
