//! A toy vector database: it keeps all embeddings in memory and compares each with the query.

use std::fmt;

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The database's interface to a source of embeddings.
pub trait EmbeddingFunction {
    /// Dimension of an embedding.
    fn dimension(&self) -> usize;
    /// Embeds texts to be stored.
    async fn embed_documents(&self, texts: Vec<String>) -> Result<Vec<Vec<f32>>>;
    /// Embeds a text to search with.
    async fn embed_query(&self, text: String) -> Result<Vec<f32>>;
    /// What the source says about itself.
    async fn status(&self) -> Status;
}

/// What a source of embeddings says about itself.
pub struct Status {
    pub model: String,
    pub tokens: u64,
    pub is_healthy: bool,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let health = if self.is_healthy { "healthy" } else { "not healthy" };
        write!(f, "{}: {health}, {} tokens embedded", self.model, self.tokens)
    }
}

pub struct Database<F> {
    function: F,
    texts: Vec<String>,
    /// Rows of `dimension` numbers.
    vectors: Vec<f32>,
}

impl<F: EmbeddingFunction> Database<F> {
    pub fn new(function: F) -> Database<F> {
        Database { function, texts: Vec::new(), vectors: Vec::new() }
    }

    pub async fn insert(&mut self, texts: Vec<String>) -> Result<()> {
        self.vectors.extend(self.function.embed_documents(texts.clone()).await?.into_iter().flatten());
        self.texts.extend(texts);
        Ok(())
    }

    /// The `n` nearest texts with their cosine similarities, best first.
    pub async fn search(&self, query: &str, n: usize) -> Result<Vec<(&str, f32)>> {
        let query = self.function.embed_query(query.to_owned()).await?;
        let dot = |row: &[f32]| row.iter().zip(&query).map(|(a, b)| a * b).sum::<f32>();
        let scores = self.vectors.chunks_exact(self.function.dimension()).map(dot);
        let mut found: Vec<(&str, f32)> = self.texts.iter().map(String::as_str).zip(scores).collect();
        found.sort_by(|a, b| b.1.total_cmp(&a.1));
        found.truncate(n);
        Ok(found)
    }

    pub async fn status(&self) -> Status {
        self.function.status().await
    }
}
