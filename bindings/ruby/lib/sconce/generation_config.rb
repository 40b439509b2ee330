# frozen_string_literal: true

module Sconce
  # How an answer is sampled and when it ends.
  class GenerationConfig
    DEFAULTS = {
      max_length: 512, temperature: 0.7, top_p: nil, top_k: nil, repetition_penalty: 1.1,
      repetition_penalty_last_n: 64, seed: nil, stop_sequences: [], include_prompt: false, debug_tokens: false,
      constraint: nil, stop_on_constraint_satisfaction: true, stop_on_match: true
    }.freeze

    class << self
      def default = new
      # Always the likeliest token.
      def deterministic(**options) = new({ temperature: 0.0, top_k: 1, seed: 42 }.merge(options))
      def balanced(**options) = new({ temperature: 0.7, top_p: 0.9, top_k: 40 }.merge(options))
      def creative(**options) = new({ temperature: 1.0, top_p: 0.95, top_k: 50, repetition_penalty: 1.2 }.merge(options))
    end

    # Unknown keys are reported and ignored.
    def initialize(options = nil, **more)
      given = (options || {}).to_h.merge(more).transform_keys(&:to_sym)
      unknown = given.keys - DEFAULTS.keys
      Sconce.logger.warn("GenerationConfig ignores #{unknown.join(", ")}") unless unknown.empty?
      @values = DEFAULTS.merge(given.slice(*DEFAULTS.keys))
      @values[:seed] ||= Random.new_seed & 0xffff_ffff
      check
    end

    DEFAULTS.each_key { |key| define_method(key) { @values[key] } }
    %i[include_prompt debug_tokens stop_on_constraint_satisfaction stop_on_match].each { |key| alias_method "#{key}?", key }

    # A copy with other values; everything else stays, the constraint too.
    def with(**overrides) = self.class.new(@values.merge(overrides))

    # All values, with String keys.
    def options
      shown = @values.reject { |key, value| value.nil? || key == :constraint }
      shown.transform_keys(&:to_s).merge("has_constraint" => !constraint.nil?)
    end

    # The request as the native module reads it.
    def to_request
      request = {
        max_tokens: max_length, temperature: temperature, top_p: top_p, top_k: top_k, seed: seed,
        repetition_penalty: repetition_penalty, penalty_window: repetition_penalty_last_n,
        stop: stop_sequences, echo: include_prompt
      }
      JSON.generate(request.compact.merge(constraint ? constraint.options : {}))
    end

    def inspect = "#<Sconce::GenerationConfig #{options.map { |key, value| "#{key}=#{value.inspect}" }.join(" ")}>"

    private

    NUMBERS = %i[max_length temperature top_p top_k repetition_penalty repetition_penalty_last_n seed].freeze
    private_constant :NUMBERS

    def check
      NUMBERS.each do |key|
        value = @values[key]
        raise TypeError, "#{key} is a number, not #{value.inspect}" unless value.nil? || value.is_a?(Numeric)
        raise ArgumentError, "#{key} is #{value}; it must not be negative" if value&.negative?
      end
      @values[:stop_sequences] = Array(@values[:stop_sequences])
      return if constraint.nil? || constraint.is_a?(StructuredConstraint)

      raise TypeError, "a constraint is a Sconce::StructuredConstraint, not #{constraint.class}"
    end
  end
end
