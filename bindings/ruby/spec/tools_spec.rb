# frozen_string_literal: true

require_relative "spec_helper"

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

  it "feeds the results of calls back, whatever the model wrote beside them" do
    call = Candle::ToolCall.new(name: "add", arguments: {})
    long = "I am going to add these two numbers with the tool that adds numbers, and then I will tell you."
    answers = [Candle::ToolCallResult.new(tool_calls: [call], tool_results: [{ tool_call: call, result: 5 }], text_response: long, raw_response: long),
               Candle::ToolCallResult.new(tool_calls: [], tool_results: [], text_response: "It is 5.", raw_response: "It is 5.")]
    model = double("llm")
    allow(model).to receive(:chat_with_tools).and_return(*answers)
    result = described_class.new(model, tools: []).run("2 + 3?")
    expect([result.response, result.iterations, result.tool_calls_made]).to eq(["It is 5.", 2, 1])
    expect(result.messages.last).to eq(role: "tool", content: "[add] 5")
  end

  it "passes options on to the model" do
    add = Candle::Tool.new(name: "add", description: "Adds.") { |args| args["a"] + args["b"] }
    answer = Candle::ToolCallResult.new(tool_calls: [], tool_results: [], text_response: "5", raw_response: "5")
    model = double("llm")
    expect(model).to receive(:chat_with_tools).with(anything, tools: [add], execute: true, temperature: 0.1, max_length: 9).and_return(answer)
    expect(described_class.new(model, tools: [add]).run("x", temperature: 0.1, max_length: 9).response).to eq("5")
  end

  it "runs with a real model, which is made to call the tool each time" do
    called = []
    add = Candle::Tool.new(name: "add", description: "Adds.", parameters: { type: "object" }) { |args| called << args }
    forced = Candle::StructuredConstraint.from_regex('<tool_call>\n\{"name": "add", "arguments": \{"a": 2, "b": 3\}\}\n</tool_call>')
    agent = described_class.new(smollm, tools: [add], max_iterations: 2)
    expect { agent.run("What is 2 + 3?", config: greedy(constraint: forced, max_length: 60)) }.to raise_error(Candle::AgentMaxIterationsError)
    expect(called).to eq([{ "a" => 2, "b" => 3 }] * 2)
  end

  it "gives up after max_iterations" do
    expect { described_class.new(fake(9), tools: [], max_iterations: 2).run("x") }.to raise_error(Candle::AgentMaxIterationsError, /2 iterations/)
  end
end
