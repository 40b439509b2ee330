//! Cohere's and Jina's rerank.
