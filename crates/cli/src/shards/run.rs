//! Computes shards: opens them, runs the model on their rows, and completes the outputs.

use super::commits::{Commits, RunCounts, Session};
use super::open_shard::{OpenShard, ResultCounts, Throughput};
use super::plan::{Needed, Plan, record_columns};
use super::reader::{BadRows, Place, ShardReader};
use super::refused_texts::{PartialResults, run_without_refused};
use super::stop::Stop;
use crate::Failure;
use crate::input::Text;
use crate::output::{ResultNames, ResultsOf, Writer};
use crate::report::Report;
use crate::row::Columns;
use crate::summary::{Summary, WindowResult};
use crate::window_runner::{BAR, ModelCall, Texts, Total};
use sconce_engine::{Loaded, RequestContext};
use sconce_shards::{Claim, Coordinator, Holder, InputStore, Job, Listed, Manifest, Monotonic, Start, Store};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{channel, sync_channel};
use std::thread;
use std::time::Duration;

/// A run of shards, found or planned, before the model is loaded.
pub(crate) struct ShardRun {
    pub(super) out: String,
    pub(super) store: Arc<dyn Store>,
    pub(super) inputs: InputStore,
    pub(super) files: Vec<Listed>,
    pub(super) job: Job,
    pub(super) lease: Duration,
    /// The manifest, if the run has begun.
    pub(super) known: Option<Manifest>,
    pub(super) plan: Plan,
    pub(super) needed: Needed,
}

/// What is written for each row.
pub(crate) struct ShardOutput<'a> {
    pub(crate) model: &'a dyn Loaded,
    pub(crate) names: ResultNames,
    pub(crate) of: fn(Columns) -> ResultsOf,
    /// A flag that reads long texts whole.
    pub(crate) way_out: Option<&'static str>,
}

impl ShardRun {
    /// Runs the model on the texts of all shards, and passes each window's results to `write`.
    pub(crate) fn texts<A: WindowResult + Send + 'static>(
        self,
        report: &Report,
        output: &ShardOutput<'_>,
        model_call: ModelCall<'_, impl Fn(&[Text]) -> Result<A, Failure> + Sync>,
        mut write: impl FnMut(&mut Writer, A, &[Text]) -> Result<(), Failure>,
    ) -> Result<ExitCode, Failure> {
        let ModelCall { context, run } = model_call;
        self.each(report, output, context, |open, needed, total| {
            let texts = Texts::of(open.texts(needed));
            // A context of its own: the end of one shard is not the end of the model's work.
            let shard_context = RequestContext::default();
            let call = ModelCall { context: &shard_context, run: |window: &[Text]| run_without_refused(window, &run) };
            texts.add_windows(total, call, |partial: PartialResults<A>, window| {
                open.check()?;
                let (answer, window) = partial.split(window, &open.bad);
                let Some(answer) = answer else { return Ok(()) };
                let truncated = (0..window.len()).filter(|i| answer.is_truncated(*i)).count();
                open.count(window.len() as u64, answer.tokens() as u64, truncated as u64);
                write(&mut open.writer, answer, &window)
            })
        })
    }

    /// Calls `work` for each shard that this process claims, until all shards are done.
    pub(crate) fn each(
        mut self,
        report: &Report,
        output: &ShardOutput<'_>,
        context: &RequestContext,
        mut work: impl FnMut(&mut OpenShard<'_>, &Needed, &mut Total) -> Result<(), Failure>,
    ) -> Result<ExitCode, Failure> {
        let manifest = Arc::new(self.begin(output)?);
        let coordinator = self.join(manifest.clone())?;
        let stop = Stop::install(context)?;
        let session = Session { coordinator: &coordinator, manifest: &manifest, stop: &stop, report };
        let all = manifest.shards.len();
        report.info(&format!("{}: {} of {all} shards are done", self.out, coordinator.done()));
        let bytes: u64 = self.files.iter().map(|file| file.size).sum();
        let mut total = Total { bar: report.bar(BAR, Some(bytes)), summary: Summary::start() };
        let mut counts = RunCounts::default();
        let worked = thread::scope(|scope| {
            // The threads end when these senders are dropped.
            let (_heartbeats, heartbeats_stopped) = channel();
            let (_watch, watch_stopped) = channel();
            let (finished, to_commit) = sync_channel(0);
            let (committed_to, committed) = channel();
            scope.spawn(move || session.send_heartbeats(&heartbeats_stopped));
            scope.spawn(move || session.watch_others(&watch_stopped));
            scope.spawn(move || session.commit_all(to_commit, committed_to));
            let mut commits = Commits { session, finished, committed, in_flight: 0, counts: &mut counts };
            let mut throughput = Throughput::start();
            while let Some(claim) = session.claim_next(&mut commits)? {
                let done = coordinator.done() as u64;
                total.bar.set_position(bytes.saturating_mul(done) / all.max(1) as u64);
                let opened = self.open_shard(session, &claim, output, &mut throughput);
                let computed = opened.and_then(|mut open| {
                    work(&mut open, &self.needed, &mut total)?;
                    open.finish()
                });
                match computed {
                    Ok(finished) => {
                        session.retry(|| coordinator.seal(&claim, &finished))?;
                        commits.send(claim, finished)?;
                    }
                    Err(e) => session.abandon(&claim, e)?,
                }
            }
            commits.take_all()
        });
        total.bar.finish_and_clear();
        worked?;
        total.summary.report(report, output.model, output.way_out);
        self.conclude(&counts, session)
    }

    /// Writes the manifest, or checks that it wants the same.
    fn begin(&mut self, output: &ShardOutput<'_>) -> Result<Manifest, Failure> {
        let model = output.model;
        self.job.model.revision = Some(model.files().revision()?);
        self.job.model.dtype = Some(model.plan().format());
        // Names of columns that clash are an error before anything is recorded.
        let probe = tempfile::NamedTempFile::new()?;
        drop(Writer::of_shard(probe.path(), output.names, (output.of)(self.plan.columns.clone()))?);
        if let Some(manifest) = self.known.take() {
            manifest.check_job(&self.job, &*self.store)?;
            return Ok(manifest);
        }
        let (inputs, shards) = (self.plan.inputs.clone(), self.plan.shards.clone());
        let mut manifest = Manifest::new(self.job.clone(), self.lease, inputs, shards);
        manifest.columns = record_columns(&self.plan.columns);
        Ok(manifest.begin(&*self.store)?)
    }

    fn join(&self, manifest: Arc<Manifest>) -> Result<Coordinator, Failure> {
        let holder = Holder::new(sysinfo::System::host_name().unwrap_or_else(|_| "unknown".into()))
            .map_err(|e| format!("no random numbers: {e}"))?;
        // Processes begin at different places; the id is random.
        let first = usize::from_str_radix(holder.id.get(..6).unwrap_or_default(), 16).unwrap_or(0);
        let (store, clock) = (self.store.clone(), Arc::new(Monotonic::default()));
        Ok(Coordinator::join(Start { store, clock, holder, manifest, first })?)
    }

    fn open_shard<'a>(
        &self,
        session: Session<'a>,
        claim: &'a Claim,
        output: &ShardOutput<'_>,
        throughput: &'a mut Throughput,
    ) -> Result<OpenShard<'a>, Failure> {
        let shard = session.manifest.shards.get(claim.shard).ok_or("a shard that the manifest does not list")?;
        let file = self.files.get(shard.input).ok_or("an input that the manifest does not list")?;
        let bad = BadRows::default();
        let reader = ShardReader::open(&Place { inputs: &self.inputs, file, shard }, &self.needed, &bad)?;
        let writer = Writer::of_shard(&claim.file, output.names, (output.of)(self.plan.columns.clone()))?;
        let counts = ResultCounts::default();
        Ok(OpenShard { writer, reader: Some(reader), bad, session, throughput, claim, counts })
    }

    fn conclude(&self, counts: &RunCounts, session: Session<'_>) -> Result<ExitCode, Failure> {
        let Session { coordinator, report, .. } = session;
        let (out, all, done) = (&self.out, session.manifest.shards.len(), coordinator.done());
        let RunCounts { published, late, bad_rows } = counts;
        if *bad_rows > 0 {
            let bad = self.store.display("bad");
            report.warn(&format!("{bad_rows} rows have no result; {bad} lists them with the reason"));
        }
        if *late > 0 {
            report.warn(&format!("{late} outputs of this process were not needed: others had made them"));
        }
        if done == all {
            report.info(&format!("{out}: all {all} shards are done, {published} of them by this process"));
            return Ok(ExitCode::SUCCESS);
        }
        report.info(&format!("stopped: {done} of {all} shards are done; run the same command again to go on"));
        Ok(ExitCode::from(130))
    }
}
