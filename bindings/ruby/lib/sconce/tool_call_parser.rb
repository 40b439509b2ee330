# frozen_string_literal: true

module Sconce
  # Finds tool calls in a text by a pattern whose first group is the JSON of a call. `chat_with_tools`
  # does not need it: the engine knows how each model writes calls.
  class ToolCallParser
    DEFAULT_PATTERN = %r{<tool_call>\s*(.*?)\s*</tool_call>}m

    ParseResult = Struct.new(:text_response, :tool_calls, keyword_init: true) do
      def has_tool_calls? = !(tool_calls.nil? || tool_calls.empty?)
    end

    attr_reader :pattern

    def self.parse(text, available_tools: []) = new.parse(text, available_tools: available_tools)

    def initialize(pattern: DEFAULT_PATTERN)
      @pattern = pattern
    end

    def parse(text, available_tools: [])
      known = available_tools.map(&:name)
      calls = text.scan(@pattern).filter_map { |groups| call_of(Array(groups).first) }
      calls.select! { |call| known.include?(call.name) } unless known.empty?
      rest = text.gsub(@pattern, "").strip
      ParseResult.new(text_response: rest.empty? ? nil : rest, tool_calls: calls.uniq)
    end

    private

    # A ToolCall of JSON; nil for anything else.
    def call_of(json)
      call = JSON.parse(json)
      return unless call.is_a?(Hash) && call["name"].is_a?(String)

      ToolCall.new(name: call["name"], arguments: call["arguments"] || call["parameters"] || {})
    rescue JSON::ParserError
      nil
    end
  end
end
