# frozen_string_literal: true

# Transformer models on CPU, CUDA and Metal. `require "candle"` offers the same under the name
# `Candle`, for programs written for the red-candle gem.
module Sconce
end

require "json"
require "logger"
require "rbconfig"
require "set"

require_relative "sconce/version"
# Candle, which computes with tensors, has threads of its own for large sums and products, and waits
# for them forever in a forked process. With one thread it starts none.
ENV["CANDLE_NUM_THREADS"] ||= "1"
# A precompiled gem has an extension for each Ruby version; a source gem has the one that it compiled.
extension = File.join(__dir__, "sconce", RUBY_VERSION[/\d+\.\d+/], "sconce_native")
require File.exist?("#{extension}.#{RbConfig::CONFIG["DLEXT"]}") ? extension : "sconce/sconce_native"
# Models that are left at the end are unloaded by this thread.
at_exit { Sconce::Native.exiting }
require_relative "sconce/json_text"
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
require_relative "sconce/index_results"
require_relative "sconce/index"
