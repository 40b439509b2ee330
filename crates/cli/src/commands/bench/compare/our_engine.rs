//! Our own engine in one of its formats.

use super::rows::Row;
use crate::Failure;
use crate::args::Model;
use crate::program::program;
use crate::report::Report;
use sconce_engine::{EmbedOptions, Embedder, Loaded, TextOrTokens};
use sconce_ops::Device;
use std::process::{Command, Stdio};
use std::time::Instant;

pub(super) struct OurEngine {
    pub(super) format: String,
    pub(super) embedder: Embedder,
    /// Command-line flags that load the same model.
    flags: Vec<String>,
}

impl OurEngine {
    /// Loads the requested format, or else all formats of the device.
    pub(super) fn load_all(model: &Model, report: &Report) -> Result<Vec<OurEngine>, Failure> {
        if model.run_args.dtype.is_some() {
            return Ok(vec![OurEngine::load(model.clone(), report)?]);
        }
        let of = |format: &str| {
            let mut model = model.clone();
            model.run_args.dtype = Some(format.parse()?);
            OurEngine::load(model, report)
        };
        let first = of("f32")?;
        let more: &[&str] = if first.embedder.plan().device == Device::Cpu { &["bf16", "int8"] } else { &["bf16"] };
        std::iter::once(Ok(first)).chain(more.iter().map(|format| of(format))).collect()
    }

    fn load(model: Model, report: &Report) -> Result<OurEngine, Failure> {
        let embedder = model.load(report, Embedder::load)?;
        let (format, device) = (embedder.plan().format(), embedder.plan().runs_on());
        let flags = flags(&model, &device, &format);
        Ok(OurEngine { format, embedder, flags })
    }

    /// Embeddings of token sequences.
    pub(super) fn vectors(&self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, Failure> {
        let inputs: Vec<TextOrTokens<'_>> = texts.iter().map(|ids| TextOrTokens::Tokens(ids)).collect();
        Ok(self.embedder.embed_with(&inputs, &EmbedOptions::default())?.rows().map(<[f32]>::to_vec).collect())
    }

    /// Median seconds of every row, each warmed up and then repeated for `seconds`.
    pub(super) fn round(&self, rows: &[Row], seconds: f64) -> Result<Vec<f64>, Failure> {
        rows.iter().map(|row| self.time(row, seconds)).collect()
    }

    fn time(&self, row: &Row, seconds: f64) -> Result<f64, Failure> {
        let inputs: Vec<TextOrTokens<'_>> = row.texts.iter().map(|ids| TextOrTokens::Tokens(ids)).collect();
        let once = || -> Result<f64, Failure> {
            let started = Instant::now();
            self.embedder.embed_with(&inputs, &EmbedOptions::default())?;
            Ok(started.elapsed().as_secs_f64())
        };
        once()?;
        let (started, mut times) = (Instant::now(), Vec::new());
        while times.is_empty() || started.elapsed().as_secs_f64() < seconds {
            times.push(once()?);
        }
        Ok(super::report::median(&times))
    }

    /// Seconds that the command takes for a text, from start to exit.
    pub(super) fn start(&self, text: &str) -> Result<f64, Failure> {
        let mut command = Command::new(program()?);
        command.args(&self.flags).arg(text);
        let started = Instant::now();
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        match status.success() {
            true => Ok(started.elapsed().as_secs_f64()),
            false => Err(format!("sconce embed failed: {status}").into()),
        }
    }
}

/// Arguments of the command that embeds with `model`, on the device and in the format it was loaded
/// with.
fn flags(model: &Model, device: &str, format: &str) -> Vec<String> {
    let own = ["embed", "--quiet", "--offline", "--model", &model.model, "--device", device, "--dtype", format];
    own.map(String::from).into_iter().chain(model.run_args.flags()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use sconce_engine::{DTypeChoice, DeviceChoice};
    use sconce_ops::{DType, Isa, Rung, threads};

    /// Parses flags like `sconce embed`.
    #[derive(Parser)]
    struct Embed {
        #[command(flatten)]
        model: Model,
        #[arg(long)]
        quiet: bool,
        text: String,
    }

    /// The arguments parsed from `given`, and those that a timed process parses from its flags.
    fn parse_twice(given: &[&str]) -> (Model, Model) {
        let all = [&["embed", "--model", "m"][..], given, &["text"]].concat();
        let model = Embed::parse_from(all).model;
        let mut flags = flags(&model, "cpu", "bf16");
        flags.push("text".into());
        let embed = Embed::parse_from(flags);
        assert!(embed.quiet && embed.text == "text" && embed.model.run_args.offline);
        (model, embed.model)
    }

    #[test]
    fn timed_process_gets_the_same_flags() {
        let given = ["--isa", "scalar", "--rung", "fused", "--batch-tokens", "99", "--allow-host", "--pin"];
        let (_, Model { model, run_args }) = parse_twice(&given);
        assert_eq!((model.as_str(), run_args.device), ("m", DeviceChoice::Only(Device::Cpu)));
        assert_eq!((run_args.dtype, run_args.isa), (Some(DTypeChoice::Float(DType::BF16)), Some(Isa::Scalar)));
        assert_eq!((run_args.rung, run_args.batch_tokens, run_args.allow_host), (Some(Rung::Fused), Some(99), true));
        assert_eq!((run_args.threads.threads, run_args.threads.pin), (Some(threads::count()), true));

        let (parent, child) = parse_twice(&[]);
        assert_eq!(
            (child.run_args.isa, child.run_args.rung, child.run_args.batch_tokens, child.run_args.allow_host),
            (None, None, None, false)
        );
        assert_eq!(child.run_args.threads.pin, parent.run_args.threads.pin);
    }
}
