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
  spec.require_paths = ["lib"]
  spec.files = Dir["**/*"].select { |path| File.file?(path) }
  # Compiled extensions are in lib/sconce/3.4 and so on, one for each version of Ruby. With any the
  # gem is for this platform and these versions; without, it compiles one with cargo.
  versions = Dir["lib/sconce/*/sconce_native.*"].map { |path| Gem::Version.new(path.split("/")[2]) }.sort
  if versions.empty?
    spec.required_ruby_version = ">= 3.1"
    spec.extensions = ["bindings/ruby/extconf.rb"]
  else
    major, minor = versions.last.segments
    spec.required_ruby_version = [">= #{versions.first}", "< #{major}.#{minor + 1}.dev"]
    # `arm64-darwin`, not `arm64-darwin-24`: the gem is for every macOS.
    spec.platform = Gem::Platform.local.dup.tap { |platform| platform.version = nil if platform.os == "darwin" }
  end
end
