//! `sconce shards`: how far a run of `--shards` is.

use super::{print, table};
use crate::Failure;
use clap::{Args, Subcommand};
use sconce_shards::{InWork, Manifest, Monotonic, Status, Watch, open_output};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// Show how far a run of `--shards` is.
#[derive(Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Shards {
    #[command(subcommand)]
    command: ShardsCommand,
}

#[derive(Subcommand)]
enum ShardsCommand {
    Status(StatusArgs),
}

impl Shards {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            ShardsCommand::Status(status) => status.run(),
        }
    }
}

/// Show shards done, in work and free, rows, bad rows, the rate and the time left.
///
/// The clocks of hosts disagree, so no process writes the time: this command watches the heartbeats
/// for a moment and says which of them changed.
#[derive(Args)]
#[command(after_help = "Examples:\n  sconce shards status vectors/\n  \
    sconce shards status vectors/ --watch\n  \
    sconce shards status s3://bucket/vectors --json")]
struct StatusArgs {
    /// The output folder: a path, or s3://BUCKET/PREFIX.
    #[arg(value_name = "OUT")]
    out: String,
    /// Show the table again and again, until all shards are done.
    #[arg(long)]
    watch: bool,
    /// Print JSON.
    #[arg(long, conflicts_with = "watch")]
    json: bool,
}

impl StatusArgs {
    fn run(self) -> Result<ExitCode, Failure> {
        let store = open_output(&self.out)?;
        let missing = || format!("{}: no manifest.json, so no run of --shards has begun here", self.out);
        let manifest = Arc::new(Manifest::read(&*store)?.ok_or_else(missing)?);
        let mut watch = Watch::new(store, Arc::new(Monotonic::default()), manifest.clone());
        let mut status = look_twice(&mut watch)?;
        if self.json {
            print(&as_json(&status, &manifest)?.to_string())?;
            return Ok(ExitCode::SUCCESS);
        }
        let clear = if std::io::stdout().is_terminal() { "\x1b[H\x1b[J" } else { "" };
        while self.watch && status.done < status.shards {
            print(&format!("{clear}{}\n", format_status(&status, &manifest)))?;
            thread::sleep(watch.interval());
            status = watch.look()?;
        }
        print(&format_status(&status, &manifest))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Looks until all heartbeats have changed, for the time of two at most.
fn look_twice(watch: &mut Watch) -> Result<Status, Failure> {
    let (since, limit) = (Instant::now(), watch.interval() * 2);
    loop {
        let status = watch.look()?;
        if status.all_changed() || since.elapsed() >= limit {
            return Ok(status);
        }
        thread::sleep(watch.interval() / 4);
    }
}

fn as_json(status: &Status, manifest: &Manifest) -> Result<Value, Failure> {
    let mut all = serde_json::to_value(status)?;
    let job = &manifest.job;
    all["command"] = json!(job.task);
    all["model"] = json!(job.model);
    all["lease_seconds"] = json!(manifest.lease().as_secs_f64());
    Ok(all)
}

fn format_status(status: &Status, manifest: &Manifest) -> String {
    let Status { shards, done, in_work, free, rows, rows_done, bad_rows, refused, rate, eta_seconds } = status;
    let job = &manifest.job;
    let model = format!("{} {}", job.model.reference, job.model.dtype.as_deref().unwrap_or_default());
    let mut text = format!(
        "{} with {model}\nshards: {done} of {shards} done, {} in work, {free} free\nrows:   {rows_done} of {rows} done, {bad_rows} bad",
        job.task,
        in_work.len()
    );
    if *refused > 0 {
        text += &format!("\n{refused} outputs were refused: other bytes than those of the process before");
    }
    if done < shards {
        let left = eta_seconds.map_or_else(String::new, |seconds| format!(", about {} left", duration(seconds)));
        text += &format!("\nrate:   {rate:.1} rows/s{left}");
    }
    if !in_work.is_empty() {
        let heads = ["shard", "host", "pid", "rows", "attempt", "heartbeat"];
        let mut table_rows = vec![heads.map(String::from).to_vec()];
        table_rows.extend(in_work.iter().map(|shard| row(shard, manifest)));
        text += &format!("\n\n{}", table(&table_rows));
    }
    text
}

fn row(shard: &InWork, manifest: &Manifest) -> Vec<String> {
    let holder = shard.holder.as_ref();
    let unchanged = shard.unchanged_seconds;
    let heartbeat = match (unchanged >= manifest.lease().as_secs_f64(), shard.has_changed) {
        (true, _) => format!("silent for {unchanged:.0} s: to be taken over"),
        (false, true) => format!("{unchanged:.1} s ago"),
        (false, false) => format!("not seen for {unchanged:.1} s of watching"),
    };
    vec![
        shard.name.clone(),
        holder.map_or_else(|| "?".into(), |holder| holder.host.clone()),
        holder.map_or_else(|| "?".into(), |holder| holder.pid.to_string()),
        format!("{} of {}", shard.rows_done, shard.rows),
        shard.generation.to_string(),
        heartbeat,
    ]
}

/// A time for people: `2 h 5 min`.
fn duration(seconds: f64) -> String {
    let minutes = (seconds / 60.0).round() as u64;
    match (minutes / 1440, minutes / 60, minutes) {
        (0, 0, 0) => format!("{seconds:.0} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {} min", minutes % 60),
        (days, hours, _) => format!("{days} d {} h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_shards::{Holder, Job};
    use std::time::Duration;

    #[test]
    fn status_names_holders_and_their_heartbeats() {
        let holder = Holder { id: "a".into(), host: "gpu-7".into(), pid: 42 };
        let shard = |unchanged_seconds: f64, has_changed| InWork {
            shard: 3,
            name: "00003-docs".into(),
            holder: Some(holder.clone()),
            generation: 2,
            heartbeat: 9,
            rows: 100,
            rows_done: 40,
            has_changed,
            unchanged_seconds,
        };
        let status = Status {
            shards: 10,
            done: 4,
            in_work: vec![shard(0.4, true), shard(2.0, false), shard(61.0, false)],
            free: 3,
            rows: 1000,
            rows_done: 440,
            bad_rows: 5,
            refused: 1,
            rate: 0.5,
            eta_seconds: Some(1120.0),
        };
        let job = Job { task: "embed".into(), ..Job::default() };
        let manifest = Manifest::new(job, Duration::from_secs(60), Vec::new(), Vec::new());
        let text = format_status(&status, &manifest);
        for part in [
            "4 of 10 done, 3 in work, 3 free",
            "440 of 1000 done, 5 bad",
            "1 outputs were refused",
            "0.5 rows/s, about 19 min left",
            "00003-docs  gpu-7  42   40 of 100  2        0.4 s ago",
            "not seen for 2.0 s of watching",
            "silent for 61 s: to be taken over",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        assert_eq!(duration(7500.0), "2 h 5 min");
        assert_eq!((duration(20.0), duration(200_000.0)), ("20 s".into(), "2 d 7 h".into()));
    }
}
