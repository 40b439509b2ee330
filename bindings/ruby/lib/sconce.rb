# frozen_string_literal: true

# Transformer models on CPU, CUDA and Metal. `require "candle"` offers the same under the name
# `Candle`, for programs written for the red-candle gem.
module Sconce
end

require "json"
require "logger"
require "set"

require_relative "sconce/version"
begin
  # A precompiled gem has one extension for each Ruby version.
  require_relative "sconce/#{RUBY_VERSION[/\d+\.\d+/]}/sconce_native"
rescue LoadError
  require "sconce/sconce_native"
end
require_relative "sconce/logging"
require_relative "sconce/device"
require_relative "sconce/dtype"
require_relative "sconce/build_info"
require_relative "sconce/tensor"
require_relative "sconce/tokenizer"
require_relative "sconce/model"
require_relative "sconce/embedding_model_type"
require_relative "sconce/embedding_model"
require_relative "sconce/reranker"
require_relative "sconce/structured_constraint"
require_relative "sconce/generation_config"
require_relative "sconce/tool"
require_relative "sconce/tool_call_parser"
require_relative "sconce/tokenizer_registry"
require_relative "sconce/llm"
require_relative "sconce/agent"
require_relative "sconce/ner"
require_relative "sconce/entity_recognizers"
require_relative "sconce/vlm"
