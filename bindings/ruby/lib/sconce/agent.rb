# frozen_string_literal: true

module Sconce
  AgentResult = Struct.new(:response, :messages, :iterations, :tool_calls_made, keyword_init: true)
  AgentMaxIterationsError = Class.new(StandardError)

  # Lets a language model call tools until it answers.
  class Agent
    MAX_ITERATIONS = 10
    # A longer text beside tool calls is taken as the answer.
    LONG_TEXT = 50

    attr_reader :llm, :tools, :system_prompt, :max_iterations

    def initialize(llm, tools:, system_prompt: nil, max_iterations: MAX_ITERATIONS)
      @llm = llm
      @tools = tools
      @system_prompt = system_prompt
      @max_iterations = max_iterations
    end

    def run(message, **options)
      messages = [({ role: "system", content: @system_prompt } if @system_prompt), { role: "user", content: message }].compact
      1.upto(@max_iterations) do |iteration|
        result = @llm.chat_with_tools(messages, tools: @tools, execute: true, **options)
        return answer(result, messages, iteration) if !result.has_tool_calls? || result.text_response.to_s.length > LONG_TEXT

        messages << { role: "assistant", content: result.raw_response }
        messages.concat(result.tool_results.map { |executed| { role: "tool", content: report(executed) } })
      end
      raise AgentMaxIterationsError, "the agent has not answered after #{@max_iterations} iterations"
    end

    private

    def answer(result, messages, iteration)
      calls = messages.count { |message| message[:role] == "tool" }
      response = result.text_response || result.raw_response
      AgentResult.new(response: response, messages: messages, iterations: iteration, tool_calls_made: calls)
    end

    def report(executed)
      outcome = executed[:error] ? "Error: #{executed[:error]}" : JSON.generate(executed[:result])
      "[#{executed[:tool_call].name}] #{outcome}"
    end
  end
end
