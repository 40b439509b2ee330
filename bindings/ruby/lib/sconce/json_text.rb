# frozen_string_literal: true

module Sconce
  # JSON for the native module.
  module JsonText
    # What JSON cannot express, such as a text that is not valid UTF-8, is an ArgumentError that names
    # `subject`.
    def self.generate(value, subject)
      JSON.generate(value)
    rescue JSON::JSONError, EncodingError => e
      raise ArgumentError, "#{subject} cannot be written as JSON: #{e.message.scrub}"
    end
  end
  private_constant :JsonText
end
