//! Answers the lines of a file without listening: what `sconce batch` does. The lines run through
//! the same router, and are read and recorded by the same code, as those of `/v1/batches`.

use crate::app::App;
use crate::batches::{Asker, Counts, Gate, Journal, Limits, Lines, Rules, Run, check};
use crate::config::Config;
use crate::dialect;
use crate::model_manager::{ModelManager, ModelSpec};
use crate::owner::Owner;
use crate::stop::Stop;
use sconce_api::openai::batches::BatchError;
use sconce_engine::LoadOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a line has besides the request's body, at most.
const LINE_HEAD: usize = 64 << 10;

/// Files of requests and of their results.
#[derive(Clone, Debug)]
pub struct BatchFile {
    /// The requests, one per line, as in OpenAI's batches.
    pub input: PathBuf,
    /// The results, one per line. If there are some already, their requests are not run again.
    pub output: PathBuf,
}

/// Results so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchProgress {
    /// Requests of the file.
    pub total: usize,
    /// Requests that succeeded, now or in an earlier run.
    pub completed: usize,
    /// Requests that failed.
    pub failed: usize,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSummary {
    /// All results.
    pub progress: BatchProgress,
    /// Results of earlier runs.
    pub earlier: usize,
    /// Whether it was stopped before every line had a result.
    pub stopped: bool,
}

/// Why a file cannot be answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchFileError {
    /// A file cannot be read or written.
    #[error("{}: {why}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// Lines of the input are not valid requests. None was answered.
    #[error("{}: {}", path.display(), join(errors))]
    Lines {
        /// The input.
        path: PathBuf,
        /// The first errors.
        errors: Vec<BatchError>,
    },
    /// The output has results of other requests.
    #[error("{}: it has a result of `{id}`, which is not in the input; name another output", path.display())]
    Output {
        /// The output.
        path: PathBuf,
        /// A request that is not in the input.
        id: String,
    },
    /// The models cannot be served.
    #[error("{0}")]
    Models(String),
}

fn join(errors: &[BatchError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Answers the lines of a file that have no result yet, until `stop` is signalled. `config` has the
/// limits; [`Config::batch_lines`] is how many lines are answered at once. Calls `progress` as
/// results are recorded.
pub async fn answer_file(
    config: Config,
    models: Vec<ModelSpec>,
    file: BatchFile,
    stop: Stop,
    mut progress: impl FnMut(BatchProgress) + Send + 'static,
) -> Result<BatchSummary, BatchFileError> {
    let line_bytes = config.payload_limit.saturating_add(LINE_HEAD);
    let BatchFile { input, output } = file;
    // Before a model is loaded.
    let total = check_input(&input, &models, line_bytes)?;
    let (journal, done) = Journal::open(&output).map_err(at(&output))?;
    check_output(&input, line_bytes, &done, &output)?;
    let earlier = journal.counts();
    let of = move |Counts { completed, failed }: Counts| BatchProgress { total, completed, failed };
    progress(of(earlier));
    if earlier.all() == total {
        return Ok(BatchSummary { progress: of(earlier), earlier: total, stopped: false });
    }
    let app = load(config, models, stop).await?;
    let width = app.config.batch_lines.max(1);
    let router = dialect::background_router(&app);
    let asker = Asker::new(router, Gate::new(app.clone(), width), Owner::default(), &[]);
    let lines = Lines::open(&input, line_bytes).map_err(at(&input))?;
    let run = Run { lines, journal, done, width };
    let recorded = move |counts| progress(of(counts));
    let (counts, stopped) = run.answer(&asker, app.stop.drained(), recorded).await.map_err(at(&output))?;
    Ok(BatchSummary { progress: of(counts), earlier: earlier.all(), stopped: stopped.is_some() })
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> BatchFileError {
    let path = path.to_owned();
    move |why| BatchFileError::Io { path, why }
}

/// Checks all lines, and returns their number.
fn check_input(input: &Path, models: &[ModelSpec], line_bytes: usize) -> Result<usize, BatchFileError> {
    let knows_model = |name: &str| models.iter().any(|spec| spec.is_called(name));
    let rules = Rules { endpoint: None, knows_model: &knows_model };
    let limits = Limits { lines: usize::MAX, bytes: u64::MAX, line_bytes };
    let checked = check(input, &rules, &limits).map_err(at(input))?;
    match checked.errors.is_empty() {
        true => Ok(checked.total),
        false => Err(BatchFileError::Lines { path: input.to_owned(), errors: checked.errors }),
    }
}

/// Refuses an output that has results of another input.
fn check_output(
    input: &Path,
    line_bytes: usize,
    done: &std::collections::HashSet<String>,
    output: &Path,
) -> Result<(), BatchFileError> {
    let mut unknown: std::collections::HashSet<&str> = done.iter().map(String::as_str).collect();
    let mut lines = Lines::open(input, line_bytes).map_err(at(input))?;
    while !unknown.is_empty()
        && let Some(raw) = lines.next().map_err(at(input))?
    {
        if let Some(line) = raw.bytes.as_deref().and_then(|bytes| crate::batches::Line::read(bytes).ok()) {
            unknown.remove(line.custom_id.as_str());
        }
    }
    match unknown.into_iter().min() {
        None => Ok(()),
        Some(id) => Err(BatchFileError::Output { path: output.to_owned(), id: id.to_owned() }),
    }
}

/// Loads the models, and waits until all are ready.
async fn load(config: Config, models: Vec<ModelSpec>, stop: Stop) -> Result<Arc<App>, BatchFileError> {
    let failed = |why: String| BatchFileError::Models(why);
    let defaults = match models.first() {
        Some(first) => first.load.clone(),
        None => LoadOptions::from_env().map_err(|e| failed(e.to_string()))?,
    };
    let manager = ModelManager::new(config.memory_budget, defaults);
    for spec in models {
        manager.register(spec).map_err(|fault| failed(fault.message))?;
    }
    let app = App::new(config, manager, stop).map_err(failed)?;
    tokio::select! {
        () = app.models.settled() => app.models.ready().map_err(|fault| failed(fault.message))?,
        () = app.stop.drained() => {}
    }
    Ok(app)
}
