# frozen_string_literal: true

module Sconce
  # Orders documents by their relevance to a query.
  class Reranker < Model
    DEFAULT_MODEL = "cross-encoder/ms-marco-MiniLM-L-12-v2"
    POOLINGS = %w[pooler cls mean].freeze
    MAX_LENGTH = 512

    class << self
      # Pairs are truncated at `max_length` tokens, but at no more than the model takes; nil: at the
      # model's own limit.
      def from_pretrained(model_id = DEFAULT_MODEL, device: nil, max_length: MAX_LENGTH)
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

    # The longest pair, in tokens.
    attr_reader :max_length

    # What the model reads of a query and a document.
    def debug_tokenization(query, document)
      ids, types, mask, tokens = tokenizer.with_truncation(max_length).encode_pair(query, document)
      { "token_ids" => ids, "token_type_ids" => types, "attention_mask" => mask, "tokens" => tokens }
    end

    def options = super.merge("max_length" => max_length)

    private

    def initialize(model_id, device, max_length)
      unless max_length.nil? || (max_length.is_a?(Integer) && max_length.positive?)
        raise ArgumentError, "max_length is #{max_length.inspect}; it must be a positive Integer, or nil for the model's own limit"
      end

      super(Native::Reranker, model_id, device)
      @max_length = [max_length, @native.max_tokens].compact.min
    end

    def ranked(query, documents, pooling, sigmoid)
      raise TypeError, "documents are an Array of String, not #{documents.class}" unless documents.is_a?(Array)

      pooling = pooling.to_s
      raise ArgumentError, "unknown pooling_method #{pooling.inspect}; one of #{POOLINGS.join(", ")}" unless POOLINGS.include?(pooling)

      @native.rerank(query, documents, pooling, !sigmoid, max_length)
    end
  end
end
