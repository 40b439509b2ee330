//! Dense embeddings: one vector per text or chunk.

use super::{Embed, PoolingArg, embedding_names, inputs};
use crate::Failure;
use crate::commands::with_run_info;
use crate::input::Text;
use crate::output::{ResultNames, ResultsOf, TokenInfo, Writer};
use crate::report::Report;
use crate::shards::ShardOutput;
use crate::source::Source;
use crate::summary::WindowResult;
use crate::vector_output::{Base64, FLOAT_COLUMN, Floats, INT8_COLUMN, QuantizedRow, UINT8_COLUMN};
use crate::window_runner::{ModelCall, strings};
use sconce_engine::{
    Chunk, ChunkOptions, DType, Device, EmbedOptions, Embedder, Embeddings, Isa, Loaded, Plan, Precision, Ranges,
    RequestContext,
};
use serde::Deserialize;
use serde_json::json;
use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

impl Embed {
    pub(super) fn dense(&self, source: Source, report: &Report) -> Result<ExitCode, Failure> {
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
        let mut texts = match source {
            Source::Texts(texts) => *texts,
            Source::Shards(run) => {
                let of = if self.writes_chunks() { ResultsOf::Chunks } else { ResultsOf::Texts };
                let way_out = self.chunk.is_none().then_some("--chunk");
                let output = ShardOutput { model: &embedder, names, of, way_out };
                let call =
                    ModelCall { context: &context, run: |window: &[Text]| self.vectors(&embedder, window, &options) };
                return run.texts(report, &output, call, |writer, vectors: Vectors, window| {
                    let Vectors { embeddings, chunks } = vectors;
                    let embeddings = self.truncate_dimensions(embeddings)?;
                    self.write(writer, &Vectors { embeddings, chunks }, window, ranges.as_ref())
                });
            }
        };
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
