//! The whole adapter: Sconce as a source of embeddings.

use crate::database::{EmbeddingFunction, Result, Status};
use sconce::{AsyncEmbedder, Embedder, EmbeddingProvider, Embeddings, InputType, LoadOptions};

pub struct Sconce(AsyncEmbedder);

impl Sconce {
    pub fn load(model: &str) -> Result<Sconce> {
        let embedder = Embedder::load(&model.parse()?, &LoadOptions::from_env()?, &())?;
        Ok(Sconce(AsyncEmbedder::new(embedder)))
    }
}

impl EmbeddingFunction for Sconce {
    fn dimension(&self) -> usize {
        self.0.info().dimension
    }

    async fn embed_documents(&self, texts: Vec<String>) -> Result<Vec<Vec<f32>>> {
        Ok(rows(&self.0.embed_batch(texts, InputType::Document).await?))
    }

    async fn embed_query(&self, text: String) -> Result<Vec<f32>> {
        let embeddings = self.0.embed_batch(vec![text], InputType::Query).await?;
        rows(&embeddings).pop().ok_or_else(|| "no embedding".into())
    }

    async fn status(&self) -> Status {
        let (info, usage) = (self.0.info(), self.0.usage());
        let model = format!("{} on {} in {}", info.model, info.device, info.dtype);
        Status { model, tokens: usage.tokens, is_healthy: self.0.health().await.is_ok() }
    }
}

fn rows(embeddings: &Embeddings) -> Vec<Vec<f32>> {
    embeddings.rows().map(<[f32]>::to_vec).collect()
}
