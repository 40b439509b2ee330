# frozen_string_literal: true

module Sconce
  # red-candle's names of embedding models. Sconce reads the architecture from config.json.
  module EmbeddingModelType
    JINA_BERT = "jina_bert"
    STANDARD_BERT = "standard_bert"
    MINILM = "minilm"
    DISTILBERT = "distilbert"
    MODERNBERT = "modernbert"

    def self.all = [JINA_BERT, STANDARD_BERT, DISTILBERT, MINILM, MODERNBERT]

    def self.suggested_model_paths
      {
        JINA_BERT => "jinaai/jina-embeddings-v2-base-en",
        STANDARD_BERT => "BAAI/bge-base-en-v1.5",
        MINILM => "sentence-transformers/all-MiniLM-L6-v2",
        DISTILBERT => "sentence-transformers/msmarco-distilbert-base-v4",
        MODERNBERT => "nomic-ai/modernbert-embed-base"
      }
    end
  end
end
