# frozen_string_literal: true

module Sconce
  # Orders documents by their relevance to a query.
  class Reranker < Model
    DEFAULT_MODEL = "cross-encoder/ms-marco-MiniLM-L-12-v2"
    POOLINGS = %w[pooler cls mean].freeze

    class << self
      # Pairs are truncated at the limit of the model; another `max_length` is reported and ignored.
      def from_pretrained(model_id = DEFAULT_MODEL, device: nil, max_length: nil)
        new(model_id, device, max_length)
      end

      private :new
    end

    # `[{doc_id:, score:, text:}]`, best first.
    def rerank(query, documents, pooling_method: "pooler", apply_sigmoid: true)
      ranked(query, documents, pooling_method, apply_sigmoid).map do |index, score|
        { doc_id: index, score: score, text: documents[index] }
      end
    end

    # `[[text, score, index]]`, best first.
    def rerank_with_options(query, documents, pooling_method = "pooler", apply_sigmoid = true)
      ranked(query, documents, pooling_method, apply_sigmoid).map { |index, score| [documents[index], score, index] }
    end

    # What the model reads of a query and a document.
    def debug_tokenization(query, document)
      ids, types, mask, tokens = tokenizer.encode_pair(query, document)
      { "token_ids" => ids, "token_type_ids" => types, "attention_mask" => mask, "tokens" => tokens }
    end

    private

    def initialize(model_id, device, max_length)
      super(Native::Reranker, model_id, device)
      return if max_length.nil? || max_length == 512

      Sconce.logger.warn("max_length: #{max_length} is ignored; the model truncates at its own limit")
    end

    def ranked(query, documents, pooling, sigmoid)
      raise TypeError, "documents are an Array of String, not #{documents.class}" unless documents.is_a?(Array)

      pooling = pooling.to_s
      raise ArgumentError, "unknown pooling_method #{pooling.inspect}; one of #{POOLINGS.join(", ")}" unless POOLINGS.include?(pooling)

      @native.rerank(query, documents, pooling, !sigmoid)
    end
  end
end
