# frozen_string_literal: true

module Sconce
  # A prompt from a chat template: its control tokens are parsed, those of any other text are not.
  class ChatPrompt < String; end

  # A language model.
  class LLM < Model
    extend TokenizerRegistry
    TOKENIZER_REGISTRY = TokenizerRegistry::TOKENIZER_REGISTRY

    class << self
      # `gguf_file` names a file of the repository. A GGUF file has its tokenizer inside, so
      # `tokenizer` only chooses what `#tokenizer` returns.
      def from_pretrained(model_id, device: nil, gguf_file: nil, tokenizer: nil)
        new(model_id, device, gguf_file, tokenizer)
      end

      private :new
    end

    # The answer to a prompt; for a list of prompts a list of answers, generated together.
    def generate(prompt, config: GenerationConfig.balanced, reset_cache: true)
      return generate_stream(prompt, config: config, reset_cache: reset_cache) unless prompt.is_a?(Array)

      # One by one: if a prompt cannot be started, those before it are cancelled.
      streams = []
      prompt.each { |one| streams << start(one, config) }
      streams.map { |stream| drain(stream, config).first }
    ensure
      streams&.each(&:cancel)
    end

    # Yields the answer as it is generated, and returns it.
    def generate_stream(prompt, config: GenerationConfig.balanced, reset_cache: true, &block)
      stream = start(prompt, config)
      drain(stream, config, &block).first
    ensure
      stream&.cancel
    end

    # Messages are `{role:, content:}`, with symbols or strings as keys.
    def chat(messages, **options) = generate(apply_chat_template(messages), **options)
    def chat_stream(messages, **options, &block) = generate_stream(apply_chat_template(messages), **options, &block)

    # An answer that may call tools. With `execute`, calls the tools and reports what they return.
    def chat_with_tools(messages, tools:, execute: false, config: GenerationConfig.balanced, reset_cache: true, **options)
      config = config.with(**options) unless options.empty?
      stream = start(rendered(messages, JsonText.generate(tools.map { |tool| definition(tool) }, "the tools")), config)
      raw, ids = drain(stream, config)
      text, calls = parsed_calls(raw, ids, tools)
      results = execute ? calls.map { |call| execute(call, tools) } : []
      ToolCallResult.new(tool_calls: calls, tool_results: results, text_response: text, raw_response: raw)
    ensure
      stream&.cancel
    end

    # The answer as parsed JSON that satisfies the schema; the raw text if the length cut it off.
    def generate_structured(prompt, schema:, config: nil, reset_cache: true, **options)
      answer = generate(prompt, config: constrained(config, options, constraint_from_schema(schema)))
      answers = Array(answer).map { |text| parse_json(text) }
      prompt.is_a?(Array) ? answers : answers.first
    end

    # An answer that the pattern matches as a whole.
    def generate_regex(prompt, pattern:, stop_on_match: true, config: nil, reset_cache: true, **options)
      options = options.merge(stop_on_match: stop_on_match)
      generate(prompt, config: constrained(config, options, constraint_from_regex(pattern)))
    end

    def constraint_from_schema(schema) = StructuredConstraint.from_schema(schema)
    def constraint_from_regex(pattern) = StructuredConstraint.from_regex(pattern)

    # The prompt that the model's chat template makes of messages.
    def apply_chat_template(messages) = rendered(messages, nil)

    # The tokens that end an answer.
    def model_eos_tokens = @native.end_tokens
    def eos_token = own_tokenizer.get_special_tokens["eos_token"]&.then { |id| own_tokenizer.id_to_token(id) } || model_eos_tokens.first

    # The model's own tokenizer, or the one that `from_pretrained` was given.
    def tokenizer = @tokenizer_id ? @chosen_tokenizer ||= Tokenizer.from_pretrained(@tokenizer_id) : own_tokenizer

    # Does nothing: answers share only cached prefixes of prompts, which change an answer by rounding at most.
    def clear_cache = nil

    # The longest sequence, prompt and answer together.
    def context_length = @native.context
    def model_name = @model_id
    def options = super.merge("gguf_file" => @gguf_file, "tokenizer" => @tokenizer_id || @reference).compact

    private

    def initialize(model_id, device, gguf_file, tokenizer)
      super(Native::Llm, model_id, device, file: gguf_file)
      @tokenizer_id = tokenizer
      @gguf_file = gguf_file
    end

    def rendered(messages, tools) = ChatPrompt.new(@native.render(JsonText.generate(messages, "messages"), tools))

    def start(prompt, config)
      raise TypeError, "a prompt is a String, not #{prompt.class}" unless prompt.is_a?(String)
      raise TypeError, "config is a Sconce::GenerationConfig, not #{config.class}" unless config.is_a?(GenerationConfig)

      @native.start(String.new(prompt), prompt.is_a?(ChatPrompt), config.to_request)
    end

    # The whole text and its token ids; yields each piece.
    def drain(stream, config)
      text = +""
      ids = []
      while (piece, tokens = stream.next)
        text << piece
        ids.concat(tokens)
        Sconce.logger.debug { "tokens #{tokens.inspect}: #{piece.inspect}" } if config.debug_tokens
        yield piece if block_given? && !piece.empty?
      end
      [text, ids]
    end

    def constrained(config, options, constraint)
      config ? config.with(constraint: constraint, **options) : GenerationConfig.balanced(constraint: constraint, **options)
    end

    def parse_json(text)
      JSON.parse(text)
    rescue JSON::ParserError => e
      Sconce.logger.warn("the answer is not complete JSON: #{e.message}")
      text
    end

    def definition(tool) = tool.is_a?(Hash) ? tool : tool.to_tool_definition

    def parsed_calls(raw, ids, tools)
      names = tools.map { |tool| definition(tool).then { |d| (d["function"] || d[:function] || d).then { |f| f["name"] || f[:name] } } }
      text, calls = @native.parse_tool_calls(raw, ids, names)
      calls = calls.filter_map { |name, json| ToolCall.new(name: name, arguments: JSON.parse(json)) rescue nil } # rubocop:disable Style/RescueModifier
      text = text.strip
      [text.empty? ? nil : text, calls.uniq]
    end

    def execute(call, tools)
      tool = tools.find { |one| one.respond_to?(:name) && one.name == call.name }
      return { tool_call: call, error: "there is no tool #{call.name}" } unless tool

      { tool_call: call, result: tool.call(call.arguments) }
    rescue StandardError => e
      { tool_call: call, error: e.message }
    end
  end
end
