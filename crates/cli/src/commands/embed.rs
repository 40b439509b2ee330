//! `sconce embed`: embeddings of texts.

mod dense;

use crate::Failure;
use crate::args::Model;
use crate::input::{Input, Text};
use crate::output::{Output, ResultNames};
use crate::report::Report;
use crate::shards::{ShardArgs, ShardRequest};
use crate::source::{ResultOutput, Source};
use crate::vector_output::{M3_COLUMN, M3Rows, MULTI_COLUMN, MultiVectorRows, SPARSE_COLUMN, SparseWeights};
use crate::window_runner::{ModelCall, Texts, strings};
use clap::{ArgGroup, Args, ValueEnum};
use sconce_engine::{
    Embedder, Loaded, M3, MultiVectorEncoder, Pooling, Precision, Prompt, RequestContext, Route, SparseEncoder,
    TextOrTokens,
};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Compute embeddings of texts: dense, sparse (SPLADE) or multi-vector (ColBERT).
#[derive(Args)]
#[command(after_help = "Examples:\n  sconce embed \"A man is eating food.\"\n  \
    sconce embed -f texts.txt -o vectors.npy\n  \
    sconce embed -f docs.jsonl --field body -o docs.embedded.jsonl --dtype bf16\n  \
    sconce embed -f docs.parquet -o docs.embedded.parquet\n  \
    sconce embed -f books.jsonl --chunk -o chunks.parquet\n  \
    sconce embed --shards vectors/ --keep id texts/*.parquet\n  \
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
    #[command(flatten)]
    shards: ShardArgs,
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
        if self.shards.is_on() {
            self.output.check_unused()?;
            if self.is_ranged() && self.ranges.is_none() {
                let why = "take the ranges of all vectors, which no process of --shards sees: give --ranges";
                return Err(format!("--precision int8 and uint8 {why}").into());
            }
        }
        let run = if self.shards.is_on() { self.shards.open(self.shard_request()?)? } else { None };
        let source = match run {
            Some(run) => Source::Shards(Box::new(run)),
            None => Source::Texts(Box::new(Texts::open_for(&self.input, &self.output, None)?)),
        };
        match () {
            () if self.sparse && self.multi => self.m3(source, report),
            () if self.sparse => self.sparse(source, report),
            () if self.multi => self.multi(source, report),
            () if is_unpooled => self.hidden_states(source, report),
            () => self.dense(source, report),
        }
    }

    /// What --shards computes.
    fn shard_request(&self) -> Result<ShardRequest<'_>, Failure> {
        let pooling = self.pooling.as_ref().and_then(ValueEnum::to_possible_value);
        // The file may change; its numbers decide about the output.
        let read = |path: &PathBuf| std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()));
        let ranges = self.ranges.as_ref().map(read).transpose()?;
        let options = json!({
            "--prompt-name": self.prompt_name,
            "--prompt": self.prompt,
            "--pooling": pooling.as_ref().map(|value| value.get_name()),
            "--dimensions": self.dimensions,
            "--precision": self.precision.to_string(),
            "--ranges": ranges,
            "--chunk": self.chunk.map(|tokens| json!({"tokens": tokens})),
            "--overlap": self.overlap,
            "--chunk-mean": self.chunk_mean,
            "--sparse": self.sparse,
            "--multi": self.multi,
            "--query": self.query,
        });
        Ok(ShardRequest::of("embed", (self.model.model.as_str(), &self.model.run_args), &self.input, options))
    }

    fn prompt(&self) -> Prompt {
        match (&self.prompt_name, &self.prompt) {
            (Some(name), _) => Prompt::Named(name.clone()),
            (_, Some(words)) => Prompt::Text(words.clone()),
            _ => Prompt::Default,
        }
    }

    fn hidden_states(&self, source: Source, report: &Report) -> Result<ExitCode, Failure> {
        let context = RequestContext::default();
        let embedder = self.model.load(report, Embedder::load)?.with_context(&context);
        let prompt = self.prompt();
        let run = |window: &[Text]| Ok(embedder.embed_all(&inputs(window), &prompt)?);
        let result_output = self.result_output(&embedder, MULTI_COLUMN, json!({"pooling": "none"}));
        source.write_results(
            report,
            result_output,
            ModelCall { context: &context, run },
            |writer, text, vectors, info| writer.write(text, &MultiVectorRows(&vectors), info),
        )
    }

    fn is_ranged(&self) -> bool {
        matches!(self.precision, Precision::Int8 | Precision::Uint8)
    }

    fn sparse(&self, source: Source, report: &Report) -> Result<ExitCode, Failure> {
        let context = RequestContext::default();
        let sparse = self.model.load(report, SparseEncoder::load)?.with_context(&context);
        let route = if self.query { Route::Query } else { Route::Default };
        let run = |window: &[Text]| Ok(sparse.embed_as(&strings(window), route)?);
        let result_output = self.result_output(&sparse, SPARSE_COLUMN, json!({"vocabulary": sparse.plan().dimension}));
        source.write_results(
            report,
            result_output,
            ModelCall { context: &context, run },
            |writer, text, vector, info| writer.write(text, &SparseWeights::new(&vector, |id| sparse.token(id)), info),
        )
    }

    fn multi(&self, source: Source, report: &Report) -> Result<ExitCode, Failure> {
        let context = RequestContext::default();
        let multi = self.model.load(report, MultiVectorEncoder::load)?.with_context(&context);
        let run = |window: &[Text]| match self.query {
            true => Ok(multi.queries(&strings(window))?),
            false => Ok(multi.documents(&strings(window))?),
        };
        let side = if self.query { "query" } else { "document" };
        let about = json!({"dimension": multi.plan().dimension, "side": side});
        let result_output = self.result_output(&multi, MULTI_COLUMN, about);
        source.write_results(
            report,
            result_output,
            ModelCall { context: &context, run },
            |writer, text, vectors, info| writer.write(text, &MultiVectorRows(&vectors), info),
        )
    }

    fn m3(&self, source: Source, report: &Report) -> Result<ExitCode, Failure> {
        let context = RequestContext::default();
        let m3 = self.model.load(report, M3::load)?.with_context(&context);
        let run = |window: &[Text]| Ok(m3.embed(&strings(window))?);
        let result_output = self.result_output(&m3, M3_COLUMN, json!({"dimension": m3.plan().dimension}));
        source.write_results(report, result_output, ModelCall { context: &context, run }, |writer, text, row, info| {
            writer.write(text, &M3Rows::new(&row, |id| m3.token(id)), info)
        })
    }

    fn result_output<'a>(&'a self, model: &'a dyn Loaded, column: &'static str, about: Value) -> ResultOutput<'a> {
        ResultOutput { output: &self.output, names: embedding_names(column), model, about, way_out: None }
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
