//! `sconce bench --compare`: other engines beside ours, on the same model, the same tokens and as many threads.
//!
//! They are timed in rounds, every engine in each, so that whatever else the machine does falls on all of them alike; each is warmed up
//! before every measurement, and medians are told. Vectors are compared as well, for who computes something else may well be faster.

mod ours;
mod peer;
mod rows;
mod shown;

use self::ours::Ours;
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

/// The text of which the first vector is waited for.
const FIRST: &str = "A man is eating food.";

/// How often a process is started for its first vector; the first time brings files into memory and does not count.
const STARTS: usize = 4;

/// What is compared.
#[derive(Args)]
pub(crate) struct Compare {
    /// Time other engines beside this one, on the same tokens and as many threads: those that --python has of
    /// sentence-transformers, ONNX Runtime, OpenVINO and fastembed.
    #[arg(long, conflicts_with = "ops")]
    pub(super) compare: bool,
    /// The Python that has them.
    #[arg(long, value_name = "PATH", default_value = "python3", env = "SCONCE_PYTHON")]
    python: PathBuf,
    /// Compare with these only, by how their names begin: onnxruntime, "openvino bf16".
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    peers: Vec<String>,
    /// Another script that does what ours does.
    #[arg(long, value_name = "FILE", hide = true)]
    peer_script: Option<PathBuf>,
}

/// An engine's times.
#[derive(Debug, Default)]
struct Engine {
    name: String,
    is_ours: bool,
    /// The least between its vectors and our first format's.
    cosine: f64,
    /// Of every row, the median seconds of each round.
    rounds: Vec<Vec<f64>>,
    /// Seconds from the start of a process to its first vector.
    first: Vec<f64>,
}

/// A peer, and what it lacks to run here.
type Lacking = (String, Vec<String>);

/// All that was found.
struct Found {
    model: String,
    threads: usize,
    rows: Vec<Row>,
    engines: Vec<Engine>,
    /// Peers that are not there, and what they lack.
    missing: Vec<Lacking>,
    /// Peers that failed, and how.
    failed: Vec<(String, String)>,
}

impl Bench {
    pub(super) fn compare(&self, report: &Report) -> Result<ExitCode, Failure> {
        let scratch = tempfile::tempdir()?;
        let python = Python::new(&self.compare.python, self.compare.peer_script.as_deref(), scratch.path())?;
        let (peers, missing) = self.chosen(python.peers()?)?;
        let ours = Ours::load_all(&self.model, report)?;
        let Some(one) = ours.first() else { return Err("there is nothing to compare with".into()) };
        let rows = rows::of(&one.embedder)?;
        let check = rows::check(&one.embedder)?;
        let expected = one.vectors(&check)?;
        let job = json!({
            "model": one.embedder.files().directory()?,
            "scratch": scratch.path(),
            "threads": threads::count(),
            "seconds": self.seconds / self.reps as f64,
            "dimension": one.embedder.plan().dimension,
            "text": FIRST,
            "check": check,
            "rows": rows.iter().map(Row::job).collect::<Vec<Value>>(),
        });
        python.give(&job)?;
        if peers.iter().any(|peer| !peer.starts_with("sentence-transformers")) {
            report.say("exporting the model to ONNX");
            if let Err(why) = python.export() {
                report.warn(&format!("no ONNX file could be made: {why}"));
            }
        }
        let mut found = Found {
            model: self.model.model.clone(),
            threads: threads::count(),
            rows,
            engines: Vec::new(),
            missing,
            failed: Vec::new(),
        };
        let mut running: Vec<Option<Peer>> = Vec::new();
        for mine in &ours {
            found.enter(&format!("sconce {}", mine.format), true, shown::least(&expected, &mine.vectors(&check)?));
            running.push(None);
        }
        for name in &peers {
            report.say(&format!("loading {name}"));
            match python.serve(name) {
                Ok((peer, vectors)) => {
                    found.enter(name, false, shown::least(&expected, &vectors));
                    running.push(Some(peer));
                }
                Err(why) => found.failed.push((name.clone(), why.to_string())),
            }
        }
        self.rounds(&ours, &mut running, &mut found, report)?;
        drop(running);
        for (i, engine) in found.engines.iter_mut().enumerate() {
            report.say(&format!("starting {}", engine.name));
            let start = || match ours.get(i) {
                Some(mine) => mine.start(FIRST),
                None => python.first(&engine.name),
            };
            match (0..STARTS).map(|_| start()).collect::<Result<Vec<f64>, _>>() {
                Ok(times) => engine.first = times[1..].to_vec(),
                Err(why) => found.failed.push((engine.name.clone(), why.to_string())),
            }
        }
        print(&if self.json { shown::as_json(&found).to_string() } else { shown::as_text(&found) })?;
        Ok(ExitCode::SUCCESS)
    }

    /// Those that were asked for: here, and not here.
    fn chosen(&self, all: Vec<Lacking>) -> Result<(Vec<String>, Vec<Lacking>), Failure> {
        let wanted = &self.compare.peers;
        if let Some(strange) = wanted.iter().find(|w| !all.iter().any(|(name, _)| name.starts_with(w.as_str()))) {
            let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
            return Err(format!("--peers {strange}: there are {}", names.join(", ")).into());
        }
        let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|w| name.starts_with(w.as_str()));
        let (here, missing): (Vec<_>, Vec<_>) =
            all.into_iter().filter(|(name, _)| is_wanted(name)).partition(|(_, missing)| missing.is_empty());
        Ok((here.into_iter().map(|(name, _)| name).collect(), missing))
    }

    /// Every engine once a round, each time another one first.
    fn rounds(
        &self,
        ours: &[Ours],
        running: &mut [Option<Peer>],
        found: &mut Found,
        report: &Report,
    ) -> Result<(), Failure> {
        let bar = report.bar("{msg} [{bar:30}] {pos}/{len}", Some((self.reps * running.len()) as u64));
        for round in 0..self.reps {
            for turn in 0..running.len() {
                let i = (round + turn) % running.len();
                bar.set_message(found.engines[i].name.clone());
                let seconds = match &mut running[i] {
                    None => ours[i].round(&found.rows, self.seconds / self.reps as f64)?,
                    Some(peer) => peer.round(&found.rows).map_err(|e| format!("{}: {e}", found.engines[i].name))?,
                };
                found.engines[i].rounds.iter_mut().zip(seconds).for_each(|(all, s)| all.push(s));
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        Ok(())
    }
}

impl Found {
    fn enter(&mut self, name: &str, is_ours: bool, cosine: f64) {
        let rounds = vec![Vec::new(); self.rows.len()];
        self.engines.push(Engine { name: name.into(), is_ours, cosine, rounds, first: Vec::new() });
    }
}
