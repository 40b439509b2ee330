//! `sconce embed`: embeddings of texts.

use super::with_run_info;
use crate::Failure;
use crate::args::Model;
use crate::input::{Input, Text};
use crate::output::{Output, ResultNames, ResultsOf, TokenInfo, Writer};
use crate::report::Report;
use crate::summary::WindowResult;
use crate::vector_output::{
    Base64, FLOAT_COLUMN, Floats, INT8_COLUMN, M3_COLUMN, M3Rows, MULTI_COLUMN, MultiVectorRows, QuantizedRow,
    SPARSE_COLUMN, SparseWeights, UINT8_COLUMN,
};
use crate::window_runner::{ModelCall, ResultOutput, Texts, strings};
use clap::{ArgGroup, Args, ValueEnum};
use sconce_engine::{
    Chunk, ChunkOptions, DType, Device, EmbedOptions, Embedder, Embeddings, Isa, Loaded, M3, MultiVectorEncoder, Plan,
    Pooling, Precision, Prompt, Ranges, RequestContext, Route, SparseEncoder, TextOrTokens,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Compute embeddings of texts: dense, sparse (SPLADE) or multi-vector (ColBERT).
#[derive(Args)]
#[command(after_help = "Examples:\n  sconce embed \"A man is eating food.\"\n  \
    sconce embed -f texts.txt -o vectors.npy\n  \
    sconce embed -f docs.jsonl --field body -o docs.embedded.jsonl --dtype bf16\n  \
    sconce embed -f docs.parquet -o docs.embedded.parquet\n  \
    sconce embed -f books.jsonl --chunk -o chunks.parquet\n  \
    sconce embed -f texts.txt --dimensions 128 --precision ubinary -o bits.npy\n  \
    sconce embed -m prithivida/Splade_PP_en_v2 --sparse \"A man is eating food.\"\n  \
    sconce embed -m colbert-ir/colbertv2.0 --multi --query --json \"Who eats?\"\n  \
    sconce embed -m BAAI/bge-m3 --sparse --multi -f docs.txt -o docs.jsonl",
    group = ArgGroup::new("routed").args(["sparse", "multi"]).multiple(true))]
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
    /// Put this prompt before each text.
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// How the hidden states of a text become one vector; by default as the model's files say.
    /// none: one vector per token.
    #[arg(long, value_enum, value_name = "POOLING")]
    pooling: Option<PoolingArg>,
    /// Keep the first N dimensions of each vector and L2-normalize it again, for models trained for
    /// it (Matryoshka).
    #[arg(long, value_name = "N")]
    dimensions: Option<usize>,
    /// Precision of the output: float32, int8, uint8, binary or ubinary (eight dimensions per
    /// byte).
    ///
    /// int8 and uint8 need the range of each dimension: from --ranges, or else from the vectors
    /// themselves, which are then all held in memory and written at the end.
    #[arg(long, value_name = "PRECISION", default_value_t)]
    precision: Precision,
    /// JSON file {"low": [...], "high": [...]} with the minimum and maximum of each dimension.
    #[arg(long, value_name = "FILE")]
    ranges: Option<PathBuf>,
    /// In JSON and JSONL, write each vector as base64 of its little-endian f32 bytes.
    #[arg(long, conflicts_with = "precision")]
    base64: bool,
    /// Embed a text that is longer than the model in chunks: windows of up to TOKENS tokens (by
    /// default as many as the model takes) that overlap, each with its own vector.
    ///
    /// Special tokens and the prompt are part of every chunk. JSON, JSONL and Parquet have the place
    /// of each chunk in its text, in characters.
    #[arg(long, value_name = "TOKENS", num_args = 0..=1, require_equals = true, conflicts_with_all = ["sparse", "multi"])]
    chunk: Option<Option<usize>>,
    /// Tokens that neighbouring chunks share, at most half of a chunk. Default: an eighth of TOKENS.
    #[arg(long, value_name = "N", requires = "chunk")]
    overlap: Option<usize>,
    /// Write one vector per text: the mean of its chunks' vectors, weighted by their tokens, and
    /// L2-normalized if the model L2-normalizes.
    #[arg(long, requires = "chunk")]
    chunk_mean: bool,
    /// Compute sparse embeddings (weights over the vocabulary) with a SPLADE model or bge-m3. With
    /// --multi, compute all three embeddings of bge-m3 in one pass.
    #[arg(long, conflicts_with_all = ["prompt", "prompt_name", "pooling", "dimensions", "precision", "ranges", "base64"])]
    sparse: bool,
    /// Compute multi-vector embeddings (one vector per token) with a ColBERT model or bge-m3. Texts
    /// are documents, unless --query is given.
    #[arg(long, conflicts_with_all = ["prompt", "prompt_name", "pooling", "dimensions", "precision", "ranges", "base64"])]
    multi: bool,
    /// The texts are queries, for --multi, and for --sparse with a model whose queries need no
    /// inference.
    #[arg(long, requires = "routed")]
    query: bool,
}

impl Embed {
    pub(crate) fn run(self, report: &Report) -> Result<ExitCode, Failure> {
        let is_unpooled = self.pooling == Some(PoolingArg::None);
        if is_unpooled && (self.dimensions.is_some() || self.precision != Precision::Float32 || self.base64) {
            return Err(
                "--pooling none writes hidden states as they are: leave out --dimensions, --precision and --base64"
                    .into(),
            );
        }
        if is_unpooled && self.chunk.is_some() {
            return Err("--chunk splits texts into chunks with a vector each: leave out --pooling none".into());
        }
        if self.query && self.sparse && self.multi {
            return Err("--query is for --multi or --sparse alone: bge-m3 reads queries as documents".into());
        }
        self.output.check(!self.sparse && !self.multi && !is_unpooled, true)?;
        if self.base64 && !self.output.is_json() {
            return Err("--base64 is for --format json and jsonl; for raw bytes use --format bin".into());
        }
        if self.ranges.is_some() && !self.is_ranged() {
            return Err("--ranges is for --precision int8 and uint8 only".into());
        }
        let texts = Texts::open_for(&self.input, &self.output, None)?;
        match () {
            () if self.sparse && self.multi => self.m3(texts, report),
            () if self.sparse => self.sparse(texts, report),
            () if self.multi => self.multi(texts, report),
            () if is_unpooled => self.hidden_states(texts, report),
            () => self.dense(texts, report),
        }
    }

    fn dense(&self, mut texts: Texts, report: &Report) -> Result<ExitCode, Failure> {
        let ranges = self.ranges.as_deref().map(read_ranges).transpose()?;
        let context = RequestContext::default();
        let embedder = self.model.load(report, Embedder::load)?.with_context(&context);
        let pooling = self.pooling.and_then(PoolingArg::pooling);
        let options = EmbedOptions::default().with_prompt(self.prompt()).with_pooling(pooling);
        // Empty, but of the right dimension: options that cannot work fail before the work.
        let empty = Embeddings { dimension: embedder.dimension(pooling)?, ..Embeddings::default() };
        let empty = self.truncate_dimensions(empty)?;
        let needs_ranges = self.is_ranged() && ranges.is_none();
        let (descr, numbers) = match self.precision {
            Precision::Float32 => ("<f4", empty.dimension),
            _ if needs_ranges => (if self.precision == Precision::Int8 { "|i1" } else { "|u1" }, empty.dimension),
            precision => {
                let small = empty.quantize(precision, ranges.as_ref())?;
                (if small.is_signed { "|i1" } else { "|u1" }, small.dimension)
            }
        };
        let array = (!self.base64).then_some((descr, numbers));
        let column = match descr {
            "<f4" => FLOAT_COLUMN,
            "|i1" => INT8_COLUMN,
            _ => UINT8_COLUMN,
        };
        let names = ResultNames { array, ..embedding_names(column) };
        let columns = std::mem::take(&mut texts.columns);
        let of = if self.writes_chunks() { ResultsOf::Chunks(columns) } else { ResultsOf::Texts(columns) };
        let mut writer = self.output.open(names, of)?;
        let mut waiting: Vec<Text> = Vec::new();
        let mut collected = Vectors { embeddings: empty, chunks: Vec::new() };
        let summary = texts.run_windows(
            report,
            ModelCall { context: &context, run: |window: &[Text]| self.vectors(&embedder, window, &options) },
            |vectors, window| {
                let Vectors { embeddings, chunks } = vectors;
                let e = self.truncate_dimensions(embeddings)?;
                if !needs_ranges {
                    return self.write(&mut writer, &Vectors { embeddings: e, chunks }, &window, ranges.as_ref());
                }
                let (all, before) = (&mut collected.embeddings, waiting.len());
                all.truncated.extend(e.truncated.iter().map(|i| i + before));
                all.values.extend(e.values);
                all.tokens.extend(e.tokens);
                collected.chunks.extend(chunks.into_iter().map(|chunk| chunk.with_text(chunk.text + before)));
                waiting.extend(window);
                Ok(())
            },
        )?;
        if !waiting.is_empty() {
            self.write(&mut writer, &collected, &waiting, None)?;
        }
        let mut about = json!({"dimension": numbers});
        if self.precision != Precision::Float32 {
            about["precision"] = json!(self.precision.to_string());
        }
        writer.finish(&with_run_info(about, &embedder))?;
        summary.report(report, &embedder, self.chunk.is_none().then_some("--chunk"));
        self.suggest_bf16(embedder.plan(), report)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Embeds a window of texts, in chunks if asked.
    fn vectors(&self, embedder: &Embedder, window: &[Text], options: &EmbedOptions) -> Result<Vectors, Failure> {
        let Some(tokens) = self.chunk else {
            return Ok(Vectors { embeddings: embedder.embed_with(&inputs(window), options)?, chunks: Vec::new() });
        };
        let chunking = ChunkOptions::default().with_tokens(tokens).with_overlap(self.overlap);
        let embedded = embedder.embed_chunks(&strings(window), options, &chunking)?;
        Ok(match self.chunk_mean {
            true => Vectors { embeddings: embedded.means(), chunks: Vec::new() },
            false => Vectors { embeddings: embedded.embeddings, chunks: embedded.chunks },
        })
    }

    /// Whether a result is of a chunk and not of a text.
    fn writes_chunks(&self) -> bool {
        self.chunk.is_some() && !self.chunk_mean
    }

    fn prompt(&self) -> Prompt {
        match (&self.prompt_name, &self.prompt) {
            (Some(name), _) => Prompt::Named(name.clone()),
            (_, Some(words)) => Prompt::Text(words.clone()),
            _ => Prompt::Default,
        }
    }

    fn hidden_states(&self, texts: Texts, report: &Report) -> Result<ExitCode, Failure> {
        let context = RequestContext::default();
        let embedder = self.model.load(report, Embedder::load)?.with_context(&context);
        let prompt = self.prompt();
        let run = |window: &[Text]| Ok(embedder.embed_all(&inputs(window), &prompt)?);
        let result_output = self.result_output(&embedder, MULTI_COLUMN, json!({"pooling": "none"}));
        texts.write_results(
            report,
            result_output,
            ModelCall { context: &context, run },
            |writer, text, vectors, info| writer.write(text, &MultiVectorRows(&vectors), info),
        )
    }

    /// Says once per machine that bf16 would be much faster, if the user left the format open.
    fn suggest_bf16(&self, plan: &Plan, report: &Report) -> Result<(), Failure> {
        let run_args = &self.model.run_args;
        let is_slow = (plan.device, plan.dtype, run_args.dtype) == (Device::Cpu, DType::F32, None)
            && plan.graph.is_none()
            && run_args.isa.unwrap_or_else(Isa::best).is_twice_as_fast_in_bf16();
        if is_slow && !report.is_quiet() && is_first_time("bf16-suggested", &run_args.options()?.hub.cache) {
            report.info(
                "this processor embeds more than twice as fast in bf16, with nearly the same vectors: --dtype auto (this \
                 is said once)",
            );
        }
        Ok(())
    }

    fn is_ranged(&self) -> bool {
        matches!(self.precision, Precision::Int8 | Precision::Uint8)
    }

    fn truncate_dimensions(&self, e: Embeddings) -> Result<Embeddings, Failure> {
        Ok(match self.dimensions {
            Some(n) => e.cut(n)?,
            None => e,
        })
    }

    fn write(
        &self,
        writer: &mut Writer,
        vectors: &Vectors,
        texts: &[Text],
        ranges: Option<&Ranges>,
    ) -> Result<(), Failure> {
        let Vectors { embeddings: e, chunks } = vectors;
        let text = |i: usize| &texts[chunks.get(i).map_or(i, |chunk| chunk.text)];
        let info = |i: usize| {
            let truncated = e.truncated.binary_search(&i).is_ok();
            Some(TokenInfo { tokens: e.tokens[i], truncated, chunk: chunks.get(i).copied() })
        };
        if self.precision == Precision::Float32 {
            for (i, row) in e.rows().enumerate() {
                match self.base64 {
                    true => writer.write(text(i), &Base64(row), info(i))?,
                    false => writer.write(text(i), &Floats(row), info(i))?,
                }
            }
        } else {
            let small = e.quantize(self.precision, ranges)?;
            for (i, row) in small.rows().enumerate() {
                writer.write(text(i), &QuantizedRow { row, is_signed: small.is_signed }, info(i))?;
            }
        }
        writer.flush_stream()
    }

    fn sparse(&self, texts: Texts, report: &Report) -> Result<ExitCode, Failure> {
        let context = RequestContext::default();
        let sparse = self.model.load(report, SparseEncoder::load)?.with_context(&context);
        let route = if self.query { Route::Query } else { Route::Default };
        let run = |window: &[Text]| Ok(sparse.embed_as(&strings(window), route)?);
        let result_output = self.result_output(&sparse, SPARSE_COLUMN, json!({"vocabulary": sparse.plan().dimension}));
        texts.write_results(
            report,
            result_output,
            ModelCall { context: &context, run },
            |writer, text, vector, info| writer.write(text, &SparseWeights::new(&vector, |id| sparse.token(id)), info),
        )
    }

    fn multi(&self, texts: Texts, report: &Report) -> Result<ExitCode, Failure> {
        let context = RequestContext::default();
        let multi = self.model.load(report, MultiVectorEncoder::load)?.with_context(&context);
        let run = |window: &[Text]| match self.query {
            true => Ok(multi.queries(&strings(window))?),
            false => Ok(multi.documents(&strings(window))?),
        };
        let side = if self.query { "query" } else { "document" };
        let about = json!({"dimension": multi.plan().dimension, "side": side});
        let result_output = self.result_output(&multi, MULTI_COLUMN, about);
        texts.write_results(
            report,
            result_output,
            ModelCall { context: &context, run },
            |writer, text, vectors, info| writer.write(text, &MultiVectorRows(&vectors), info),
        )
    }

    fn m3(&self, texts: Texts, report: &Report) -> Result<ExitCode, Failure> {
        let context = RequestContext::default();
        let m3 = self.model.load(report, M3::load)?.with_context(&context);
        let run = |window: &[Text]| Ok(m3.embed(&strings(window))?);
        let result_output = self.result_output(&m3, M3_COLUMN, json!({"dimension": m3.plan().dimension}));
        texts.write_results(report, result_output, ModelCall { context: &context, run }, |writer, text, row, info| {
            writer.write(text, &M3Rows::new(&row, |id| m3.token(id)), info)
        })
    }

    fn result_output<'a>(&'a self, model: &'a dyn Loaded, column: &'static str, about: Value) -> ResultOutput<'a> {
        ResultOutput { output: &self.output, names: embedding_names(column), model, about, way_out: None }
    }
}

/// Embeddings of texts, or of their chunks.
struct Vectors {
    embeddings: Embeddings,
    /// The chunk of each row; empty if a row is of a whole text.
    chunks: Vec<Chunk>,
}

impl WindowResult for Vectors {
    fn tokens(&self) -> usize {
        self.embeddings.tokens()
    }
    fn is_truncated(&self, i: usize) -> bool {
        self.embeddings.is_truncated(i)
    }
}

/// How the hidden states of a text become one vector.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PoolingArg {
    /// The mean of all tokens.
    Mean,
    /// The first token.
    Cls,
    /// The last token.
    #[value(alias = "last-token")]
    Last,
    /// The largest value of each column.
    Max,
    /// No pooling.
    None,
}

impl PoolingArg {
    pub(crate) fn pooling(self) -> Option<Pooling> {
        match self {
            PoolingArg::Mean => Some(Pooling::Mean),
            PoolingArg::Cls => Some(Pooling::Cls),
            PoolingArg::Last => Some(Pooling::LastToken),
            PoolingArg::Max => Some(Pooling::Max),
            PoolingArg::None => None,
        }
    }
}

fn inputs(window: &[Text]) -> Vec<TextOrTokens<'_>> {
    window.iter().map(|text| TextOrTokens::Text(&text.text)).collect()
}

/// Names of embeddings, with this Parquet column.
pub(crate) fn embedding_names(column: &'static str) -> ResultNames {
    ResultNames { many: "embeddings", one: Some("embedding"), fields: &[], array: None, column: Some(column) }
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
        .map_err(|e| fail(&format!("expected an object with two lists of numbers, low and high: {e}")))?;
    Ok(Ranges::new(file.low, file.high).map_err(|e| fail(&e))?)
}

/// Whether this is the first call with `name` for this cache, which it marks for later calls. False
/// if the cache cannot be written.
fn is_first_time(name: &str, cache: &Path) -> bool {
    std::fs::create_dir_all(cache).is_ok() && File::create_new(cache.join(name)).is_ok()
}
