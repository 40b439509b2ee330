//! Models that read a text and write another.

use crate::{Batch, Encoder, Error, LayerHook, Limits, LmHead, Result};
use sconce_ops::replay::Given;
use sconce_ops::{Keys, KvCache, KvCacheShape, Pages, Place, Tensor};
use std::sync::Arc;

/// A model that reads a text and writes another: an encoder, and a decoder that looks at its states.
///
/// Reading: [`Seq2Seq::encoder`] makes states of the inputs, and [`Seq2Seq::remember`] keeps of them what the decoder looks at, in
/// the rows that [`Read::rows`] says. Writing: [`Seq2Seq::forward`], as with a language model, and [`Seq2Seq::head`] behind it.
pub trait Seq2Seq: Send {
    /// What reads.
    fn encoder(&self) -> &dyn Encoder;
    /// Writes to `rows` `[tokens]` of `cache` what the decoder looks at of the encoder's `states` `[tokens, hidden]`.
    fn remember(&self, states: &Tensor, cache: &KvCache, rows: &Tensor) -> Result<()>;
    /// Hidden states of what is written, `[wanted, hidden]`, behind the final norm. Sequence i of `batch` looks at input i of
    /// `read`.
    fn forward(&self, batch: &Batch, read: &Read, watch: LayerHook<'_>) -> Result<Tensor>;
    /// From these to the next token.
    fn head(&self) -> &LmHead;
    /// The largest ids it can take.
    fn limits(&self) -> Limits;
    /// What it keeps of each token that was read, and of each that was written.
    fn cache(&self) -> KvCacheShape;
}

/// Where what was read lies in a cache, an entry a sequence that looks at it. Several may look at one.
#[derive(Clone, Debug)]
pub struct Read {
    pub(crate) cache: KvCache,
    pub(crate) pages: Pages,
}

impl Read {
    /// From the pages of `page` rows and the length in tokens of each input.
    pub fn new(inputs: &[(Arc<[u32]>, usize)], page: usize, cache: &KvCache) -> Result<Read> {
        let pages = cache.rows() / page.max(1);
        if let Some(beyond) = inputs.iter().flat_map(|(table, _)| table.iter()).find(|p| **p as usize >= pages) {
            return Err(Error::Input(format!("page {beyond} of a cache of {pages}")));
        }
        Ok(Read { cache: cache.clone(), pages: Pages::new(inputs.to_vec(), page)? })
    }

    /// What the dynamic parameters are computed from of a batch whose sequences look at these.
    pub fn given(&self, batch: &Batch) -> Given {
        let mut given = batch.given(&[]);
        given.keys.push(Keys::Paged(self.pages.clone()));
        given
    }

    /// The rows of all tokens, input by input.
    pub fn rows(&self, place: &Place) -> Result<Tensor> {
        let tables = self.pages.observe();
        let rows = |i: usize| (0..tables.len(i)).map(move |j| tables.row(i, j) as u32);
        Ok(Tensor::from_u32(&(0..self.pages.count()).flat_map(rows).collect::<Vec<_>>(), place)?)
    }
}
