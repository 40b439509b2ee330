# frozen_string_literal: true

module Sconce
  # red-candle's table of tokenizers for GGUF files. Sconce reads the tokenizer inside the file; the
  # table only serves programs that ask for it.
  module TokenizerRegistry
    # By exact id, then `:patterns` in their order.
    TOKENIZER_REGISTRY = {
      "TheBloke/Mistral-7B-Instruct-v0.2-GGUF" => "mistralai/Mistral-7B-Instruct-v0.2",
      "TheBloke/Llama-2-7B-Chat-GGUF" => "meta-llama/Llama-2-7b-chat-hf",
      "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF" => "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
      "microsoft/phi-4-gguf" => "microsoft/phi-4",
      patterns: [
        [/mistral.*7b.*instruct.*v0\.2/i, "mistralai/Mistral-7B-Instruct-v0.2"],
        [/mistral.*7b/i, "mistralai/Mistral-7B-v0.1"],
        [/llama.*3.*8b/i, "meta-llama/Meta-Llama-3-8B"],
        [/llama.*2.*7b.*chat/i, "meta-llama/Llama-2-7b-chat-hf"],
        [/tinyllama/i, "TinyLlama/TinyLlama-1.1B-Chat-v1.0"],
        [/gemma.*2.*9b/i, "google/gemma-2-9b"],
        [/gemma.*2.*2b/i, "google/gemma-2-2b"],
        [/phi.*3\.5.*mini/i, "microsoft/Phi-3.5-mini-instruct"],
        [/phi.*3.*mini/i, "microsoft/Phi-3-mini-4k-instruct"]
      ]
    }

    def register_tokenizer(pattern, tokenizer_id)
      case pattern
      when String then TOKENIZER_REGISTRY[pattern] = tokenizer_id
      when Regexp then TOKENIZER_REGISTRY[:patterns].unshift([pattern, tokenizer_id])
      else raise ArgumentError, "a model is named by a String or a Regexp, not #{pattern.class}"
      end
    end

    # The tokenizer of a model by its id: by the table, else the id without the suffixes of GGUF files.
    def guess_tokenizer(model_id)
      found = TOKENIZER_REGISTRY[:patterns].find { |pattern, _| pattern.match?(model_id) }
      TOKENIZER_REGISTRY[model_id] || found&.last || model_id.gsub(/-gguf\z|-q\d+_\w+\z/i, "")
    end
  end
end
