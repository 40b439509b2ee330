//! The child process that parses untrusted files. It limits its own memory; its parent limits its
//! time. What it may do otherwise is what its user may: it is no sandbox against code execution.

use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;

use super::error::ReadError;
use super::wire::{Reply, Request, read_message, write_message};
use super::{FileRef, Format, Limits, Reading, html, pdf, source, table, text};
use crate::document::Document;

/// Parsers of PDF recurse with the nesting of objects.
const STACK_BYTES: usize = 64 << 20;

/// How much text is sent in one message.
const BATCH_BYTES: usize = 1 << 20;

/// The hidden command `parse-files`: answers requests from standard input on standard output. What
/// parsers print goes to standard error instead, where it cannot be taken for an answer.
#[cfg(unix)]
pub fn main() -> io::Result<()> {
    let output = std::fs::File::from(rustix::io::dup(io::stdout())?);
    rustix::stdio::dup2_stdout(io::stderr())?;
    run(io::stdin(), output)
}

/// The hidden command `parse-files`: answers requests from standard input on standard output.
#[cfg(not(unix))]
pub fn main() -> io::Result<()> {
    run(io::stdin(), io::stdout())
}

/// Answers requests until `input` ends. For a process that does nothing else: it silences panics
/// and limits the process's memory, and the process exits when `input` ends, even while it parses,
/// so that it does not outlive its parent.
pub fn run(input: impl Read + Send + 'static, output: impl Write + Send + 'static) -> io::Result<()> {
    std::panic::set_hook(Box::new(|_| {}));
    let (send, requests) = mpsc::sync_channel(1);
    let (done, ended) = mpsc::channel();
    thread::Builder::new().name("requests".into()).spawn(move || {
        let mut input = input;
        // An error is the end too: the parent wrote something that cannot be understood.
        while let Ok(Some(request)) = read_message::<Request>(&mut input) {
            if send.send(request).is_err() {
                return;
            }
        }
        std::process::exit(0);
    })?;
    thread::Builder::new().name("parser".into()).stack_size(STACK_BYTES).spawn(move || {
        let _ = done.send(answer_all(&requests, output));
    })?;
    ended.recv().unwrap_or_else(|_| Err(io::Error::other("the parser's thread ended")))
}

fn answer_all(requests: &mpsc::Receiver<Request>, mut output: impl Write) -> io::Result<()> {
    let mut memory = None;
    while let Ok(request) = requests.recv() {
        if memory.is_none() {
            memory = Some(Memory::limit(request.limits.memory_bytes)?);
        }
        let Some(memory) = &memory else { continue };
        let reply = match answer(request, memory, &mut output) {
            Ok(notes) => Reply::Done(notes),
            Err(error) => Reply::Failed(error),
        };
        write_message(&mut output, &reply)?;
    }
    Ok(())
}

/// Parses one file and sends its documents.
fn answer(request: Request, memory: &Memory, output: &mut impl Write) -> Result<Vec<String>, ReadError> {
    let Request { root, relative, format, limits } = request;
    let peak = memory.peak();
    let (root, relative) = (root.into_path(), relative.into_path());
    let file = FileRef { root: &root, relative: &relative };
    let mut batch = Batch { output, documents: Vec::new(), bytes: 0 };
    let parsed = catch_unwind(AssertUnwindSafe(|| parse(file, format, &limits, &mut |document| batch.push(document))));
    match parsed {
        Ok(Ok(mut notes)) => {
            batch.send()?;
            if format == Format::Pdf && memory.was_short_since(peak) {
                notes.push("the parser was short of memory, so that some of the text may be missing".to_string());
            }
            Ok(notes)
        }
        Ok(Err(error)) => Err(memory.as_limit(error, peak)),
        Err(panic) => Err(memory.as_limit(ReadError::Crashed(message(panic.as_ref())), peak)),
    }
}

/// Parses one file of any format.
fn parse(
    file: FileRef<'_>,
    format: Format,
    limits: &Limits,
    each: &mut dyn FnMut(Document) -> io::Result<()>,
) -> Result<Vec<String>, ReadError> {
    let source = source::open(file)?;
    let Reading { documents, notes } = match format {
        Format::Html => html::read(source, limits)?,
        Format::Pdf => pdf::read(source, limits)?,
        Format::Csv | Format::Tsv | Format::JsonLines | Format::Parquet => {
            return table::read(source, format, limits, each);
        }
        Format::Text | Format::Markdown | Format::Code(_) => text::read(source, format, limits)?,
    };
    for document in documents {
        each(document)?;
    }
    Ok(notes)
}

/// Documents that wait to be sent together.
struct Batch<'a, W> {
    output: &'a mut W,
    documents: Vec<Document>,
    bytes: usize,
}

impl<W: Write> Batch<'_, W> {
    fn push(&mut self, document: Document) -> io::Result<()> {
        // Metadata and the fields' names are about as much as the text of a short row.
        self.bytes += document.text.len() * 2 + 200;
        self.documents.push(document);
        if self.bytes >= BATCH_BYTES { self.send() } else { Ok(()) }
    }

    fn send(&mut self) -> io::Result<()> {
        self.bytes = 0;
        if self.documents.is_empty() {
            return Ok(());
        }
        write_message(self.output, &Reply::Documents(std::mem::take(&mut self.documents)))
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("panic").chars().take(200).collect()
}

/// The memory of this process.
struct Memory {
    /// The limit, without what the process had before.
    bytes: u64,
    /// The address space when the limit was set; 0 where there is no limit.
    before: u64,
}

impl Memory {
    /// The most address space that the process has had.
    fn peak(&self) -> u64 {
        status("VmPeak:").unwrap_or(0)
    }

    /// Whether memory was likely refused since the peak was `peak`. Parsers of PDF ignore that a
    /// stream could not be unpacked; vectors double, so they fail at half of the limit.
    fn was_short_since(&self, peak: u64) -> bool {
        let now = self.peak();
        self.before > 0 && now > peak && now.saturating_sub(self.before) > self.bytes / 5 * 2
    }

    /// The memory limit in place of an error that follows from it. Parsers report a refused
    /// allocation in words of their own, or as something else.
    fn as_limit(&self, error: ReadError, peak: u64) -> ReadError {
        let (ReadError::Malformed(why) | ReadError::Crashed(why) | ReadError::Io(why)) = &error else { return error };
        let why = why.to_ascii_lowercase();
        if self.was_short_since(peak) || why.contains("out of memory") || why.contains("memory alloc") {
            return ReadError::Memory(self.bytes);
        }
        error
    }

    /// Limits the address space to what the process has now and `bytes` more: what a program maps
    /// at its start (libraries of a GPU) differs much. Neither can memory dumps be written.
    #[cfg(target_os = "linux")]
    fn limit(bytes: u64) -> io::Result<Self> {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let before = status("VmSize:").ok_or_else(|| io::Error::other("/proc/self/status has no VmSize"))?;
        let hard = getrlimit(Resource::As).maximum;
        let limit = before.saturating_add(bytes).min(hard.unwrap_or(u64::MAX));
        setrlimit(Resource::As, Rlimit { current: Some(limit), maximum: Some(limit) })?;
        setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
        Ok(Self { bytes, before })
    }

    /// Other systems have no limit of the address space that holds.
    #[cfg(not(target_os = "linux"))]
    fn limit(bytes: u64) -> io::Result<Self> {
        Ok(Self { bytes, before: 0 })
    }
}

/// A line of `/proc/self/status`, in bytes; `None` where there is no such file.
fn status(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()?.saturating_mul(1024))
}
