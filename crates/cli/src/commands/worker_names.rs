//! The names under which existing managers start a worker. A link or copy of this program with such
//! a name is a worker for the device in the name.

use super::worker::Worker;
use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, value_parser};
use sconce_api::worker::Launch;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Each name, and the kind of its device.
const NAMES: [(&str, &str); 3] =
    [("llorch-cpu-candled", "cpu"), ("llorch-cuda-candled", "cuda"), ("llorch-metal-candled", "metal")];

/// Serve one model as a worker of a pool.
#[derive(Args)]
struct Flags {
    /// The worker's id in callbacks and heartbeats.
    #[arg(long, value_name = "ID")]
    worker_id: String,
    /// A directory or .gguf file, a hub id, pip:NAME, or a short name.
    #[arg(long, value_name = "MODEL")]
    model: String,
    /// Port to listen on; 0 takes any free one.
    #[arg(long, value_name = "PORT")]
    port: u16,
    /// URL, http or https, that receives a callback when the worker is ready. Heartbeats follow
    /// every 30 seconds, to /v1/worker-heartbeat of the same host. If it contains `localhost:9999`,
    /// nothing is sent.
    #[arg(long, value_name = "URL")]
    callback_url: String,
}

/// The worker that the arguments describe, if the program was started under one of the names. The
/// first argument is the name.
pub(crate) fn worker(arguments: &[OsString]) -> Option<Result<Worker, clap::Error>> {
    let (name, kind) = named(arguments.first()?)?;
    let parsed = command(name, kind).try_get_matches_from(arguments);
    Some(parsed.and_then(|matches| launch(&matches, kind)).map(Worker::started_by_manager))
}

/// The name that a program was started under, if it is one of these, and the kind of its device.
fn named(program: &OsStr) -> Option<(&'static str, &'static str)> {
    let file = Path::new(program).file_name()?.to_str()?;
    let file = file.strip_suffix(".exe").unwrap_or(file);
    NAMES.into_iter().find(|(name, _)| *name == file)
}

fn command(name: &'static str, kind: &'static str) -> Command {
    let about = match kind {
        "cpu" => "Serve one model on the CPU as a worker of a pool.",
        "cuda" => "Serve one model on an NVIDIA GPU as a worker of a pool.",
        _ => "Serve one model on an Apple GPU as a worker of a pool.",
    };
    let command = Command::new(name).version(env!("CARGO_PKG_VERSION")).about(about).max_term_width(100).after_help(
        "Environment:\n  LLORCH_API_TOKEN  API key that requests must send, and that callbacks carry\n\n\
         This is `sconce worker` under the name that existing managers start; `sconce worker --help` lists all options.",
    );
    let command = Flags::augment_args(command);
    if kind == "cpu" {
        return command;
    }
    let flag = if kind == "cuda" { "cuda-device" } else { "metal-device" };
    let number = Arg::new("number").long(flag).value_name("N").default_value("0").value_parser(value_parser!(u32));
    command.arg(number.help("Number of the GPU."))
}

/// The flags of `sconce worker` that correspond to these.
fn launch(matches: &ArgMatches, kind: &str) -> Result<Launch, clap::Error> {
    let Flags { worker_id, model, port, callback_url } = Flags::from_arg_matches(matches)?;
    let device = match kind {
        "cpu" => kind.to_string(),
        _ => {
            let number =
                matches.get_one::<u32>("number").ok_or_else(|| clap::Error::new(ErrorKind::MissingRequiredArgument))?;
            format!("{kind}:{number}")
        }
    };
    let (hostname, device) = ("127.0.0.1".into(), Some(device));
    Ok(Launch { worker_id, model, port, callback_url, hostname, device, ..Launch::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(program: &str, flags: &[&str]) -> Option<Result<String, ErrorKind>> {
        let (name, kind) = named(OsStr::new(program))?;
        let required = ["--worker-id", "w", "--model", "m", "--port", "0", "--callback-url", "http://localhost:9999"];
        let matches = command(name, kind).try_get_matches_from([&[program][..], &required, flags].concat());
        let launch = matches.and_then(|matches| launch(&matches, kind));
        Some(launch.map(|launch| launch.device()).map_err(|e| e.kind()))
    }

    #[test]
    fn name_of_the_program_chooses_the_device() {
        assert_eq!(device("llorch-cpu-candled", &[]), Some(Ok("cpu".into())));
        assert_eq!(device("/opt/bin/llorch-metal-candled", &[]), Some(Ok("metal:0".into())));
        assert_eq!(device("llorch-cuda-candled.exe", &["--cuda-device", "3"]), Some(Ok("cuda:3".into())));
        let wrong = device("llorch-cuda-candled", &["--metal-device", "0"]);
        assert_eq!(wrong, Some(Err(ErrorKind::UnknownArgument)));
        for other in ["sconce", "llorch", "llorch-rocm-candled", "llorch-cpu-candled.sh", "/llorch-cpu-candled/sconce"]
        {
            assert_eq!(device(other, &[]), None, "{other}");
        }
    }

    #[test]
    fn flags_of_the_contract_are_required() {
        for missing in ["--worker-id", "--model", "--port", "--callback-url"] {
            let all = [("--worker-id", "w"), ("--model", "m"), ("--port", "0"), ("--callback-url", "http://x")];
            let flags = all.iter().filter(|(flag, _)| *flag != missing).flat_map(|(flag, value)| [*flag, *value]);
            let error = command("llorch-cpu-candled", "cpu").try_get_matches_from(["x"].into_iter().chain(flags));
            assert_eq!(error.unwrap_err().kind(), ErrorKind::MissingRequiredArgument, "{missing}");
        }
    }
}
