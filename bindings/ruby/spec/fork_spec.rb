# frozen_string_literal: true

require_relative "spec_helper"

RSpec.describe "after fork" do
  let(:load) { "Candle::NER.from_pretrained(#{golden("task-tag").inspect}, device: 'cpu').extract_entities('Anna', confidence_threshold: 0).size" }

  def forked(program)
    ruby("require 'candle'; $stdout.sync = true; #{program}; Process.wait(pid)").first
  end

  it "a child of a process that only required the gem works" do
    expect(forked("pid = fork { print #{load} > 0 }")).to eq("true")
  end

  it "a child of a process that used it works too" do
    tensors = "Candle::Tensor.ones([300, 300]).matmul(Candle::Tensor.ones([300, 300])).sum_all.item"
    expect(forked("#{load}; #{tensors}; pid = fork { print #{load} > 0, #{tensors} }")).to eq("true27000000.0")
  end

  it "a model of the parent is refused in the child, and lives on in the parent" do
    output = forked("m = Candle::NER.from_pretrained(#{golden("task-tag").inspect}, device: 'cpu'); " \
                    "pid = fork { begin; m.labels; rescue RuntimeError => e; print e.message; end }; at_exit { print m.labels['num_labels'] if pid }")
    expect(output).to include("fork")
    expect(output).to match(/\d\z/)
  end

  it "an answer that the parent began is refused in the child, and goes on in the parent" do
    output = forked("m = Candle::LLM.from_pretrained('smollm', device: 'cpu'); config = Candle::GenerationConfig.deterministic(max_length: 20); asked = pid = nil; " \
                    "begin; text = m.generate_stream('The capital of France is', config: config) { asked ||= (pid = fork; true) }; " \
                    "rescue RuntimeError => e; print e.message; exit!; end; Process.wait(pid); print text; pid = fork { exit! }")
    expect(output).to match(/begun before a fork.*Paris/m)
  end

  it "tokenizers and tensors of the parent work in the child" do
    use = "print t.encode_batch(['food'] * 500).uniq, (x.matmul(x) - Candle::Tensor.ones([300, 300])).max_keepdim(0).log.exp.values.uniq.map(&:round)"
    output = forked("t = Candle::Tokenizer.from_pretrained('minilm'); x = Candle::Tensor.ones([300, 300]); #{use}; pid = fork { #{use}; GC.start }")
    expect(output).to eq("[[101, 2833, 102]][299]" * 2)
  end

  it "a GPU of the parent is refused in the child", if: (Candle::Device.available_devices - ["cpu"]).any? do
    output = forked("x = Candle::Tensor.ones([2], device: Candle::Device.best); " \
                    "pid = fork { [-> { x + x }, -> { x.values }, -> { Candle::Device.best }, -> { Candle::Tensor.ones([2], device: x.device) }]" \
                    ".each { |use| begin; use.call; rescue RuntimeError => e; puts e.message; end }; puts Candle::Device.available_devices; GC.start }; at_exit { print x.values if pid }")
    expect(output.scan(/fork/).size).to be >= 4
    expect(output).to include("cpu\n").and end_with("[1.0, 1.0]")
  end
end
