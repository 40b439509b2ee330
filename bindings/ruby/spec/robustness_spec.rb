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

  # A thread that ticks every 10 ms. With the lock held it would tick about once per call. The
  # longest gap has room for other programs on the machine.
  def expect_pace(gaps)
    expect(gaps.sum).to be > 0.1
    expect(gaps.sort[gaps.size / 2]).to be < 0.05
    expect(gaps.size).to be > gaps.sum / 0.1
    RSpec.configuration.reporter.message("    longest gap: #{(gaps.max * 1000).round} ms of #{gaps.sum.round(2)} s") if ENV["SCONCE_GAPS"]
    expect(gaps.max).to be < 0.5
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

  it "is free while a large operation on tensors runs, and while its values are read" do
    x = Candle::Tensor.rand([3000, 3000])
    expect_pace(ticks { x.matmul(x) })
    expect_pace(ticks { 4.times { x.exp.log } })
  end

  it "is free while a tokenizer works" do
    tokenizer = minilm.tokenizer
    texts = Array.new(3000) { |i| "A man is eating food number #{i}. " * 8 }
    expect_pace(ticks { tokenizer.encode_batch(texts) })
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

  it "end the wait for an operation on tensors" do
    x = Candle::Tensor.rand([4000, 4000])
    clock = -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) }
    begun = clock.()
    x.matmul(x)
    whole = clock.() - begun
    begun = clock.()
    expect { Timeout.timeout(whole / 20) { x.matmul(x) } }.to raise_error(Timeout::Error)
    expect(clock.() - begun).to be < whole / 2
    expect((x + 1).shape).to eq([4000, 4000])
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

RSpec.describe "panics of the native module" do
  it "are exceptions that can be rescued" do
    expect { Candle::Native.panic(false) }.to raise_error(Candle::Error, /internal error, please report it: on this thread/)
    expect { Candle::Native.panic(true) }.to raise_error(Candle::Error, /internal error, please report it: on another thread/)
  end
end

RSpec.describe "memory" do
  def resident = File.read("/proc/self/status")[/VmRSS:\s+(\d+)/, 1].to_i

  # SCONCE_CYCLES=1000 for the long form.
  cycles = Integer(ENV.fetch("SCONCE_CYCLES", "60"))

  # What the last two thirds of the cycles leave behind, in KiB.
  def growth(cycles, &cycle)
    (cycles / 3).times(&cycle)
    GC.start
    before = resident
    (cycles * 2 / 3).times(&cycle)
    GC.start
    (resident - before).tap do |grown|
      RSpec.configuration.reporter.message("    #{cycles} cycles: #{before} KiB after a third, #{grown} KiB more at the end") if ENV["SCONCE_CYCLES"]
    end
  end

  # How often, the largest growth, and what. The limits are far below the weights of as many models,
  # and above what the allocator holds back.
  {
    "an NER model" => [cycles, 20_000, -> { Candle::NER.from_pretrained(golden("task-tag"), device: "cpu").close }],
    "an embedding model" => [cycles, 20_000, -> { Candle::EmbeddingModel.from_pretrained(golden("st-mean-dense"), device: "cpu").close }],
    "a reranker" => [cycles, 20_000, -> { Candle::Reranker.from_pretrained(golden("task-rerank"), device: "cpu").close }],
    "a model that the garbage collector unloads" =>
      [cycles, 20_000, -> { Candle::NER.from_pretrained(golden("task-tag"), device: "cpu") and (GC.start; sleep 0.002) }],
    "a language model of 90 MB" => [[cycles / 10, 12].max, 180_000, -> { Candle::LLM.from_pretrained(SMOLLM, device: "cpu").close }]
  }.each do |name, (count, limit, cycle)|
    it "does not grow with loading and unloading #{name}", if: File.exist?("/proc/self/status") do
      expect(growth(count) { instance_exec(&cycle) }).to be < limit
    end
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
    reranker && tagger && minilm && smollm
    tokenizer = minilm.tokenizer
    x = Candle::Tensor.new([1, 2, 3, 4]).reshape([2, 2])
    config = greedy(max_length: 3)
    pieces = []
    GC.stress = true
    expect((x + 1).matmul(x.t).values).to eq([8, 18, 14, 32])
    expect(reranker.rerank("cat", %w[a b]).size).to eq(2)
    expect(tagger.predict_tokens("Anna").size).to be > 2
    expect(minilm.embedding(["a cat", "a dog"]).shape).to eq([2, 384])
    expect(minilm.embeddings(["a cat"]).first.shape).to eq([1, 4, 384])
    expect(tokenizer.encode_with_tokens(["food"]).first[:ids]).to eq([101, 2833, 102])
    expect(tokenizer.decode([101, 2833, 102])).to eq("food")
    expect(smollm.generate_stream("The capital of France is", config: config) { |piece| pieces << piece }).to start_with(" Paris")
    expect(smollm.generate(["1, 2, 3,", "1, 2, 3,"], config: config).uniq.size).to eq(1)
    expect { x.reshape([3]) }.to raise_error(RuntimeError)
    expect(pieces.join).to start_with(" Paris")
  ensure
    GC.stress = false
  end
end
