//! Embeddings of texts that are longer than the model, in windows that overlap.

use super::embed::{EmbedOptions, Embedder, Embeddings, l2_normalize};
use crate::error::{Error, Result};
use crate::workloads::encode::Texts;
use derive_setters::Setters;
use sconce_text::{Window, Windowing};

/// How texts are split into chunks. A text that fits into one chunk is not split, and its embedding
/// is the same as without chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct ChunkOptions {
    /// The longest chunk in tokens, special tokens and prompt included; `None`, or more than the
    /// model can take: as many as it can take.
    pub tokens: Option<usize>,
    /// Tokens of the text that neighbouring chunks share, at most half of a chunk; `None`: an
    /// eighth of `tokens`.
    pub overlap: Option<usize>,
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct Chunk {
    /// The index of the text.
    pub text: usize,
    /// The number of the chunk in the text, from 0.
    pub index: usize,
    /// Its first character in the text.
    pub start: usize,
    /// The character after its last.
    pub end: usize,
    /// Tokens of the text in it, without special tokens and prompt.
    pub tokens: usize,
}

/// The embeddings of the chunks of several texts.
#[derive(Clone, Debug, Default)]
pub struct ChunkEmbeddings {
    /// An embedding per chunk, in the order of the texts and of their chunks.
    pub embeddings: Embeddings,
    /// The chunks. Every text has at least one.
    pub chunks: Vec<Chunk>,
    /// Whether the embeddings are L2-normalized.
    is_normalized: bool,
}

impl ChunkEmbeddings {
    /// One embedding per text: the mean of those of its chunks, weighted by their tokens, and
    /// L2-normalized if they are.
    pub fn means(&self) -> Embeddings {
        let dimension = self.embeddings.dimension;
        let mut means = Embeddings { dimension, ..Embeddings::default() };
        let mut first = 0;
        for chunks in self.chunks.chunk_by(|a, b| a.text == b.text) {
            let rows = first..first + chunks.len();
            first = rows.end;
            means.tokens.push(self.embeddings.tokens[rows.clone()].iter().sum());
            if let [_] = chunks {
                means.values.extend(self.embeddings.row(rows.start));
                continue;
            }
            let mut sum = vec![0f64; dimension];
            for (chunk, row) in chunks.iter().zip(rows) {
                let row = self.embeddings.row(row).iter();
                sum.iter_mut().zip(row).for_each(|(sum, v)| *sum += chunk.tokens as f64 * f64::from(*v));
            }
            let total = chunks.iter().map(|chunk| chunk.tokens).sum::<usize>().max(1) as f64;
            let mean: Vec<f32> = sum.iter().map(|v| (v / total) as f32).collect();
            means.values.extend(if self.is_normalized { l2_normalize(&mean) } else { mean });
        }
        means
    }
}

impl Embedder {
    /// Embeddings of `texts` in chunks: windows of tokens that together cover the text. Each has
    /// the special tokens and the prompt.
    ///
    /// ```no_run
    /// use sconce_engine::{ChunkOptions, EmbedOptions, Embedder, LoadOptions};
    ///
    /// let embedder = Embedder::load(&"minilm".parse()?, &LoadOptions::from_env()?, &())?;
    /// let book = std::fs::read_to_string("book.txt")?;
    /// let embedded = embedder.embed_chunks(&[book], &EmbedOptions::default(), &ChunkOptions::default())?;
    /// for (chunk, row) in embedded.chunks.iter().zip(embedded.embeddings.rows()) {
    ///     println!("{}..{} {:?}", chunk.start, chunk.end, &row[..3]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn embed_chunks<T: AsRef<str> + Sync>(
        &self,
        texts: &[T],
        options: &EmbedOptions,
        chunking: &ChunkOptions,
    ) -> Result<ChunkEmbeddings> {
        let dimension = self.check_options(options)?;
        let prompt = self.prompt(&options.prompt)?;
        let windowing = Windowing { prompt, tokens: chunking.tokens.unwrap_or(usize::MAX), overlap: chunking.overlap };
        let (windows, skip) = self.session.read(|reader| {
            let skip = self.skip(reader, prompt)?;
            Ok::<_, Error>((reader.encode_windows(texts, windowing)?, skip))
        })?;
        let (mut chunks, mut encoded) = (Vec::new(), Vec::new());
        for (text, windows) in windows.into_iter().enumerate() {
            for (index, window) in windows.into_iter().enumerate() {
                let (range, Window { encoded: one, own, .. }) = (window.range(), window);
                chunks.push(Chunk { text, index, start: range.start, end: range.end, tokens: own });
                encoded.push(one);
            }
        }
        let Texts { items, tokens, truncated } = Texts::of(encoded, skip);
        let values = self.embed_items(items, options, dimension)?;
        let embeddings = Embeddings { values, dimension, tokens, truncated };
        Ok(ChunkEmbeddings { embeddings, chunks, is_normalized: self.normalizes(options)? })
    }
}
