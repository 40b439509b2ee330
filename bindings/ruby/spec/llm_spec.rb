# frozen_string_literal: true

require_relative "spec_helper"

RSpec.describe Candle::GenerationConfig do
  it "has red-candle's presets" do
    of = ->(c) { [c.temperature, c.top_p, c.top_k, c.repetition_penalty] }
    expect(of.(described_class.deterministic)).to eq([0.0, nil, 1, 1.1])
    expect(of.(described_class.balanced)).to eq([0.7, 0.9, 40, 1.1])
    expect(of.(described_class.creative)).to eq([1.0, 0.95, 50, 1.2])
    expect(of.(described_class.default)).to eq([0.7, nil, nil, 1.1])
    expect([described_class.deterministic.seed, described_class.default.max_length]).to eq([42, 512])
  end

  it "has a reader for every value, and keeps them in copies" do
    constraint = Candle::StructuredConstraint.from_regex("a")
    config = described_class.new(max_length: 3, "top_k" => 7, stop_sequences: "x", constraint: constraint, stop_on_match: false,
                                 stop_on_constraint_satisfaction: false, include_prompt: true, debug_tokens: true)
    other = config.with(temperature: 0.1)
    expect([other.max_length, other.top_k, other.stop_sequences, other.temperature]).to eq([3, 7, ["x"], 0.1])
    expect([other.constraint, other.stop_on_match, other.stop_on_constraint_satisfaction]).to eq([constraint, false, false])
    expect([other.include_prompt, other.debug_tokens, other.seed]).to eq([true, true, config.seed])
    expect(other.options).to include("has_constraint" => true, "temperature" => 0.1)
    expect(other.inspect).to include("temperature=0.1")
    expect { described_class.new(constraint: "a+") }.to raise_error(TypeError)
  end

  it "takes whole numbers for counts and finite ones for the rest" do
    config = described_class.new(max_length: 3.0, top_k: 7r, repetition_penalty_last_n: 5.0, seed: (1 << 64) + 3, temperature: 1, top_p: 0.5r)
    expect([config.max_length, config.top_k, config.repetition_penalty_last_n, config.seed]).to eql([3, 7, 5, 3])
    expect([config.temperature, config.top_p]).to eql([1.0, 0.5])
    expect(JSON.parse(config.to_request)).to include("max_tokens" => 3, "top_k" => 7, "penalty_window" => 5, "seed" => 3)
    expect(JSON.parse(described_class.new(max_length: 1 << 80, seed: -1).to_request)).to include("max_tokens" => 0xffff_ffff, "seed" => (1 << 64) - 1)
    %i[max_length top_k repetition_penalty_last_n seed].each do |key|
      expect { described_class.new(key => 2.5) }.to raise_error(ArgumentError, /#{key} is 2.5; it must be a whole number/)
    end
    %i[max_length top_k repetition_penalty_last_n temperature top_p repetition_penalty].each do |key|
      [Float::NAN, Float::INFINITY].each { |bad| expect { described_class.new(key => bad) }.to raise_error(ArgumentError, /#{key} is .*finite/) }
      expect { described_class.new(key => -1) }.to raise_error(ArgumentError, /#{key} is -1.*negative/)
      ["1", 1i, true].each { |bad| expect { described_class.new(key => bad) }.to raise_error(TypeError, /#{key} is a number/) }
    end
  end
end

RSpec.describe Candle::LLM do
  let(:prompt) { "The capital of France is" }

  it "generates" do
    expect(smollm.generate(prompt, config: greedy(max_length: 4))).to start_with(" Paris")
    expect(smollm.generate([prompt, "1, 2, 3, 4,"], config: greedy(max_length: 4), reset_cache: false)).to match([start_with(" Paris"), start_with(" 5")])
    expect(smollm.generate(prompt, config: greedy(max_length: 4, include_prompt: true))).to start_with("#{prompt} Paris")
    expect(smollm.generate(prompt, config: greedy(max_length: 8, stop_sequences: ["aris"]))).to eq(" P")
    sampled = Candle::GenerationConfig.creative(max_length: 6, seed: 7)
    expect(smollm.generate(prompt, config: sampled)).to eq(smollm.generate(prompt, config: sampled))
    expect(smollm.clear_cache).to be_nil
  end

  it "takes repetition_penalty_last_n as the tokens that are penalized" do
    answer = ->(**options) { smollm.generate("1, 2, 1, 2, 1, 2,", config: Candle::GenerationConfig.deterministic(max_length: 8, **options)) }
    plain = answer.(repetition_penalty: 1.0)
    expect(answer.(repetition_penalty: 9.0, repetition_penalty_last_n: 64)).not_to eq(plain)
    expect(answer.(repetition_penalty: 9.0, repetition_penalty_last_n: 64)).not_to eq(answer.(repetition_penalty: 9.0, repetition_penalty_last_n: 1))
    expect(answer.(repetition_penalty: 9.0, repetition_penalty_last_n: 0)).to eq(plain)
  end

  it "logs its tokens with debug_tokens" do
    log = StringIO.new
    Candle.configure_logging { |config| config.verbose! && config.output = log }
    smollm.generate(prompt, config: greedy(max_length: 3))
    expect(log.string).to eq("")
    smollm.generate(prompt, config: greedy(max_length: 3, debug_tokens: true))
    expect(log.string).to match(/^tokens \[\d+.*\]: " Paris/)
  ensure
    Candle.logger = nil
  end

  it "opens one file of a folder, and another tokenizer beside it" do
    smollm
    cache = File.join(ENV.fetch("XDG_CACHE_HOME", File.join(Dir.home, ".cache")), "{sconce,huggingface}")
    file = Dir[File.join(cache, "**", "SmolLM2-135M-Instruct.Q4_1.gguf")].first || skip("the file of smollm is not in a cache that this spec knows")
    model = described_class.from_pretrained(File.dirname(file), device: "cpu", gguf_file: File.basename(file), tokenizer: MINILM)
    expect(model.generate(prompt, config: greedy(max_length: 4))).to start_with(" Paris")
    expect([model.model_id, model.model_name]).to eq([File.dirname(file)] * 2)
    expect(model.options).to include("gguf_file" => File.basename(file), "tokenizer" => MINILM)
    expect(model.tokenizer.encode("food")).to eq([101, 2833, 102])
    expect(model.eos_token).to eq("<|im_end|>")
    plain = described_class.from_pretrained(File.dirname(file), device: "cpu", gguf_file: File.basename(file))
    expect(plain.tokenizer.encode("food")).to eq(smollm.tokenizer.encode("food"))
    expect(plain.options["tokenizer"]).to eq(file)
  end

  it "cancels the answers that it began if one of the prompts cannot be answered" do
    cancelled = 0
    allow_any_instance_of(Candle::Native::Stream).to receive(:cancel).and_wrap_original { |cancel| (cancelled += 1) && cancel.call }
    expect { smollm.generate([prompt, prompt, 7], config: greedy(max_length: 4000)) }.to raise_error(TypeError, /a prompt is a String/)
    expect(cancelled).to eq(2)
  end

  it "streams" do
    pieces = []
    text = smollm.generate_stream(prompt, config: greedy(max_length: 8)) { |piece| pieces << piece }
    expect(pieces.join).to eq(text)
    expect(pieces.size).to be > 3
  end

  it "can be left in the middle of a stream" do
    5.times { smollm.generate_stream(prompt, config: greedy(max_length: 200)) { break } }
    expect { smollm.generate_stream(prompt, config: greedy(max_length: 200)) { raise "enough" } }.to raise_error("enough")
    expect(smollm.generate(prompt, config: greedy(max_length: 2))).to start_with(" Paris")
  end

  it "chats, with symbols or strings as keys" do
    # A case of llama.cpp's own answers (crates/testkit/goldens/smollm2-q4_1).
    messages = [{ role: "system", content: "You are a terse assistant. Answer in one sentence." }, { role: "user", content: "Why is the sky blue?" }]
    rendered = smollm.apply_chat_template(messages)
    expect(rendered).to include("<|im_start|>user\nWhy is the sky blue?<|im_end|>").and end_with("<|im_start|>assistant\n")
    answer = smollm.chat(messages, config: greedy(max_length: 16))
    expect(answer).to start_with("The sky is blue because of")
    expect(smollm.chat(messages.map { |message| message.transform_keys(&:to_s) }, config: greedy(max_length: 16))).to eq(answer)
    expect(smollm.generate(rendered, config: greedy(max_length: 16))).to eq(answer)
    pieces = []
    expect(smollm.chat_stream(messages, config: greedy(max_length: 16)) { |piece| pieces << piece }).to eq(answer)
    expect(pieces.join).to eq(answer)
    expect { smollm.chat([{ content: "no role" }]) }.to raise_error(ArgumentError, /messages/)
  end

  it "answers in JSON and by regular expressions" do
    schema = { type: "object", properties: { answer: { type: "string", enum: %w[yes no] } }, required: ["answer"], additionalProperties: false }
    expect(smollm.generate_structured("Is water wet? ", schema: schema, max_length: 40)).to match("answer" => match(/\A(yes|no)\z/))
    expect(smollm.generate_structured("Is water wet? ", schema: JSON.generate(schema), config: greedy(max_length: 40))).to include("answer")
    cut = smollm.generate_structured("Is water wet? ", schema: { type: "string", minLength: 100 }, config: greedy(max_length: 2))
    expect(cut).to be_a(String)
    expect(smollm.generate_regex("A phone number: ", pattern: /\A\d{3}-\d{4}\z/, max_length: 20)).to match(/\A\d{3}-\d{4}\z/)
    expect(smollm.generate_regex("Yes or no? ", pattern: "yes|no", stop_on_match: false, config: greedy)).to match(/\A(yes|no)\z/)
    expect { smollm.generate_regex("x", pattern: "(") }.to raise_error(RuntimeError)
  end

  it "makes constraints in every way" do
    schema = '{"type": "integer"}'
    made = [Candle::StructuredConstraint.from_schema(schema, smollm.tokenizer), Candle::StructuredConstraint.from_schema_with_model(schema, SMOLLM),
            smollm.constraint_from_schema(schema), smollm.constraint_from_schema({ type: "integer" })]
    expect(made.map(&:options).uniq).to eq([{ "schema" => { "type" => "integer" } }])
    made = [Candle::StructuredConstraint.from_regex("[0-9]+", smollm.tokenizer), Candle::StructuredConstraint.from_regex_with_model(/[0-9]+/, SMOLLM),
            smollm.constraint_from_regex(/[0-9]+/)]
    expect(made.map(&:options).uniq).to eq([{ "regex" => "[0-9]+" }])
    expect(Candle::StructuredConstraint.from_regex(/a/i).options).to eq("regex" => "(?i:a)")
    expect { Candle::StructuredConstraint.from_schema("{") }.to raise_error(ArgumentError, /JSON/)
    expect(smollm.generate("A number: ", config: greedy(constraint: made.last, max_length: 5))).to match(/\A[0-9]+\z/)
  end

  it "calls tools" do
    add = Candle::Tool.new(name: "add", description: "Adds.", parameters: { type: "object" }) { |args| args["a"] + args["b"] }
    forced = Candle::StructuredConstraint.from_regex('<tool_call>\n\{"name": "add", "arguments": \{"a": 2, "b": 3\}\}\n</tool_call>')
    ask = [{ role: "user", content: "What is 2 + 3?" }]
    result = smollm.chat_with_tools(ask, tools: [add], execute: true, config: greedy(constraint: forced, max_length: 60))
    expect(result.tool_calls).to eq([Candle::ToolCall.new(name: "add", arguments: { "a" => 2, "b" => 3 })])
    expect(result.tool_results).to eq([{ tool_call: result.tool_calls[0], result: 5 }])
    expect([result.has_tool_calls?, result.success?, result.text_response]).to eq([true, true, nil])
    expect(result.raw_response).to include("tool_call")
    broken = Candle::Tool.new(name: "add", description: "Fails.") { raise "no" }
    result = smollm.chat_with_tools(ask, tools: [broken], execute: true, config: greedy(constraint: forced, max_length: 60))
    expect([result.success?, result.tool_results[0][:error]]).to eq([false, "no"])
    plain = smollm.chat_with_tools(ask, tools: [add], config: greedy(constraint: Candle::StructuredConstraint.from_regex("five"), max_length: 9))
    expect([plain.has_tool_calls?, plain.text_response, plain.tool_results]).to eq([false, "five", []])
  end

  it "describes itself" do
    expect(smollm.model_eos_tokens).to include("<|im_end|>")
    expect(smollm.eos_token).to eq("<|im_end|>")
    expect([smollm.model_id, smollm.model_name, smollm.device.to_s]).to eq([SMOLLM, SMOLLM, "cpu"])
    expect(smollm.tokenizer.decode(smollm.tokenizer.encode("hello"))).to eq("hello")
    expect(smollm.options).to include("model_id" => SMOLLM)
    expect(smollm.context_length).to be > 1000
    expect(smollm.inspect).to include("LLM", "cpu")
  end

  it "keeps red-candle's table of tokenizers" do
    described_class.register_tokenizer("me/model-GGUF", "me/model")
    described_class.register_tokenizer(/mine/, "me/other")
    expect(described_class.guess_tokenizer("me/model-GGUF")).to eq("me/model")
    expect(described_class.guess_tokenizer("a/mine")).to eq("me/other")
    expect(described_class.guess_tokenizer("x/y-gguf")).to eq("x/y")
    expect(described_class::TOKENIZER_REGISTRY[:patterns]).not_to be_empty
    expect { described_class.register_tokenizer(7, "x") }.to raise_error(ArgumentError)
  end

  it "refuses what is no prompt, no config and no model" do
    expect { smollm.generate(7) }.to raise_error(TypeError)
    expect { smollm.generate("x", config: {}) }.to raise_error(TypeError)
    expect { smollm.generate("") }.to raise_error(RuntimeError, /no tokens/)
    broken = "\xff"
    expect { smollm.generate(broken) }.to raise_error(ArgumentError, /UTF-8/)
    expect { smollm.chat([{ role: "user", content: broken }]) }.to raise_error(ArgumentError, /messages/)
    expect { smollm.generate("x", config: greedy(stop_sequences: [broken])) }.to raise_error(ArgumentError, /generation config/)
    expect { smollm.generate_structured("x", schema: { type: broken }) }.to raise_error(ArgumentError, /schema/)
    expect { smollm.generate_structured("x", schema: broken) }.to raise_error(ArgumentError, /schema/)
    expect { smollm.generate_regex("x", pattern: broken) }.to raise_error(ArgumentError)
    tool = Candle::Tool.new(name: "f", description: broken)
    expect { smollm.chat_with_tools([{ role: "user", content: "x" }], tools: [tool]) }.to raise_error(ArgumentError, /tools/)
    expect { described_class.from_pretrained(golden("task-tag"), device: "cpu") }.to raise_error(RuntimeError, /tag/)
    expect { described_class.from_pretrained("a/b", gguf_file: "../c.gguf") }.to raise_error(RuntimeError)
  end
end
