//! Sparse embeddings without inference: every token of a text has the weight that the model's files
//! give it (SparseStaticEmbedding of sentence-transformers, OpenSearch's "doc" models). Looking up a
//! few numbers needs no device, so this runs where the tokenizer does.

use super::sparse::SparseVector;
use crate::config::InputSpec;
use crate::error::{Error, Result};
use crate::runtime::RequestSettings;
use crate::workloads::encode::Outputs;
use sconce_formats::Checkpoint;
use sconce_ops::{DType, Place, Weights};
use sconce_text::{ModelTokenizer, TextOrTokens};
use std::sync::Arc;

/// The tokens of a text without a maximum length.
const MOST_TOKENS: usize = 1 << 16;

/// The weight of every token of a vocabulary, with its tokenizer.
pub(crate) struct StaticWeights {
    tokenizer: ModelTokenizer,
    max_tokens: usize,
    weights: Vec<f32>,
}

impl StaticWeights {
    pub(crate) fn load(spec: &InputSpec) -> Result<StaticWeights> {
        let InputSpec { root, max_tokens, tokenizer_options } = spec;
        let weights = Weights::new(Arc::new(Checkpoint::open(root)?), DType::F32, Place::cpu());
        let dims = weights.dims("weight")?.unwrap_or_default();
        let [vocabulary] = dims[..] else {
            return Err(Error::file(root, format!("`weight` is {dims:?}; a number for each token was expected")));
        };
        let max_tokens = max_tokens.unwrap_or(MOST_TOKENS).min(MOST_TOKENS);
        // One token more, because without special tokens the library does not say that it truncated.
        let tokenizer = ModelTokenizer::load(root, max_tokens + 1, *tokenizer_options)?;
        Ok(StaticWeights { weights: weights.values("weight", &[vocabulary])?, max_tokens, tokenizer })
    }

    /// The weights of the tokens of each text and the prompt before it. A token counts once, and special tokens are not added.
    pub(crate) fn embed(
        &self,
        inputs: &[TextOrTokens<'_>],
        prompt: &str,
        settings: &RequestSettings,
    ) -> Result<Outputs<SparseVector>> {
        let RequestSettings { context, truncate, max_tokens } = settings;
        let (reader, max_tokens) = (self.tokenizer.reader(*truncate), max_tokens.unwrap_or(usize::MAX));
        let text = |input: &TextOrTokens<'_>| match input {
            TextOrTokens::Text(text) => Ok(format!("{prompt}{text}")),
            TextOrTokens::Tokens(_) => {
                Err(Error::Input("the queries of this model are texts: token ids cannot be given".into()))
            }
        };
        let texts = inputs.iter().map(text).collect::<Result<Vec<_>>>()?;
        let encoded = context.tokenizing(|| Ok(reader.encode_bare(&texts, max_tokens.min(self.max_tokens))?))?;
        let tokens = encoded.iter().map(|e| e.ids.len()).collect();
        let truncated = (0..encoded.len()).filter(|i| encoded[*i].truncated).collect();
        let results = encoded.into_iter().enumerate().map(|(i, e)| self.vector(i, e.ids)).collect::<Result<_>>()?;
        Ok(Outputs { results, tokens, truncated })
    }

    fn vector(&self, text: usize, mut ids: Vec<u32>) -> Result<SparseVector> {
        ids.sort_unstable();
        ids.dedup();
        let weight = |id: &u32| self.weights.get(*id as usize).copied();
        if let Some(id) = ids.iter().find(|id| **id as usize >= self.weights.len()) {
            let why = format!("token {id} is outside of the {} weights of the model", self.weights.len());
            return Err(Error::Text { text, why });
        }
        ids.retain(|id| weight(id).is_some_and(|w| w != 0.0));
        Ok(SparseVector { weights: ids.iter().filter_map(weight).collect(), ids })
    }
}
