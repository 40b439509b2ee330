//! A pool of child processes that parse files, with limits on time, memory and output.

use std::ffi::OsString;
use std::io::{self, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::error::{ReadError, clean};
use super::wire::{Reply, Request, WirePath, read_message, write_message};
use super::{FileRef, Format, Limits, Reading};
use crate::document::Document;

/// A child is replaced after so many files: parsers fragment memory, which is limited.
const FILES_PER_WORKER: u32 = 500;

/// How many notes on a file are kept.
const MAX_NOTES: usize = 20;

/// How much of a child's standard error is kept.
const STDERR_BYTES: usize = 4 << 10;

/// The program that becomes the child. It must call [`worker::run`](super::worker::run).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParserCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

impl ParserCommand {
    /// This program, with its hidden command `parse-files`.
    pub fn this_program() -> io::Result<Self> {
        Ok(Self { program: std::env::current_exe()?, arguments: vec!["parse-files".into()] })
    }
}

/// Reads files of all formats: plain text in this process, others in child processes. Threads
/// share it; each call that needs a child has one of its own.
#[derive(Debug)]
pub struct Parser {
    command: ParserCommand,
    idle: Mutex<Vec<Worker>>,
}

impl Parser {
    /// A pool of children, which are started when they are needed.
    pub fn new(command: ParserCommand) -> Self {
        Self { command, idle: Mutex::default() }
    }

    /// Reads a file and passes on its documents as they come. The result is notes for the user. If
    /// it is an error, documents passed on before it are not to be kept.
    pub fn read(
        &self,
        file: FileRef<'_>,
        format: Format,
        limits: &Limits,
        each: &mut dyn FnMut(Document),
    ) -> Result<Vec<String>, ReadError> {
        if !format.needs_parser() {
            let Reading { documents, notes } = super::read(file, format, limits)?;
            documents.into_iter().for_each(each);
            return Ok(notes);
        }
        let (root, relative) = (WirePath::new(file.root)?, WirePath::new(file.relative)?);
        let request = Request { root, relative, format, limits: *limits };
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // An idle child may have been killed meanwhile; a fresh one has no excuse.
        let idle = idle.and_then(|mut worker| worker.send(&request).is_ok().then_some(worker));
        let mut worker = match idle {
            Some(worker) => worker,
            None => {
                let mut worker = Worker::start(&self.command).map_err(|e| self.failure(&e))?;
                worker.send(&request).map_err(|e| self.failure(&e))?;
                worker
            }
        };
        let result = worker.receive(limits, each);
        // After an error of the file, which the child itself reports, the child is sound.
        if !matches!(&result, Err(Failure::Worker(_))) && worker.files < FILES_PER_WORKER {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
        }
        result.map_err(|(Failure::File(error) | Failure::Worker(error))| error.cleaned())
    }

    /// Reads a file whole.
    pub fn read_all(&self, file: FileRef<'_>, format: Format, limits: &Limits) -> Result<Reading, ReadError> {
        let mut documents = Vec::new();
        let notes = self.read(file, format, limits, &mut |document| documents.push(document))?;
        Ok(Reading { documents, notes })
    }

    fn failure(&self, error: &io::Error) -> ReadError {
        ReadError::Process(format!("{}: {error}", self.command.program.display()))
    }
}

/// Why a file was not read, and whether the child can go on.
enum Failure {
    File(ReadError),
    Worker(ReadError),
}

/// What the thread that reads a child's output passes on; `None` at its end.
type Received = io::Result<Option<Reply>>;

#[derive(Debug)]
struct Worker {
    child: Child,
    stdin: ChildStdin,
    replies: Receiver<Received>,
    stderr: Option<JoinHandle<Vec<u8>>>,
    files: u32,
}

impl Worker {
    fn start(command: &ParserCommand) -> io::Result<Self> {
        let mut command_line = Command::new(&command.program);
        command_line.args(&command.arguments);
        command_line.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        own_group(&mut command_line);
        let mut child = command_line.spawn()?;
        let missing = || io::Error::other("the child has no pipes");
        let stdin = child.stdin.take().ok_or_else(missing)?;
        let stdout = child.stdout.take().ok_or_else(missing)?;
        let stderr = child.stderr.take().ok_or_else(missing)?;
        // Few replies wait, so that a slow reader slows the child.
        let (send, replies) = sync_channel(2);
        thread::Builder::new().name("parser replies".into()).spawn(move || {
            let mut stdout = BufReader::new(stdout);
            loop {
                let reply: Received = read_message(&mut stdout);
                let is_last = !matches!(reply, Ok(Some(_)));
                if send.send(reply).is_err() || is_last {
                    return;
                }
            }
        })?;
        let stderr = thread::Builder::new().name("parser errors".into()).spawn(move || tail(stderr))?;
        Ok(Self { child, stdin, replies, stderr: Some(stderr), files: 0 })
    }

    fn send(&mut self, request: &Request) -> io::Result<()> {
        self.files += 1;
        write_message(&mut self.stdin, request)
    }

    /// Receives the documents of a file. Only the time in which this waits counts, not the time
    /// that the caller takes for a document.
    fn receive(&mut self, limits: &Limits, each: &mut dyn FnMut(Document)) -> Result<Vec<String>, Failure> {
        let mut left = Duration::from_secs(limits.seconds);
        let (mut rows, mut text_bytes) = (0_u64, 0_usize);
        loop {
            let began = Instant::now();
            let received = self.replies.recv_timeout(left);
            left = left.saturating_sub(began.elapsed());
            let documents = match received {
                Ok(Ok(Some(Reply::Documents(documents)))) if !documents.is_empty() => documents,
                Ok(Ok(Some(Reply::Done(notes)))) => {
                    return Ok(notes.iter().take(MAX_NOTES).map(|note| clean(note)).collect());
                }
                Ok(Ok(Some(Reply::Failed(error)))) => return Err(Failure::File(error)),
                Ok(Ok(Some(Reply::Documents(_)))) => return Err(protocol("it sent an empty message")),
                Ok(Ok(None)) | Err(RecvTimeoutError::Disconnected) => return Err(self.ended(limits)),
                Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(self.ended(limits)),
                Ok(Err(error)) => return Err(protocol(&error.to_string())),
                Err(RecvTimeoutError::Timeout) => return Err(Failure::Worker(ReadError::Time(limits.seconds))),
            };
            // The child keeps these limits itself, unless a file made it do something else.
            rows += documents.len() as u64;
            text_bytes += documents.iter().map(|document| document.text.len()).sum::<usize>();
            if rows > limits.rows.max(1) || text_bytes > limits.text_bytes {
                return Err(protocol("it sent more than it may"));
            }
            if !documents.iter().all(is_sound) {
                return Err(protocol("it sent a document with offsets beyond its text"));
            }
            documents.into_iter().for_each(&mut *each);
        }
    }

    /// Why the child ended.
    fn ended(&mut self, limits: &Limits) -> Failure {
        let status = self.status();
        let stderr = self.stderr.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        let stderr = String::from_utf8_lossy(&stderr);
        // What Rust's and C++'s allocators print, and Rust where it cannot extend a stack.
        if stderr.contains("memory allocation of") || stderr.contains("bad_alloc") {
            return Failure::Worker(ReadError::Memory(limits.memory_bytes));
        }
        let last: String = stderr.lines().last().unwrap_or_default().chars().take(200).collect();
        let status = status.map_or_else(|e| e.to_string(), |status| status.to_string());
        let why = if last.is_empty() { status } else { format!("{status}: {last}") };
        Failure::Worker(ReadError::Crashed(why))
    }

    /// The exit status. A child that closed its output ends soon, or is killed.
    fn status(&mut self) -> io::Result<ExitStatus> {
        for _ in 0..200 {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(5));
        }
        self.child.kill()?;
        self.child.wait()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn protocol(why: &str) -> Failure {
    Failure::Worker(ReadError::Process(why.to_string()))
}

/// Whether the offsets of a document lie in its text.
fn is_sound(document: &Document) -> bool {
    let text = &document.text;
    let layout = &document.layout;
    layout.starts.iter().all(|(offset, _)| text.is_char_boundary(*offset))
        && layout.headings.iter().all(|heading| text.is_char_boundary(heading.offset))
        && layout.starts.is_sorted()
        && layout.headings.is_sorted_by_key(|heading| heading.offset)
}

/// The end of what a child writes to standard error.
fn tail(mut stderr: impl Read) -> Vec<u8> {
    let (mut kept, mut buffer) = (Vec::new(), [0; 1024]);
    while let Ok(count @ 1..) = stderr.read(&mut buffer) {
        kept.extend_from_slice(&buffer[..count]);
        let excess = kept.len().saturating_sub(STDERR_BYTES);
        kept.drain(..excess);
    }
    kept
}

/// An interrupt from the terminal is for this process, which then ends its children.
#[cfg(unix)]
fn own_group(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    command.process_group(0);
}

#[cfg(not(unix))]
fn own_group(_: &mut Command) {}
