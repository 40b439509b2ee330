//! The models of the engine.

use sconce_engine as engine;
use sconce_engine::{Loaded, Prompt, RankOptions, Route};

use super::{Embedder, Embedding, EmbeddingKind, ModelIdentity, Rerank};
use crate::error::{Error, Result};

/// The prompts before passages and queries.
#[derive(Debug, Clone, Default)]
pub struct EmbedPrompts {
    /// Before each passage; `None`: the model's own for documents, if it has one.
    pub passage: Option<Prompt>,
    /// Before each query; `None`: the model's own for queries, if it has one.
    pub query: Option<Prompt>,
}

/// A model of one vector per text.
pub struct DenseModel {
    model: engine::Embedder,
    identity: ModelIdentity,
    passage: Prompt,
    query: Prompt,
    max_tokens: usize,
}

/// Names of prompts in models' files, for passages and for queries.
const PASSAGE_PROMPTS: [&str; 3] = ["document", "passage", "corpus"];
const QUERY_PROMPTS: [&str; 2] = ["query", "retrieval.query"];

impl DenseModel {
    /// An embedder under the name that loads it again.
    pub fn new(model: engine::Embedder, name: &str, prompts: EmbedPrompts) -> Result<DenseModel> {
        let own = |names: &[&str]| {
            let found = names.iter().find(|name| model.prompts().any(|prompt| prompt == **name));
            found.map_or(Prompt::Default, |name| Prompt::Named((*name).into()))
        };
        let passage = prompts.passage.unwrap_or_else(|| own(&PASSAGE_PROMPTS));
        let query = prompts.query.unwrap_or_else(|| own(&QUERY_PROMPTS));
        let identity = ModelIdentity {
            name: name.into(),
            revision: model.files().revision().map_err(engine::Error::Hub)?,
            kind: EmbeddingKind::Dense,
            dimensions: model.dimension(None)?,
            passage_prompt: model.prompt(&passage)?.into(),
            query_prompt: model.prompt(&query)?.into(),
        };
        let max_tokens = free_tokens(&model, &identity.passage_prompt);
        Ok(DenseModel { model, identity, passage, query, max_tokens })
    }
}

impl Embedder for DenseModel {
    fn identity(&self) -> &ModelIdentity {
        &self.identity
    }
    fn count_tokens(&self, text: &str) -> usize {
        count_tokens(&self.model, text)
    }
    fn max_tokens(&self) -> usize {
        self.max_tokens
    }
    fn embed_passages(&self, texts: &[&str]) -> Result<Vec<Embedding>> {
        let embeddings = self.model.embed(texts, &self.passage)?;
        Ok(embeddings.rows().map(|row| Embedding::Dense(row.to_vec())).collect())
    }
    fn embed_query(&self, text: &str) -> Result<Embedding> {
        let embeddings = self.model.embed(&[text], &self.query)?;
        Ok(Embedding::Dense(embeddings.values))
    }
}

/// A model of weights over the vocabulary (SPLADE).
pub struct SparseModel {
    model: engine::SparseEncoder,
    identity: ModelIdentity,
    max_tokens: usize,
}

impl SparseModel {
    /// A sparse encoder under the name that loads it again.
    pub fn new(model: engine::SparseEncoder, name: &str) -> Result<SparseModel> {
        let identity =
            unprompted(name, model.files().revision().map_err(engine::Error::Hub)?, EmbeddingKind::Sparse, 0);
        let max_tokens = free_tokens(&model, "");
        Ok(SparseModel { model, identity, max_tokens })
    }

    fn embed(&self, texts: &[&str], route: Route) -> Result<Vec<Embedding>> {
        // A model without routes encodes queries and passages alike, and ignores the route.
        let vectors = self.model.embed_as(texts, route)?.results;
        let pairs = |vector: engine::SparseVector| vector.ids.into_iter().zip(vector.weights).collect();
        Ok(vectors.into_iter().map(|vector| Embedding::Sparse(pairs(vector))).collect())
    }
}

impl Embedder for SparseModel {
    fn identity(&self) -> &ModelIdentity {
        &self.identity
    }
    fn count_tokens(&self, text: &str) -> usize {
        count_tokens(&self.model, text)
    }
    fn max_tokens(&self) -> usize {
        self.max_tokens
    }
    fn embed_passages(&self, texts: &[&str]) -> Result<Vec<Embedding>> {
        self.embed(texts, Route::Document)
    }
    fn embed_query(&self, text: &str) -> Result<Embedding> {
        first(self.embed(&[text], Route::Query)?)
    }
}

/// A model of a vector per token (ColBERT).
pub struct LateInteractionModel {
    model: engine::MultiVectorEncoder,
    identity: ModelIdentity,
    max_tokens: usize,
}

impl LateInteractionModel {
    /// A multi-vector encoder under the name that loads it again.
    pub fn new(model: engine::MultiVectorEncoder, name: &str) -> Result<LateInteractionModel> {
        // bge-m3 does not report the dimension of its single vectors in its plan.
        let dimensions = model.documents(&["dimension"])?.results.first().map_or(0, |vectors| vectors.dimension);
        let identity = unprompted(
            name,
            model.files().revision().map_err(engine::Error::Hub)?,
            EmbeddingKind::MultiVector,
            dimensions,
        );
        let max_tokens = free_tokens(&model, "");
        Ok(LateInteractionModel { model, identity, max_tokens })
    }
}

fn multi_vector(vectors: engine::MultiVector) -> Embedding {
    Embedding::MultiVector { rows: vectors.values.len() / vectors.dimension.max(1), values: vectors.values }
}

impl Embedder for LateInteractionModel {
    fn identity(&self) -> &ModelIdentity {
        &self.identity
    }
    fn count_tokens(&self, text: &str) -> usize {
        count_tokens(&self.model, text)
    }
    fn max_tokens(&self) -> usize {
        self.max_tokens
    }
    fn embed_passages(&self, texts: &[&str]) -> Result<Vec<Embedding>> {
        Ok(self.model.documents(texts)?.results.into_iter().map(multi_vector).collect())
    }
    fn embed_query(&self, text: &str) -> Result<Embedding> {
        first(self.model.queries(&[text])?.results.into_iter().map(multi_vector).collect())
    }
}

/// A reranker of the engine.
pub struct RerankModel(engine::Reranker);

impl RerankModel {
    /// A loaded reranker.
    pub fn new(model: engine::Reranker) -> RerankModel {
        RerankModel(model)
    }
}

impl Rerank for RerankModel {
    fn scores(&self, query: &str, passages: &[&str]) -> Result<Vec<f32>> {
        let mut scores = vec![f32::NEG_INFINITY; passages.len()];
        for ranked in self.0.rerank(query, passages, RankOptions::default())?.ranked {
            scores[ranked.index] = ranked.score;
        }
        Ok(scores)
    }
}

fn unprompted(name: &str, revision: String, kind: EmbeddingKind, dimensions: usize) -> ModelIdentity {
    let (passage_prompt, query_prompt) = Default::default();
    ModelIdentity { name: name.into(), revision, kind, dimensions, passage_prompt, query_prompt }
}

fn first(embeddings: Vec<Embedding>) -> Result<Embedding> {
    embeddings.into_iter().next().ok_or_else(|| Error::Model("the model gave no embedding for the query".into()))
}

/// The tokens of a text. A text that the tokenizer refuses counts as many tokens as it has
/// characters: more than any tokenizer makes of it, so that chunks become small enough.
fn count_tokens(model: &impl Loaded, text: &str) -> usize {
    model.token_count(text).unwrap_or_else(|_| text.chars().count())
}

/// The tokens that the prompt and the special tokens leave for a passage.
fn free_tokens(model: &impl Loaded, prompt: &str) -> usize {
    let taken = model.tokenize(prompt, true).map_or(2, |tokens| tokens.len());
    model.plan().max_tokens.saturating_sub(taken).max(16)
}
