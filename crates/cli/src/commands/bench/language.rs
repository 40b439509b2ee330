//! Benchmark of a language model: prefill and decoding.

use super::Bench;
use crate::Failure;
use crate::commands::{bytes, print, run_line, with_run_info};
use crate::report::Report;
use sconce_engine::hub::Files;
use sconce_engine::{GenerationParams, Llm, LoadOptions, Loaded, Request, Size, Start};
use sconce_ops::{Device, threads};
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Instant;

/// A benchmark.
#[derive(Clone, Copy)]
struct Test {
    name: &'static str,
    /// Tokens of the prompt, of the answer, and those that count.
    prompt: usize,
    answer: usize,
    counted: usize,
}

/// Result of a benchmark.
struct Line {
    name: String,
    rates: Vec<f64>,
    gigabytes: Option<f64>,
    gigaflops: Option<f64>,
}

impl Bench {
    pub(super) fn time_language(
        &self,
        files: &Files,
        options: &LoadOptions,
        report: &Report,
    ) -> Result<ExitCode, Failure> {
        let (read, write) = (self.prompt_tokens, self.gen_tokens);
        // The first token of an answer comes with the prefill, so an answer to a prompt of one
        // token takes as many steps as it has tokens.
        let all = [
            Test { name: "pp", prompt: read, answer: 1, counted: read },
            Test { name: "tg", prompt: 1, answer: write, counted: write },
        ];
        let tests: Vec<Test> = all.into_iter().filter(|t| t.counted > 0).collect();
        let longest = tests.iter().map(|t| t.prompt.saturating_add(t.answer)).max();
        let longest = longest.ok_or("--prompt-tokens and --gen-tokens are both 0: there is nothing to time")?;
        let context = self.kv_cache.context.unwrap_or(longest);
        let cache_tokens = Some(context.saturating_mul(self.parallel));
        let mut options = self.kv_cache.apply_to(options.clone(), self.parallel);
        (options.llm.context, options.llm.cache_tokens) = (Some(context), cache_tokens);
        let llm = Llm::load_from(files, &options, report)?;
        let size = Size::of(files)?;
        let bar = report.bar("{msg} [{bar:30}] {pos}/{len}", Some((tests.len() * (self.reps + 1)) as u64));
        let mut lines = Vec::new();
        for test in tests {
            let name = match self.parallel {
                1 => format!("{}{}", test.name, test.counted),
                n => format!("{}{} × {n}", test.name, test.counted),
            };
            bar.set_message(name.clone());
            let mut rates = Vec::new();
            // The first repetition warms up and does not count.
            for rep in 0..=self.reps {
                let seconds = self.seconds_of(&llm, test, rep)?;
                rates.push((self.parallel * test.counted) as f64 / seconds);
                bar.inc(1);
            }
            rates.remove(0);
            let rate = mean(&rates);
            // A decode step reads the weights once, for any number of answers.
            let weights = llm.plan().weights - llm.plan().weight_copies;
            let step_bytes = weights as f64 * size.active as f64 / size.parameters.max(1) as f64;
            let gigabytes = (test.name == "tg").then(|| step_bytes * rate / self.parallel as f64 / 1e9);
            let gigaflops = (test.name == "pp").then(|| 2.0 * size.active as f64 * rate / 1e9);
            lines.push(Line { name, rates, gigabytes, gigaflops });
        }
        bar.finish_and_clear();
        let threads = (llm.plan().device == Device::Cpu).then(threads::count);
        let name = files.root().file_name().map_or_else(|| self.model.model.clone(), |n| n.display().to_string());
        let text = match self.json {
            true => as_json(&llm, &name, size, threads, &lines).to_string(),
            false => as_markdown(&llm, &name, size, threads, &lines),
        };
        print(&text)?;
        if let Some(peak) = peak_resident() {
            report.info(&format!("at most {} in memory", bytes(peak)));
        }
        report.info(&run_line(&llm));
        Ok(ExitCode::SUCCESS)
    }

    /// Seconds until all answers are done, with prompts that no earlier repetition had.
    fn seconds_of(&self, llm: &Llm, test: Test, rep: usize) -> Result<f64, Failure> {
        let request = |i: usize| Request {
            start: Start::Tokens(tokens(test.prompt, llm.plan().vocabulary, rep * self.parallel + i)),
            params: Some(GenerationParams::default().with_temperature(0.0)),
            max_tokens: Some(test.answer),
            ignore_end: true,
            ..Request::default()
        };
        let requests: Vec<Request> = (0..self.parallel).map(request).collect();
        let started = Instant::now();
        for generation in llm.generate(&requests) {
            generation?;
        }
        Ok(started.elapsed().as_secs_f64())
    }
}

/// Pseudo-random tokens of the whole vocabulary.
fn tokens(n: usize, vocabulary: usize, seed: usize) -> Vec<u32> {
    let mut state = seed as u64 ^ 0x9e37_79b9_7f4a_7c15;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % vocabulary.max(1) as u64) as u32
    };
    (0..n).map(|_| next()).collect()
}

/// Peak resident memory of this process, if the system reports it.
fn peak_resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

/// Sample standard deviation; 0 for a single value.
fn deviation(all: &[f64]) -> f64 {
    let mean = mean(all);
    (all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / all.len().saturating_sub(1).max(1) as f64).sqrt()
}

/// A number for a person: `134.5 M`.
fn count(n: u64) -> String {
    match n as f64 {
        n if n >= 1e9 => format!("{:.2} B", n / 1e9),
        n if n >= 1e6 => format!("{:.1} M", n / 1e6),
        n => format!("{:.1} K", n / 1e3),
    }
}

fn as_markdown(llm: &Llm, name: &str, size: Size, threads: Option<usize>, lines: &[Line]) -> String {
    let heading = ["model", "size", "params", "device", "threads", "test", "tok/s", "GB/s", "GFLOP/s"];
    let mut rows = vec![heading.map(String::from).to_vec()];
    let number = |n: Option<f64>| n.map_or_else(String::new, |n| format!("{n:.1}"));
    rows.extend(lines.iter().map(|line| {
        vec![
            name.replace('|', "\\|"),
            bytes(llm.plan().weights - llm.plan().weight_copies),
            count(size.parameters),
            llm.plan().device.to_string(),
            threads.map_or_else(String::new, |n| n.to_string()),
            line.name.clone(),
            format!("{:.2} ± {:.2}", mean(&line.rates), deviation(&line.rates)),
            number(line.gigabytes),
            number(line.gigaflops),
        ]
    }));
    let width = |c: usize| rows.iter().map(|row| row[c].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let row = |cells: &Vec<String>| {
        let cells: Vec<String> = cells.iter().zip(&widths).map(|(cell, w)| format!("{cell:<w$}")).collect();
        format!("| {} |", cells.join(" | "))
    };
    let rule = widths.iter().map(|w| "-".repeat(*w)).collect::<Vec<_>>();
    let mut all: Vec<String> = rows.iter().map(row).collect();
    all.insert(1, row(&rule));
    all.join("\n")
}

fn as_json(llm: &Llm, name: &str, size: Size, threads: Option<usize>, lines: &[Line]) -> Value {
    let line = |l: &Line| {
        json!({"test": l.name, "tokens_per_second": mean(&l.rates), "deviation": deviation(&l.rates),
            "samples": l.rates, "gigabytes_per_second": l.gigabytes, "gigaflops": l.gigaflops})
    };
    let about = json!({
        "model": name,
        "weights_bytes": llm.plan().weights,
        "parameters": size.parameters,
        "active_parameters": size.active,
        "threads": threads,
        "peak_resident_bytes": peak_resident(),
        "lines": lines.iter().map(line).collect::<Vec<_>>(),
    });
    with_run_info(about, llm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_differ_and_stay_in_the_vocabulary() {
        let (a, b) = (tokens(64, 10, 0), tokens(64, 10, 1));
        assert!(a != b && a.iter().chain(&b).all(|id| *id < 10));
        assert!((0..10).all(|id| a.contains(&id) || b.contains(&id)));
    }

    #[test]
    fn table_numbers_are_computed_and_formatted() {
        assert_eq!((mean(&[1.0, 3.0]), deviation(&[1.0, 3.0]), deviation(&[5.0])), (2.0, 2f64.sqrt(), 0.0));
        assert_eq!([count(134_515_008), count(7_241_732_096), count(900)], ["134.5 M", "7.24 B", "0.9 K"]);
        if cfg!(target_os = "linux") {
            assert!(peak_resident() > Some(1 << 20));
        }
    }
}
