//! `sconce bench --compare`: other engines beside ours, on the same model, tokens and number of
//! threads.
//!
//! All engines are timed in each round, so that other load on the machine affects them alike. Each
//! is warmed up before every measurement, and medians are reported. The vectors are compared as
//! well, because an engine that computes something else may well be faster.

mod our_engine;
mod peer;
mod report;
mod rows;

use self::our_engine::OurEngine;
use self::peer::{Peer, Python};
use self::rows::Row;
use super::Bench;
use crate::Failure;
use crate::commands::print;
use crate::report::Report;
use clap::Args;
use sconce_engine::Loaded;
use sconce_ops::threads;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Text of the time to the first vector.
const FIRST_TEXT: &str = "A man is eating food.";

/// Starts of a process for the time to its first vector; the first one fills the page cache and
/// does not count.
const STARTS: usize = 4;

/// Options of the comparison.
#[derive(Args)]
pub(crate) struct Compare {
    /// Time other engines beside this one, on the same tokens and number of threads: those of
    /// sentence-transformers, ONNX Runtime, OpenVINO and fastembed that --python has.
    #[arg(long, conflicts_with = "ops")]
    pub(super) compare: bool,
    /// Python interpreter that has the other engines.
    #[arg(long, value_name = "PATH", default_value = "python3", env = "SCONCE_PYTHON")]
    python: PathBuf,
    /// Compare only with engines whose names begin so: onnxruntime, "openvino bf16".
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    peers: Vec<String>,
    /// Script to run in place of the built-in one.
    #[arg(long, value_name = "FILE", hide = true)]
    peer_script: Option<PathBuf>,
}

/// Times of an engine.
#[derive(Debug, Default)]
struct Engine {
    name: String,
    is_ours: bool,
    /// Lowest cosine similarity of its vectors to those of our first format.
    cosine: f64,
    /// Median seconds of each round, by row.
    rounds: Vec<Vec<f64>>,
    /// Seconds from the start of a process to its first vector.
    first: Vec<f64>,
}

/// A peer and the Python packages that it lacks.
type MissingPackages = (String, Vec<String>);

/// The whole comparison.
struct Comparison {
    model: String,
    threads: usize,
    rows: Vec<Row>,
    engines: Vec<Engine>,
    /// Peers that are not installed.
    missing: Vec<MissingPackages>,
    /// Peers that failed, with the error.
    failed: Vec<(String, String)>,
}

impl Bench {
    pub(super) fn compare(&self, report: &Report) -> Result<ExitCode, Failure> {
        let scratch = tempfile::tempdir()?;
        let python = Python::new(&self.compare.python, self.compare.peer_script.as_deref(), scratch.path())?;
        let (peers, missing) = self.chosen(python.peers()?)?;
        let ours = OurEngine::load_all(&self.model, report)?;
        let Some(one) = ours.first() else { return Err("no format to compare".into()) };
        let rows = rows::all(&one.embedder)?;
        let check = rows::check(&one.embedder)?;
        let expected = one.vectors(&check)?;
        let job = json!({
            "model": one.embedder.files().directory()?,
            "scratch": scratch.path(),
            "threads": threads::count(),
            "seconds": self.seconds / self.reps as f64,
            "dimension": one.embedder.plan().dimension,
            "text": FIRST_TEXT,
            "check": check,
            "rows": rows.iter().map(Row::job).collect::<Vec<Value>>(),
        });
        python.write_job(&job)?;
        if peers.iter().any(|peer| !peer.starts_with("sentence-transformers")) {
            report.info("exporting the model to ONNX");
            if let Err(why) = python.export() {
                report.warn(&format!("cannot export the model to ONNX: {why}"));
            }
        }
        let mut comparison = Comparison {
            model: self.model.model.clone(),
            threads: threads::count(),
            rows,
            engines: Vec::new(),
            missing,
            failed: Vec::new(),
        };
        let mut running: Vec<Option<Peer>> = Vec::new();
        for mine in &ours {
            comparison.add_engine(
                &format!("sconce {}", mine.format),
                true,
                report::min_cosine(&expected, &mine.vectors(&check)?),
            );
            running.push(None);
        }
        for name in &peers {
            report.info(&format!("loading {name}"));
            match python.serve(name) {
                Ok((peer, vectors)) => {
                    comparison.add_engine(name, false, report::min_cosine(&expected, &vectors));
                    running.push(Some(peer));
                }
                Err(why) => comparison.failed.push((name.clone(), why.to_string())),
            }
        }
        self.rounds(&ours, &mut running, &mut comparison, report)?;
        drop(running);
        for (i, engine) in comparison.engines.iter_mut().enumerate() {
            report.info(&format!("starting {}", engine.name));
            let start = || match ours.get(i) {
                Some(mine) => mine.start(FIRST_TEXT),
                None => python.first(&engine.name),
            };
            match (0..STARTS).map(|_| start()).collect::<Result<Vec<f64>, _>>() {
                Ok(times) => engine.first = times[1..].to_vec(),
                Err(why) => comparison.failed.push((engine.name.clone(), why.to_string())),
            }
        }
        print(&if self.json { report::as_json(&comparison).to_string() } else { report::as_text(&comparison) })?;
        Ok(ExitCode::SUCCESS)
    }

    /// The requested peers: installed, and not installed.
    fn chosen(&self, all: Vec<MissingPackages>) -> Result<(Vec<String>, Vec<MissingPackages>), Failure> {
        let wanted = &self.compare.peers;
        if let Some(unknown) = wanted.iter().find(|w| !all.iter().any(|(name, _)| name.starts_with(w.as_str()))) {
            let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
            return Err(format!("--peers {unknown}: no such engine; engines: {}", names.join(", ")).into());
        }
        let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|w| name.starts_with(w.as_str()));
        let (here, missing): (Vec<_>, Vec<_>) =
            all.into_iter().filter(|(name, _)| is_wanted(name)).partition(|(_, missing)| missing.is_empty());
        Ok((here.into_iter().map(|(name, _)| name).collect(), missing))
    }

    /// Times every engine once per round, each round in another order.
    fn rounds(
        &self,
        ours: &[OurEngine],
        running: &mut [Option<Peer>],
        comparison: &mut Comparison,
        report: &Report,
    ) -> Result<(), Failure> {
        let bar = report.bar("{msg} [{bar:30}] {pos}/{len}", Some((self.reps * running.len()) as u64));
        for round in 0..self.reps {
            for turn in 0..running.len() {
                let i = (round + turn) % running.len();
                bar.set_message(comparison.engines[i].name.clone());
                let seconds = match &mut running[i] {
                    None => ours[i].round(&comparison.rows, self.seconds / self.reps as f64)?,
                    Some(peer) => {
                        peer.round(&comparison.rows).map_err(|e| format!("{}: {e}", comparison.engines[i].name))?
                    }
                };
                comparison.engines[i].rounds.iter_mut().zip(seconds).for_each(|(all, s)| all.push(s));
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        Ok(())
    }
}

impl Comparison {
    fn add_engine(&mut self, name: &str, is_ours: bool, cosine: f64) {
        let rounds = vec![Vec::new(); self.rows.len()];
        self.engines.push(Engine { name: name.into(), is_ours, cosine, rounds, first: Vec::new() });
    }
}
