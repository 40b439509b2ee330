# frozen_string_literal: true

# The specs run against the installed gem. GOLDENS is a folder of small models with the outputs of
# the reference implementations; MiniLM and SmolLM2 are real and come from Sconce's cache.
require "candle"
require "stringio"
require "tempfile"
require "timeout"
require "rbconfig"
require "open3"

GOLDENS = ENV.fetch("SCONCE_GOLDENS")
MINILM = "minilm"
SMOLLM = "smollm"

module Helpers
  def golden(name) = File.join(GOLDENS, name)
  def answers(name) = JSON.parse(File.read(File.join(golden(name), "golden.json")))

  # A tensor of f32 in a golden's safetensors file.
  def golden_values(name, tensor)
    bytes = File.binread(File.join(golden(name), "golden.safetensors"))
    length = bytes.unpack1("Q<")
    from, to = JSON.parse(bytes[8, length]).fetch(tensor).fetch("data_offsets")
    bytes[8 + length + from, to - from].unpack("e*")
  end

  # Loaded once for all specs.
  def minilm = $minilm ||= Candle::EmbeddingModel.from_pretrained(MINILM, device: "cpu")
  def smollm = $smollm ||= Candle::LLM.from_pretrained(SMOLLM, device: "cpu")
  def tagger = $tagger ||= Candle::NER.from_pretrained(golden("task-tag"), device: "cpu")
  def reranker = $reranker ||= Candle::Reranker.from_pretrained(golden("task-rerank"), device: "cpu")
  def greedy(**options) = Candle::GenerationConfig.deterministic(repetition_penalty: 1.0, **options)

  # Runs a program in a new Ruby, and returns its output and whether it succeeded. A program that
  # hangs is killed, with the processes that it forked.
  def ruby(program, env = {})
    Open3.popen2e(env, RbConfig.ruby, "-e", program, pgroup: true) do |input, output, process|
      input.close
      [Timeout.timeout(120) { output.read }, process.value.success?]
    rescue Timeout::Error
      Process.kill("KILL", -process.pid)
      raise
    end
  end

  def close_to(expected, tolerance = 1e-5)
    satisfy("be within #{tolerance} of #{expected.first(3)}…") do |actual|
      actual.size == expected.size && actual.zip(expected).all? { |a, e| (a - e).abs <= tolerance }
    end
  end
end

RSpec.configure do |config|
  config.include Helpers
  config.disable_monkey_patching!
  config.order = :defined
end
