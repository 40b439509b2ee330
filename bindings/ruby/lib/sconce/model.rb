# frozen_string_literal: true

module Sconce
  # What all models share: where they came from, their device and their tokenizer.
  class Model
    attr_reader :model_id, :device

    # Unloads the model. Any later call raises.
    def close = @native.close

    def tokenizer = own_tokenizer

    # The arguments of `from_pretrained`, with String keys.
    def options = { "model_id" => @model_id, "device" => @device.to_s }

    def inspect = "#<#{self.class.name} #{options.compact.map { |key, value| "#{key}=#{value}" }.join(" ")}>"
    alias to_s inspect

    private

    attr_reader :native

    # `file` names one of the model's files.
    def initialize(native_class, model_id, device, file: nil)
      raise TypeError, "a model is named by a String, not #{model_id.class}" unless model_id.is_a?(String)

      @model_id = model_id
      @device = Device.from(device)
      @reference = file ? "#{model_id}/#{file}" : model_id
      @native = native_class.load(@reference, @device.name)
    end

    def own_tokenizer = @own_tokenizer ||= Tokenizer.from_pretrained(@reference)

    # For red-candle's `tokenizer:`: the model's files have a tokenizer, and its ids mean something
    # to this model only.
    def check_tokenizer(tokenizer, model_id)
      return if tokenizer.nil? || tokenizer == model_id

      raise ArgumentError, "tokenizer: #{tokenizer.inspect} cannot be used, because #{model_id.inspect} comes with its own: " \
                           "leave tokenizer: out"
    end

    # Yields a list; the result for a single text is the first.
    def each_of(text) = text.is_a?(Array) ? yield(text) : yield([text]).first
  end
end
