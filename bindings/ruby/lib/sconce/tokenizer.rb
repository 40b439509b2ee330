# frozen_string_literal: true

module Sconce
  # Texts to tokens and back. A list of texts gives a list of results.
  class Tokenizer
    class << self
      private :new

      # From a tokenizer.json, a model's folder or a GGUF file.
      def from_file(path) = new(Native::Tokenizer.from_file(path.to_s), "path" => path.to_s)
      def from_pretrained(model_id) = new(Native::Tokenizer.load(model_id), "model_id" => model_id)
    end

    # Where it came from and how it pads and truncates, with String keys.
    attr_reader :options

    def initialize(native, options)
      @native = native
      @options = options.freeze
    end

    def encode(text, add_special_tokens: true) = each_of(text) { |list| encode_batch(list, add_special_tokens: add_special_tokens) }
    def encode_to_tokens(text, add_special_tokens: true) = each_of(text) { |list| encode_batch_to_tokens(list, add_special_tokens: add_special_tokens) }

    def encode_with_tokens(text, add_special_tokens: true)
      each_of(text) { |list| @native.encode_with_tokens(list, add_special_tokens).map { |ids, tokens| { ids: ids, tokens: tokens } } }
    end

    def encode_batch(texts, add_special_tokens: true) = @native.encode(texts, add_special_tokens)
    def encode_batch_to_tokens(texts, add_special_tokens: true) = @native.encode_with_tokens(texts, add_special_tokens).map(&:last)

    def decode(ids, skip_special_tokens: true) = @native.decode(ids, skip_special_tokens)
    def id_to_token(id) = @native.token(id)
    def get_vocab(with_added_tokens: true) = @native.vocabulary(with_added_tokens)
    def vocab_size(with_added_tokens: true) = @native.vocabulary_size(with_added_tokens)
    # The ids of the special tokens by role, as in `{"cls_token" => 101}`.
    def get_special_tokens = @native.special_tokens

    # A tokenizer that pads: to `length`, or without it to the longest text of a batch.
    def with_padding(length: nil, max_length: nil, direction: "right", pad_id: nil, pad_token: nil)
      pad_token ||= @native.token(pad_id) || raise(ArgumentError, "the vocabulary has no token #{pad_id}") if pad_id
      padded = @native.with_padding(length || max_length, direction.to_s, pad_token)
      self.class.send(:new, padded, @options.merge("padding" => length || max_length || "longest"))
    end

    # A tokenizer that truncates to `max_length` tokens.
    def with_truncation(max_length)
      self.class.send(:new, @native.with_truncation(max_length), @options.merge("truncation" => max_length))
    end

    # `[ids, type_ids, attention_mask, tokens]` of a pair of texts.
    def encode_pair(text, pair) = @native.encode_pair(text, pair)

    def inspect = "#<Sconce::Tokenizer #{@options.map { |key, value| "#{key}=#{value}" }.join(" ")}>"
    alias to_s inspect

    private

    def each_of(text) = text.is_a?(Array) ? yield(text) : yield([text]).first
  end
end
