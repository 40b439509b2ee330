# frozen_string_literal: true

require_relative "spec_helper"

RSpec.describe "the Ruby VM lock" do
  # How often, and how evenly, another thread ran while the block did.
  def ticks
    times = [Process.clock_gettime(Process::CLOCK_MONOTONIC)]
    done = false
    ticker = Thread.new { (sleep 0.01; times << Process.clock_gettime(Process::CLOCK_MONOTONIC)) until done }
    yield
    done = true
    ticker.join
    times.each_cons(2).map { |a, b| b - a }
  end

  # A thread that ticks every 10 ms. With the lock held it would tick about once per call.
  def expect_pace(gaps)
    expect(gaps.sum).to be > 0.1
    expect(gaps.sort[gaps.size / 2]).to be < 0.05
    expect(gaps.size).to be > gaps.sum / 0.1
  end

  it "is free while a model embeds" do
    texts = Array.new(64) { |i| "A man is eating food number #{i}. " * 6 }
    minilm.embedding(texts.first)
    expect_pace(ticks { 2.times { minilm.embedding(texts) } })
  end

  it "is free while a model generates and streams" do
    expect_pace(ticks { smollm.generate("Once upon a time", config: greedy(max_length: 60)) })
    expect_pace(ticks { smollm.generate_stream("Once upon a time", config: greedy(max_length: 60)) { |piece| piece } })
  end

  it "is free while a model loads" do
    gaps = ticks { Candle::LLM.from_pretrained(SMOLLM, device: "cpu").close }
    expect(gaps.sort[gaps.size / 2]).to be < 0.05
  end
end

RSpec.describe "interrupts" do
  let(:long) { greedy(max_length: 4000) }

  it "end a generation: Timeout, Thread#kill and Thread#raise" do
    expect { Timeout.timeout(0.5) { smollm.generate("Once upon a time", config: long) } }.to raise_error(Timeout::Error)
    thread = Thread.new { smollm.generate("Once upon a time", config: long) }
    sleep 0.3
    expect(thread.kill.join(20)).to equal(thread)
    thread = Thread.new { smollm.generate("Once upon a time", config: long) rescue $!.message } # rubocop:disable Style/RescueModifier
    sleep 0.3
    thread.raise("stop")
    expect(thread.value).to eq("stop")
    expect(smollm.generate("The capital of France is", config: greedy(max_length: 2))).to start_with(" Paris")
  end

  it "of signals whose handler returns do not end it" do
    handled = 0
    old = trap("USR1") { handled += 1 }
    signals = Thread.new { 5.times { sleep 0.05; Process.kill("USR1", Process.pid) } }
    expect(smollm.generate("1, 2, 3, 4,", config: greedy(max_length: 30))).to start_with(" 5")
    signals.join
    expect(handled).to eq(5)
  ensure
    trap("USR1", old || "DEFAULT")
  end

  it "Ctrl-C ends a program" do
    program = 'require "candle"; m = Candle::LLM.from_pretrained("smollm", device: "cpu"); puts "ready"; $stdout.flush; ' \
              'begin; m.generate("Once upon a time", config: Candle::GenerationConfig.deterministic(max_length: 4000)); rescue Interrupt; puts "interrupted"; end'
    IO.popen([RbConfig.ruby, "-e", program]) do |io|
      expect(io.gets).to eq("ready\n")
      sleep 0.3
      Process.kill("INT", io.pid)
      expect(Timeout.timeout(60) { io.gets }).to eq("interrupted\n")
    end
  end
end

RSpec.describe "threads" do
  it "may share a model" do
    want = minilm.embedding("A man is eating food.").values
    got = Array.new(4) { Thread.new { minilm.embedding("A man is eating food.").values } }.map(&:value)
    expect(got).to all(close_to(want))
  end
end

RSpec.describe "closed models" do
  it "raise, and may be closed twice" do
    model = Candle::NER.from_pretrained(golden("task-tag"), device: "cpu")
    model.close
    model.close
    expect { model.extract_entities("x") }.to raise_error(RuntimeError, /closed/)
  end

  it "finish what runs" do
    model = Candle::LLM.from_pretrained(SMOLLM, device: "cpu")
    thread = Thread.new { model.generate("The capital of France is", config: greedy(max_length: 20)) }
    sleep 0.2
    model.close
    expect(thread.value).to start_with(" Paris")
  end
end

RSpec.describe "memory" do
  def resident = File.read("/proc/self/status")[/VmRSS:\s+(\d+)/, 1].to_i

  it "does not grow with loading and unloading", if: File.exist?("/proc/self/status") do
    cycle = proc { Candle::NER.from_pretrained(golden("task-tag"), device: "cpu").close }
    # SCONCE_CYCLES=1000 for the long form.
    cycles = Integer(ENV.fetch("SCONCE_CYCLES", "60"))
    (cycles / 3).times(&cycle)
    GC.start
    before = resident
    (cycles * 2 / 3).times(&cycle)
    GC.start
    # In KiB; the model's weights alone are larger than what each cycle may leave behind.
    expect(resident - before).to be < 20_000
  end

  it "of tensors is freed" do
    before = resident
    200.times { Candle::Tensor.zeros([1 << 20]) }
    GC.start
    expect(resident - before).to be < 400_000
  end
end

RSpec.describe "GC.stress" do
  it "finds no object that was freed too early" do
    # Loaded before: loading under stress takes minutes.
    reranker && tagger
    x = Candle::Tensor.new([1, 2, 3, 4]).reshape([2, 2])
    GC.stress = true
    expect((x + 1).matmul(x.t).values).to eq([8, 18, 14, 32])
    expect(reranker.rerank("cat", %w[a b]).size).to eq(2)
    expect(tagger.predict_tokens("Anna").size).to be > 2
    expect { x.reshape([3]) }.to raise_error(RuntimeError)
  ensure
    GC.stress = false
  end
end

RSpec.describe "after fork" do
  let(:load) { "Candle::NER.from_pretrained(#{golden("task-tag").inspect}, device: 'cpu').extract_entities('Anna', confidence_threshold: 0).size" }

  def forked(program)
    output, = Timeout.timeout(120) { ruby("require 'candle'; $stdout.sync = true; #{program}; Process.wait(pid)") }
    output
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
end
