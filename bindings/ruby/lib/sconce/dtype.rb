# frozen_string_literal: true

module Sconce
  # The storage format of a tensor: u8, u32, i64, bf16, f16, f32 or f64.
  class DType
    NAMES = %w[u8 u32 i64 bf16 f16 f32 f64].freeze

    def self.from(dtype)
      dtype.is_a?(DType) ? dtype : new(dtype)
    end

    def initialize(name)
      @name = name.to_s.downcase
      raise ArgumentError, "unknown dtype #{name.inspect}; one of #{NAMES.join(", ")}" unless NAMES.include?(@name)
    end

    def to_s = @name
    def to_sym = @name.to_sym
    def inspect = "#<Sconce::DType #{@name}>"
    def ==(other) = other.is_a?(DType) ? other.to_s == @name : other == to_sym
    alias eql? ==
    def hash = @name.hash
  end
end
