//! Our own engine in one of its formats.

use super::rows::Row;
use crate::Failure;
use crate::args::Model;
use crate::report::Report;
use sconce_engine::{EmbedOptions, Embedder, Loaded, TextOrTokens};
use sconce_ops::Device;
use std::process::{Command, Stdio};
use std::time::Instant;

pub(super) struct Ours {
    pub(super) format: String,
    pub(super) embedder: Embedder,
    /// How the command is told to load the same.
    flags: Vec<String>,
}

impl Ours {
    /// In the format that was asked for, or else in all that this device has.
    pub(super) fn load_all(model: &Model, report: &Report) -> Result<Vec<Ours>, Failure> {
        if model.how.dtype.is_some() {
            return Ok(vec![Ours::load(model.clone(), report)?]);
        }
        let of = |format: &str| {
            let mut model = model.clone();
            model.how.dtype = Some(format.parse()?);
            Ours::load(model, report)
        };
        let first = of("f32")?;
        let more: &[&str] = if first.embedder.plan().device == Device::Cpu { &["bf16", "int8"] } else { &["bf16"] };
        std::iter::once(Ok(first)).chain(more.iter().map(|format| of(format))).collect()
    }

    fn load(model: Model, report: &Report) -> Result<Ours, Failure> {
        let embedder = model.load(report, Embedder::load)?;
        let (format, device) = (embedder.plan().format(), embedder.plan().device.to_string());
        let flags = flags(&model, &device, &format);
        Ok(Ours { format, embedder, flags })
    }

    /// Vectors of tokens.
    pub(super) fn vectors(&self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, Failure> {
        let inputs: Vec<TextOrTokens<'_>> = texts.iter().map(|ids| TextOrTokens::Tokens(ids)).collect();
        Ok(self.embedder.embed_with(&inputs, &EmbedOptions::default())?.rows().map(<[f32]>::to_vec).collect())
    }

    /// Median seconds of every row, each warmed up and then repeated for so long.
    pub(super) fn round(&self, rows: &[Row], seconds: f64) -> Result<Vec<f64>, Failure> {
        rows.iter().map(|row| self.time(row, seconds)).collect()
    }

    fn time(&self, row: &Row, seconds: f64) -> Result<f64, Failure> {
        let inputs: Vec<TextOrTokens<'_>> = row.texts.iter().map(|ids| TextOrTokens::Tokens(ids)).collect();
        let once = || -> Result<f64, Failure> {
            let begun = Instant::now();
            self.embedder.embed_with(&inputs, &EmbedOptions::default())?;
            Ok(begun.elapsed().as_secs_f64())
        };
        once()?;
        let (begun, mut times) = (Instant::now(), Vec::new());
        while times.is_empty() || begun.elapsed().as_secs_f64() < seconds {
            times.push(once()?);
        }
        Ok(super::shown::median(&times))
    }

    /// Seconds that the command takes for a text, from its start to its end.
    pub(super) fn start(&self, text: &str) -> Result<f64, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&self.flags).arg(text);
        let begun = Instant::now();
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        match status.success() {
            true => Ok(begun.elapsed().as_secs_f64()),
            false => Err(format!("sconce embed ended with {status}").into()),
        }
    }
}

/// The command that embeds as `model` says, on the device and in the format that it was loaded with.
fn flags(model: &Model, device: &str, format: &str) -> Vec<String> {
    let own = ["embed", "--quiet", "--offline", "--model", &model.model, "--device", device, "--dtype", format];
    own.map(String::from).into_iter().chain(model.how.flags()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Format;
    use clap::Parser;
    use sconce_engine::DeviceChoice;
    use sconce_ops::{DType, Isa, Rung, threads};

    /// As `sconce embed` reads its flags.
    #[derive(Parser)]
    struct Embed {
        #[command(flatten)]
        model: Model,
        #[arg(long)]
        quiet: bool,
        text: String,
    }

    fn again(told: &[&str]) -> (Model, Model) {
        let all = [&["embed", "--model", "m"][..], told, &["text"]].concat();
        let model = Embed::parse_from(all).model;
        let mut flags = flags(&model, "cpu", "bf16");
        flags.push("text".into());
        let embed = Embed::parse_from(flags);
        assert!(embed.quiet && embed.text == "text" && embed.model.how.offline);
        (model, embed.model)
    }

    #[test]
    fn a_process_that_is_timed_is_told_all_that_this_one_was() {
        let told = ["--isa", "scalar", "--rung", "fused", "--batch-tokens", "99", "--allow-host", "--pin"];
        let (_, Model { model, how }) = again(&told);
        assert_eq!((model.as_str(), how.device), ("m", DeviceChoice::Only(Device::Cpu)));
        assert_eq!((how.dtype, how.isa), (Some(Format::Float(DType::BF16)), Some(Isa::Scalar)));
        assert_eq!((how.rung, how.batch_tokens, how.allow_host), (Some(Rung::Fused), Some(99), true));
        assert_eq!((how.threads.threads, how.threads.pin), (Some(threads::count()), true));

        let (was, is) = again(&[]);
        assert_eq!((is.how.isa, is.how.rung, is.how.batch_tokens, is.how.allow_host), (None, None, None, false));
        assert_eq!(is.how.threads.pin, was.how.threads.pin);
    }
}
