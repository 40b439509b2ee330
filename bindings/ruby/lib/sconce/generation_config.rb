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
      # A window of no tokens penalizes none.
      request.merge!(repetition_penalty: 1.0, penalty_window: nil) if repetition_penalty_last_n == 0
      JsonText.generate(request.compact.merge(constraint ? constraint.options : {}), "the generation config")
    end

    def inspect = "#<Sconce::GenerationConfig #{options.map { |key, value| "#{key}=#{value.inspect}" }.join(" ")}>"

    private

    COUNTS = %i[max_length top_k repetition_penalty_last_n].freeze
    NUMBERS = %i[temperature top_p repetition_penalty].freeze
    # More means no limit.
    LARGEST_COUNT = 0xffff_ffff
    # The bits that the engine uses.
    SEED_BITS = 0xffff_ffff_ffff_ffff
    private_constant :COUNTS, :NUMBERS, :LARGEST_COUNT, :SEED_BITS

    def check
      COUNTS.each { |key| @values[key] &&= [not_negative(key, integer(key)), LARGEST_COUNT].min }
      NUMBERS.each { |key| @values[key] &&= not_negative(key, Float(number(key))) }
      @values[:seed] = integer(:seed) & SEED_BITS
      @values[:stop_sequences] = Array(@values[:stop_sequences])
      return if constraint.nil? || constraint.is_a?(StructuredConstraint)

      raise TypeError, "a constraint is a Sconce::StructuredConstraint, not #{constraint.class}"
    end

    # The value, a finite number.
    def number(key)
      value = @values[key]
      raise TypeError, "#{key} is a number, not #{value.inspect}" unless value.is_a?(Numeric) && value.real?
      raise ArgumentError, "#{key} is #{value}; it must be finite" unless value.finite?

      value
    end

    def integer(key)
      value = number(key)
      raise ArgumentError, "#{key} is #{value}; it must be a whole number" unless value == value.to_i

      value.to_i
    end

    def not_negative(key, value)
      raise ArgumentError, "#{key} is #{value}; it must not be negative" if value.negative?

      value
    end
  end
end
