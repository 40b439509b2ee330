# frozen_string_literal: true

module Sconce
  # A function that a language model may call. The block gets the arguments, a Hash with String keys.
  class Tool
    attr_reader :name, :description, :parameters

    def initialize(name:, description:, parameters: {}, &block)
      @name = name.to_s
      @description = description
      @parameters = parameters
      @block = block
    end

    def call(arguments)
      raise Error, "the tool #{@name} has no block" unless @block

      @block.call(arguments)
    end

    # The definition that chat templates read.
    def to_tool_definition
      { "type" => "function", "function" => { "name" => @name, "description" => @description, "parameters" => @parameters } }
    end
  end

  # A call that a model wants to make.
  ToolCall = Struct.new(:name, :arguments, keyword_init: true)

  # An answer of a model that may call tools. `tool_results` has `{tool_call:, result:}` or
  # `{tool_call:, error:}` of each call that was executed.
  ToolCallResult = Struct.new(:tool_calls, :tool_results, :text_response, :raw_response, keyword_init: true) do
    def has_tool_calls? = !(tool_calls.nil? || tool_calls.empty?)
    def success? = (tool_results || []).all? { |result| result[:error].nil? }
  end
end
