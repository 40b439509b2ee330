# frozen_string_literal: true

module Sconce
  AgentResult = Struct.new(:response, :messages, :iterations, :tool_calls_made, keyword_init: true)
  AgentMaxIterationsError = Class.new(StandardError)

  # Lets a language model call tools until it answers.
  class Agent
    MAX_ITERATIONS = 10

    attr_reader :llm, :tools, :system_prompt, :max_iterations

    def initialize(llm, tools:, system_prompt: nil, max_iterations: MAX_ITERATIONS)
      @llm = llm
      @tools = tools
      @system_prompt = system_prompt
      @max_iterations = max_iterations
    end

    # The answer to a message. The model sees the results of its tool calls, whatever it wrote beside
    # them; an answer without calls is the last. `options` are those of `chat_with_tools`.
    def run(message, **options)
      messages = [({ role: "system", content: @system_prompt } if @system_prompt), { role: "user", content: message }].compact
      1.upto(@max_iterations) do |iteration|
        result = @llm.chat_with_tools(messages, tools: @tools, execute: true, **options)
        return answer(result, messages, iteration) unless result.has_tool_calls?

        messages << { role: "assistant", content: result.raw_response }
        messages.concat(result.tool_results.map { |executed| { role: "tool", content: report(executed) } })
      end
      raise AgentMaxIterationsError, "the agent has not answered after #{@max_iterations} iterations: raise max_iterations, or use fewer tools"
    end

    private

    def answer(result, messages, iteration)
      calls = messages.count { |message| message[:role] == "tool" }
      response = result.text_response || result.raw_response
      AgentResult.new(response: response, messages: messages, iterations: iteration, tool_calls_made: calls)
    end

    # A tool's result as the model reads it.
    def report(executed)
      outcome = executed[:error] ? "Error: #{executed[:error]}" : JsonText.generate(executed[:result], "the result of the tool #{executed[:tool_call].name}")
      "[#{executed[:tool_call].name}] #{outcome}"
    end
  end
end
