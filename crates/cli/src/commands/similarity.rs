//! `sconce similarity`: cosine similarity of texts.

use super::{print, run_line, with_run_info};
use crate::Failure;
use crate::args::Model;
use crate::input::{Input, NeededFields, Text, preview};
use crate::report::Report;
use clap::Args;
use sconce_engine::{Embedder, Loaded, Prompt};
use serde_json::json;
use std::io::{BufWriter, Write};
use std::process::ExitCode;

/// Print the cosine similarity of every pair of texts.
#[derive(Args)]
#[command(after_help = "Example:\n  sconce similarity \"A man is eating food.\" \"A man is eating a piece of bread.\"")]
pub(crate) struct Similarity {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    model: Model,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Similarity {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        let needed = NeededFields::Only(&[self.input.field()]);
        let texts = self.input.texts(needed)?.collect::<Result<Vec<Text>, _>>()?;
        if texts.len() < 2 {
            return Err(format!("`similarity` needs at least two texts; got {}", texts.len()).into());
        }
        let embedder = self.model.load(report, Embedder::load)?;
        let words: Vec<&str> = texts.iter().map(|t| t.text.as_str()).collect();
        let e = &embedder.embed(&words, &Prompt::Default)?;
        // Row by row: the whole matrix of a long file would not fit into memory.
        let row = |i: usize| e.rows().map(move |b| cosine(e.row(i), b)).collect::<Vec<f32>>();
        if self.json {
            let mut out = BufWriter::new(std::io::stdout());
            write!(out, "{{\"similarities\":[")?;
            for i in 0..words.len() {
                write!(out, "{}{}", if i > 0 { "," } else { "" }, json!(row(i)))?;
            }
            let rest = with_run_info(json!({"truncated": e.truncated}), &embedder).to_string();
            writeln!(out, "],{}", &rest[1..])?;
            out.flush()?;
        } else if words.len() == 2 {
            print(&format!("{:.6}", row(0)[1]))?;
        } else {
            for (i, text) in words.iter().enumerate() {
                let cells: Vec<String> = row(i).iter().map(|c| format!("{c:>7.4}")).collect();
                print(&format!("{}  {}", cells.join(" "), preview(text)))?;
            }
        }
        if let Some(first) = e.truncated.first() {
            let (cut, most) = (e.truncated.len(), embedder.plan().max_tokens);
            report.warn(&format!(
                "{cut} texts are longer than {most} tokens and were cut (the first: {})",
                texts[*first].origin
            ));
        }
        report.info(&format!("{} texts on {}", words.len(), run_line(&embedder)));
        Ok(ExitCode::SUCCESS)
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    (dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(f64::MIN_POSITIVE)) as f32
}
