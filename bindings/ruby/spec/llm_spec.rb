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
    expect { described_class.new(temperature: "hot") }.to raise_error(TypeError)
    expect { described_class.new(max_length: -1) }.to raise_error(ArgumentError)
    expect { described_class.new(constraint: "a+") }.to raise_error(TypeError)
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
    expect { smollm.generate("\xff") }.to raise_error(ArgumentError)
    expect { described_class.from_pretrained(golden("task-tag"), device: "cpu") }.to raise_error(RuntimeError, /tag/)
    expect { described_class.from_pretrained("a/b", gguf_file: "../c.gguf") }.to raise_error(RuntimeError)
  end
end

RSpec.describe Candle::ToolCallParser do
  let(:add) { Candle::Tool.new(name: "add", description: "Adds.", parameters: {}) { |args| args.values.sum } }
  let(:text) { %(So: <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>) }

  it "finds calls, once each" do
    parsed = described_class.parse(text, available_tools: [add])
    expect([parsed.text_response, parsed.has_tool_calls?]).to eq(["So:", true])
    expect(parsed.tool_calls).to eq([Candle::ToolCall.new(name: "add", arguments: { "a" => 1 })])
    expect(described_class.new.parse("<tool_call>{broken</tool_call>").tool_calls).to eq([])
    expect(described_class.new.parse(text, available_tools: [Candle::Tool.new(name: "x", description: "")]).has_tool_calls?).to be(false)
    own = described_class.new(pattern: /CALL (.*)$/)
    expect(own.parse('CALL {"name": "f", "parameters": {"b": 2}}').tool_calls.first.arguments).to eq("b" => 2)
    expect(own.pattern).to eq(/CALL (.*)$/)
  end

  it "has tools with definitions" do
    expect(add.call("a" => 1, "b" => 2)).to eq(3)
    expect([add.name, add.description, add.parameters]).to eq(["add", "Adds.", {}])
    expect(add.to_tool_definition).to eq("type" => "function", "function" => { "name" => "add", "description" => "Adds.", "parameters" => {} })
  end
end

RSpec.describe Candle::Agent do
  # A model that calls a tool this many times, then answers.
  def fake(times)
    double("llm").tap do |model|
      call = Candle::ToolCall.new(name: "add", arguments: {})
      allow(model).to receive(:chat_with_tools) do |messages, **|
        done = messages.count { |m| m[:role] == "tool" } >= times
        Candle::ToolCallResult.new(tool_calls: done ? [] : [call], tool_results: done ? [] : [{ tool_call: call, result: 5 }],
                                   text_response: done ? "5" : nil, raw_response: "raw")
      end
    end
  end

  it "calls tools until the model answers" do
    agent = described_class.new(fake(2), tools: [], system_prompt: "Add.")
    result = agent.run("2 + 3?")
    expect([result.response, result.iterations, result.tool_calls_made]).to eq(["5", 3, 2])
    expect(result.messages.map { |m| m[:role] }).to eq(%w[system user assistant tool assistant tool])
    expect(result.messages.last[:content]).to eq("[add] 5")
    expect([agent.max_iterations, agent.system_prompt, agent.tools]).to eq([10, "Add.", []])
  end

  it "gives up after max_iterations" do
    expect { described_class.new(fake(9), tools: [], max_iterations: 2).run("x") }.to raise_error(Candle::AgentMaxIterationsError, /2 iterations/)
  end
end
