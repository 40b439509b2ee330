# frozen_string_literal: true

module Sconce
  # Embeddings of texts, by a sentence-transformers model.
  class EmbeddingModel < Model
    DEFAULT_MODEL = "jinaai/jina-embeddings-v2-base-en"
    # red-candle's poolings: the pooling and whether the embedding is L2-normalized.
    POOLINGS = { "pooled_normalized" => ["mean", true], "pooled" => ["mean", false], "cls" => ["cls", false] }.freeze

    class << self
      # `model_type` and `embedding_size` are accepted for red-candle's sake: config.json says both.
      # `tokenizer` may only be the model itself.
      def from_pretrained(model_id = DEFAULT_MODEL, device: nil, tokenizer: nil, model_type: nil, embedding_size: nil)
        load(model_id, device, tokenizer: tokenizer, model_type: model_type, embedding_size: embedding_size)
      end

      # The older form of from_pretrained.
      def new(model_path: DEFAULT_MODEL, tokenizer_path: nil, device: nil, model_type: nil, embedding_size: nil)
        warn "EmbeddingModel.new is deprecated: use from_pretrained", category: :deprecated
        from_pretrained(model_path, device: device, tokenizer: tokenizer_path, model_type: model_type, embedding_size: embedding_size)
      end

      private

      def load(*args, **options) = allocate.tap { |model| model.send(:initialize, *args, **options) }
    end

    # The embedding of a text, `[1, dimension]`, or of each text of a list, `[texts, dimension]`.
    # Without `pooling_method`, pooled and normalized as the model's files say.
    def embedding(text, pooling_method: nil)
      pooling, normalize = pooling_method.nil? ? ["model", nil] : POOLINGS.fetch(pooling_method.to_s) do
        raise ArgumentError, "unknown pooling_method #{pooling_method.inspect}; one of #{POOLINGS.keys.join(", ")}"
      end
      Tensor.wrap(@native.embed(text.is_a?(Array) ? text : [text], pooling, normalize))
    end

    # The hidden state of each token, `[1, tokens, hidden]`; for a list of texts a list of tensors.
    def embeddings(text) = each_of(text) { |list| @native.embed_all(list).map { |array| Tensor.wrap(array) } }

    # Poolings of what `embeddings` returns.
    def pool_embedding(tensor) = tensor.mean(1)

    def pool_and_normalize_embedding(tensor)
      pooled = pool_embedding(tensor)
      pooled.broadcast_div(pooled.sqr.sum(1).sqrt.unsqueeze(1))
    end

    def pool_cls_embedding(tensor) = tensor.narrow(1, 0, 1).squeeze(1)

    # Length of an embedding.
    def dimension = @native.dimension

    attr_reader :model_type

    def options = super.merge("embedding_model_type" => @model_type, "embedding_size" => dimension)

    private

    def initialize(model_id, device, tokenizer:, model_type:, embedding_size:)
      check_tokenizer(tokenizer, model_id)
      super(Native::Embedder, model_id, device)
      @model_type = (model_type || guessed_type(model_id)).to_s
      return if embedding_size.nil? || embedding_size == dimension

      raise ArgumentError, "embedding_size is #{embedding_size}, but the model has #{dimension} dimensions"
    end

    # For display only.
    def guessed_type(model_id)
      case model_id
      when /jina/i then EmbeddingModelType::JINA_BERT
      when /minilm/i then EmbeddingModelType::MINILM
      when /distilbert/i then EmbeddingModelType::DISTILBERT
      when /modernbert/i then EmbeddingModelType::MODERNBERT
      else EmbeddingModelType::STANDARD_BERT
      end
    end
  end
end
