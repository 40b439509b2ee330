# frozen_string_literal: true

module Sconce
  # Vision-language models. Sconce has none yet.
  class VLM
    def self.from_pretrained(model_id = nil, device: nil)
      raise Error, "Sconce cannot run vision-language models yet (#{model_id.inspect}); " \
                                 "`sconce clip` compares images and texts"
    end

    # Cannot be reached without a model; here so that programs can ask for the methods.
    %i[describe ask tokenizer model_id device].each do |name|
      define_method(name) { |*, **| self.class.from_pretrained }
    end
  end
end
