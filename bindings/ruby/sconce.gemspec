# frozen_string_literal: true

# `package` copies this file and what it names into an empty folder and builds the gem there.
require_relative "lib/sconce/version"

Gem::Specification.new do |spec|
  spec.name = "sconce"
  spec.version = Sconce::VERSION
  spec.summary = "Transformer models on CPU, CUDA and Metal: embeddings, rerankers, NER, language models"
  spec.description = "Runs embedding models, rerankers, token classifiers and language models in the process, " \
                     "with the API of the red-candle gem."
  spec.authors = ["The Sconce developers"]
  spec.licenses = ["MIT", "Apache-2.0"]
  spec.required_ruby_version = ">= 3.1"
  spec.require_paths = ["lib"]
  spec.files = Dir["**/*"].select { |path| File.file?(path) }
  # With a compiled extension the gem is for this platform, else it compiles it with cargo.
  if Dir["lib/sconce/*/sconce_native.*"].empty?
    spec.extensions = ["bindings/ruby/extconf.rb"]
  else
    spec.platform = Gem::Platform::CURRENT
    minor = Gem::Version.new(RUBY_VERSION).segments.first(2)
    spec.required_ruby_version = "~> #{minor.join(".")}.0"
  end
end
