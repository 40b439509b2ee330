//! `sconce embed`: texts to vectors.

use super::with_ran;
use crate::Failure;
use crate::args::Model;
use crate::cells::{Base64, Floats, Several, Small, Three, Weights};
use crate::input::{Input, Text};
use crate::output::{Answers, Output, Seen, Writer};
use crate::report::Report;
use crate::work::{Answering, Asking, Texts, words};
use clap::Args;
use sconce_engine::{
    Embedder, Embeddings, Loaded, M3, MultiVectorEncoder, Precision, Prompt, Ranges, RequestContext, SparseEncoder,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Turn texts into vectors.
#[derive(Args)]
#[command(after_help = "Examples:\n  sconce embed \"A man is eating food.\"\n  \
    sconce embed -f texts.txt -o vectors.npy\n  \
    sconce embed -f docs.jsonl --field body -o docs.embedded.jsonl --dtype bf16\n  \
    sconce embed -f texts.txt --dimensions 128 --precision ubinary -o bits.npy\n  \
    sconce embed -m prithivida/Splade_PP_en_v2 --sparse \"A man is eating food.\"\n  \
    sconce embed -m colbert-ir/colbertv2.0 --multi --query --json \"Who eats?\"\n  \
    sconce embed -m BAAI/bge-m3 --sparse --multi -f docs.txt -o docs.jsonl")]
pub(crate) struct Embed {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    model: Model,
    #[command(flatten)]
    output: Output,
    /// Put one of the model's own prompts before each text, by name (such as query or document).
    #[arg(long, value_name = "NAME", conflicts_with = "prompt")]
    prompt_name: Option<String>,
    /// Put these words before each text.
    #[arg(long, value_name = "WORDS")]
    prompt: Option<String>,
    /// Keep the first N numbers of each vector and bring it to length one again, for models trained so (Matryoshka).
    #[arg(long, value_name = "N")]
    dimensions: Option<usize>,
    /// What the numbers become: float32, int8, uint8, binary or ubinary (eight to a byte).
    ///
    /// int8 and uint8 need the range of each dimension: from --ranges, or else from the vectors themselves, which are then all
    /// held in memory and written at the end.
    #[arg(long, value_name = "PRECISION", default_value_t)]
    precision: Precision,
    /// A JSON file {"low": [...], "high": [...]} with the least and the greatest number of each dimension.
    #[arg(long, value_name = "FILE")]
    ranges: Option<PathBuf>,
    /// Give each vector as the base64 of its little-endian f32 bytes, in JSON and JSONL.
    #[arg(long, conflicts_with = "precision")]
    base64: bool,
    /// Weights over the vocabulary instead, by a SPLADE model or bge-m3. With --multi, all that bge-m3 gives from one pass.
    #[arg(long, conflicts_with_all = ["prompt", "prompt_name", "dimensions", "precision", "ranges", "base64"])]
    sparse: bool,
    /// A vector a token instead, by a ColBERT model or bge-m3. Texts are documents.
    #[arg(long, conflicts_with_all = ["prompt", "prompt_name", "dimensions", "precision", "ranges", "base64"])]
    multi: bool,
    /// The texts are queries.
    #[arg(long, requires = "multi", conflicts_with = "sparse")]
    query: bool,
}

impl Embed {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        self.output.check(!self.sparse && !self.multi)?;
        if self.base64 && !self.output.is_json() {
            return Err("--base64 is for --format json and jsonl; for bytes alone take --format bin".into());
        }
        if self.ranges.is_some() && !self.is_ranged() {
            return Err("--ranges are for --precision int8 and uint8; nothing else reads them".into());
        }
        let texts = Texts::open(&self.input)?;
        match () {
            () if self.sparse && self.multi => self.three(texts, report),
            () if self.sparse => self.sparse(texts, report),
            () if self.multi => self.multi(texts, report),
            () => self.dense(texts, report),
        }
    }

    fn dense(&self, texts: Texts, report: &Report) -> Result<ExitCode, Failure> {
        let ranges = self.ranges.as_deref().map(read_ranges).transpose()?;
        let caller = RequestContext::default();
        let embedder = self.model.load(report, Embedder::load)?.with_context(&caller);
        let prompt = match (&self.prompt_name, &self.prompt) {
            (Some(name), _) => Prompt::Named(name.clone()),
            (_, Some(words)) => Prompt::Text(words.clone()),
            _ => Prompt::Default,
        };
        // None as yet, but of the right length: what cannot be done is known before the work.
        let none = Embeddings { dimension: embedder.plan().dimension, ..Embeddings::default() };
        let mut held = self.cut(none)?;
        let waits = self.is_ranged() && ranges.is_none();
        let (descr, numbers) = match self.precision {
            Precision::Float32 => ("<f4", held.dimension),
            _ if waits => (if self.precision == Precision::Int8 { "|i1" } else { "|u1" }, held.dimension),
            precision => {
                let small = held.quantize(precision, ranges.as_ref())?;
                (if small.is_signed { "|i1" } else { "|u1" }, small.dimension)
            }
        };
        let array = (!self.base64).then_some((descr, numbers));
        let mut writer = self.output.open(Answers { many: "embeddings", one: Some("embedding"), array })?;
        let mut waiting: Vec<Text> = Vec::new();
        let tally = texts.each(
            report,
            Asking { caller: &caller, ask: |window: &[Text]| Ok(embedder.embed(&words(window), &prompt)?) },
            |e, window| {
                let e = self.cut(e)?;
                if !waits {
                    return self.write(&mut writer, &e, &window, ranges.as_ref());
                }
                held.truncated.extend(e.truncated.iter().map(|i| i + waiting.len()));
                held.values.extend(e.values);
                held.tokens.extend(e.tokens);
                waiting.extend(window);
                Ok(())
            },
        )?;
        if !waiting.is_empty() {
            self.write(&mut writer, &held, &waiting, None)?;
        }
        let mut about = json!({"dimension": numbers});
        if self.precision != Precision::Float32 {
            about["precision"] = json!(self.precision.to_string());
        }
        writer.finish(&with_ran(about, &embedder))?;
        tally.close(report, &embedder);
        Ok(ExitCode::SUCCESS)
    }

    fn is_ranged(&self) -> bool {
        matches!(self.precision, Precision::Int8 | Precision::Uint8)
    }

    fn cut(&self, e: Embeddings) -> Result<Embeddings, Failure> {
        Ok(match self.dimensions {
            Some(n) => e.cut(n)?,
            None => e,
        })
    }

    fn write(
        &self,
        writer: &mut Writer,
        e: &Embeddings,
        texts: &[Text],
        ranges: Option<&Ranges>,
    ) -> Result<(), Failure> {
        let seen = |i: usize| Some(Seen { tokens: e.tokens[i], truncated: e.truncated.binary_search(&i).is_ok() });
        if self.precision == Precision::Float32 {
            for ((i, row), text) in e.rows().enumerate().zip(texts) {
                match self.base64 {
                    true => writer.write(text, &Base64(row), seen(i))?,
                    false => writer.write(text, &Floats(row), seen(i))?,
                }
            }
        } else {
            let small = e.quantize(self.precision, ranges)?;
            for ((i, row), text) in small.rows().enumerate().zip(texts) {
                writer.write(text, &Small { row, is_signed: small.is_signed }, seen(i))?;
            }
        }
        writer.show()
    }

    fn sparse(&self, texts: Texts, report: &Report) -> Result<ExitCode, Failure> {
        let caller = RequestContext::default();
        let sparse = self.model.load(report, SparseEncoder::load)?.with_context(&caller);
        let ask = |window: &[Text]| Ok(sparse.embed(&words(window))?);
        let answering = self.answering(&sparse, json!({"vocabulary": sparse.plan().dimension}));
        texts.answer(report, answering, Asking { caller: &caller, ask }, |writer, text, vector, seen| {
            writer.write(text, &Weights::new(&vector, |id| sparse.token(id)), seen)
        })
    }

    fn multi(&self, texts: Texts, report: &Report) -> Result<ExitCode, Failure> {
        let caller = RequestContext::default();
        let multi = self.model.load(report, MultiVectorEncoder::load)?.with_context(&caller);
        let ask = |window: &[Text]| match self.query {
            true => Ok(multi.queries(&words(window))?),
            false => Ok(multi.documents(&words(window))?),
        };
        let side = if self.query { "query" } else { "document" };
        let answering = self.answering(&multi, json!({"dimension": multi.plan().dimension, "side": side}));
        texts.answer(report, answering, Asking { caller: &caller, ask }, |writer, text, vectors, seen| {
            writer.write(text, &Several(&vectors), seen)
        })
    }

    fn three(&self, texts: Texts, report: &Report) -> Result<ExitCode, Failure> {
        let caller = RequestContext::default();
        let m3 = self.model.load(report, M3::load)?.with_context(&caller);
        let ask = |window: &[Text]| Ok(m3.embed(&words(window))?);
        let answering = self.answering(&m3, json!({"dimension": m3.plan().dimension}));
        texts.answer(report, answering, Asking { caller: &caller, ask }, |writer, text, three, seen| {
            writer.write(text, &Three::new(&three, |id| m3.token(id)), seen)
        })
    }

    fn answering<'a>(&'a self, model: &'a dyn Loaded, about: Value) -> Answering<'a> {
        let answers = Answers { many: "embeddings", one: Some("embedding"), array: None };
        Answering { output: &self.output, answers, model, about }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RangesFile {
    low: Vec<f32>,
    high: Vec<f32>,
}

fn read_ranges(path: &Path) -> Result<Ranges, Failure> {
    let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let text = std::fs::read_to_string(path).map_err(|e| fail(&e))?;
    let file: RangesFile = serde_json::from_str(&text)
        .map_err(|e| fail(&format!("not an object of two lists, low and high, of numbers: {e}")))?;
    Ok(Ranges::new(file.low, file.high).map_err(|e| fail(&e))?)
}
