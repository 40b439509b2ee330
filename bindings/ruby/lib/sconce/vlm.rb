# frozen_string_literal: true

module Sconce
  # Vision-language models. Sconce has none yet.
  class VLM
    NOT_YET = "Sconce cannot run vision-language models yet: use an LLM for texts; for images and texts in one space, " \
              "the command `sconce clip`"

    def self.from_pretrained(model_id = nil, device: nil)
      raise Error, model_id ? "#{model_id.inspect} cannot be loaded: #{NOT_YET}" : NOT_YET
    end

    # Programs can ask for these methods.
    %i[describe ask tokenizer model_id device].each do |name|
      define_method(name) { |*, **| raise Error, NOT_YET }
    end
  end
end
