//! `sconce similarity`: how alike texts are.

use super::{ran, ran_line, table};
use crate::Failure;
use crate::args::Model;
use crate::input::{Input, Text};
use crate::report::Report;
use clap::Args;
use sconce_engine::Prompt;
use serde_json::json;
use std::process::ExitCode;

/// Show the cosine of every pair of texts.
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
        let texts = self.input.texts()?.collect::<Result<Vec<Text>, _>>()?;
        if texts.len() < 2 {
            return Err("two texts at least are needed to compare".into());
        }
        let embedder = self.model.load(report)?;
        let words: Vec<&str> = texts.iter().map(|t| t.text.as_str()).collect();
        let e = embedder.embed(&words, &Prompt::Default)?;
        let cosines: Vec<Vec<f32>> = e.rows().map(|a| e.rows().map(|b| cosine(a, b)).collect()).collect();
        if self.json {
            let mut all = json!({"similarities": cosines, "truncated": e.truncated});
            if let (Some(all), Some(ran)) = (all.as_object_mut(), ran(&embedder).as_object()) {
                all.extend(ran.clone());
            }
            println!("{all}");
        } else if let [row, _] = &cosines[..] {
            println!("{:.6}", row[1]);
        } else {
            let cells = |(row, text): (&Vec<f32>, &&str)| -> Vec<String> {
                row.iter().map(|c| format!("{c:.4}")).chain([preview(text)]).collect()
            };
            println!("{}", table(&cosines.iter().zip(&words).map(cells).collect::<Vec<_>>()));
        }
        report.say(&format!("{} texts on {}", words.len(), ran_line(&embedder)));
        Ok(ExitCode::SUCCESS)
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    (dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(f64::MIN_POSITIVE)) as f32
}

fn preview(text: &str) -> String {
    let head: String = text.chars().take(48).collect();
    if head.len() < text.len() { format!("{head}…") } else { head }
}
