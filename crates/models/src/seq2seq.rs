//! Sequence-to-sequence models.

use crate::{Backbone, Batch, Error, LayerHook, Limits, LmHead, Result};
use sconce_ops::replay::BatchLayout;
use sconce_ops::{Keys, KvCache, KvCacheShape, Pages, Place, Tensor};
use std::sync::Arc;

/// A sequence-to-sequence model: an encoder, and a decoder with cross-attention over the encoder's
/// hidden states.
///
/// To encode, run [`Seq2Seq::encoder`], then [`Seq2Seq::write_encoder_kv`], which writes the keys
/// and values of cross-attention into the KV cache, at the rows of [`EncoderKv::rows`]. To decode,
/// run [`Seq2Seq::forward`], as with a language model, and then [`Seq2Seq::head`].
pub trait Seq2Seq: Send {
    /// The encoder.
    fn encoder(&self) -> &dyn Backbone;
    /// Computes the cross-attention keys and values of the encoder's `states` `[tokens, hidden]`
    /// and writes them to `rows` `[tokens]` of the KV cache.
    fn write_encoder_kv(&self, states: &Tensor, cache: &KvCache, rows: &Tensor) -> Result<()>;
    /// The decoder's hidden states, `[wanted, hidden]`, after the final norm. Sequence i of `batch`
    /// attends to entry i of `encoder_kv`.
    fn forward(&self, batch: &Batch, encoder_kv: &EncoderKv, hook: LayerHook<'_>) -> Result<Tensor>;
    /// The LM head.
    fn head(&self) -> &LmHead;
    /// The number of token ids and positions that the decoder has embeddings for.
    fn limits(&self) -> Limits;
    /// The shape of the KV caches, which is the same for the encoder's and the decoder's tokens.
    fn cache(&self) -> KvCacheShape;
}

/// Where the encoder's keys and values lie in the KV cache, for cross-attention: one entry per
/// decoder sequence. Several sequences may share an input.
#[derive(Clone, Debug)]
pub struct EncoderKv {
    pub(crate) cache: KvCache,
    pub(crate) pages: Pages,
}

impl EncoderKv {
    /// From the page table and the length in tokens of each input; a page has `page` rows.
    pub fn new(inputs: &[(Arc<[u32]>, usize)], page: usize, cache: &KvCache) -> Result<EncoderKv> {
        let pages = cache.rows() / page.max(1);
        if let Some(beyond) = inputs.iter().flat_map(|(table, _)| table.iter()).find(|p| **p as usize >= pages) {
            return Err(Error::Input(format!("page {beyond} is beyond the KV cache of {pages} pages")));
        }
        Ok(EncoderKv { cache: cache.clone(), pages: Pages::new(inputs.to_vec(), page)? })
    }

    /// The data that a CUDA graph's dynamic parameters are computed from, for a batch that attends
    /// to these entries.
    pub fn layout(&self, batch: &Batch) -> BatchLayout {
        let mut layout = batch.layout(&[]);
        layout.keys.push(Keys::Paged(self.pages.clone()));
        layout
    }

    /// The cache rows of all tokens, input by input.
    pub fn rows(&self, place: &Place) -> Result<Tensor> {
        let tables = self.pages.observe();
        let rows = |i: usize| (0..tables.len(i)).map(move |j| tables.row(i, j) as u32);
        Ok(Tensor::from_u32(&(0..self.pages.count()).flat_map(rows).collect::<Vec<_>>(), place)?)
    }
}
