# frozen_string_literal: true

module Sconce
  # What all models share: where they came from, their device and their tokenizer.
  class Model
    attr_reader :model_id, :device

    # Unloads the model. Any later call raises.
    def close = @native.close

    def tokenizer
      @tokenizer ||= Tokenizer.from_pretrained(@tokenizer_id || @model_id)
    end

    # The arguments of `from_pretrained`, with String keys.
    def options = { "model_id" => @model_id, "device" => @device.to_s }

    def inspect = "#<#{self.class.name} #{options.compact.map { |key, value| "#{key}=#{value}" }.join(" ")}>"
    alias to_s inspect

    private

    def initialize(native_class, model_id, device, tokenizer: nil)
      raise TypeError, "a model is named by a String, not #{model_id.class}" unless model_id.is_a?(String)

      @model_id = model_id
      @device = Device.from(device)
      @tokenizer_id = tokenizer
      @native = native_class.load(model_id, @device.name)
    end

    # Yields a list; the result for a single text is the first.
    def each_of(text) = text.is_a?(Array) ? yield(text) : yield([text]).first
  end
end
