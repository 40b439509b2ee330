# frozen_string_literal: true

module Sconce
  # What an answer must match: a JSON schema or a regular expression. Every model compiles it for
  # its own vocabulary when it generates, so the tokenizer arguments are not needed.
  class StructuredConstraint
    class << self
      private :new

      def from_schema(schema, _tokenizer = nil) = new("schema" => parsed(schema))
      def from_regex(pattern, _tokenizer = nil) = new("regex" => source(pattern))
      def from_schema_with_model(schema, _model_id = nil) = from_schema(schema)
      def from_regex_with_model(pattern, _model_id = nil) = from_regex(pattern)

      private

      def parsed(schema)
        schema.is_a?(String) ? JSON.parse(schema) : JSON.parse(JsonText.generate(schema, "the schema"))
      rescue JSON::ParserError, EncodingError => e
        raise ArgumentError, "the schema is not valid JSON: #{e.message.scrub}"
      end

      def source(pattern)
        return pattern unless pattern.is_a?(Regexp)

        flags = { Regexp::IGNORECASE => "i", Regexp::MULTILINE => "s", Regexp::EXTENDED => "x" }
        set = flags.filter_map { |flag, letter| letter if pattern.options.anybits?(flag) }.join
        # The whole answer must match, so anchors at the ends are understood.
        inner = pattern.source.sub(/\A(\\A|\^)/, "").sub(/(?<!\\)(\\z|\\Z|\$)\z/, "")
        set.empty? ? inner : "(?#{set}:#{inner})"
      end
    end

    # `{"schema" => …}` or `{"regex" => …}`.
    attr_reader :options

    def initialize(options)
      @options = options.freeze
    end

    def inspect = "#<Sconce::StructuredConstraint #{@options.inspect}>"
  end
end
