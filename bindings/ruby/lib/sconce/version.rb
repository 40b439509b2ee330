# frozen_string_literal: true

module Sconce
  VERSION = "0.2.0"
end
