# frozen_string_literal: true

# red-candle's name for this API. Two gems cannot both provide it: with red-candle installed, which
# one a program gets would depend on the load path.
if Gem.loaded_specs.key?("red-candle") || !Gem::Specification.find_all_by_name("red-candle").empty?
  raise LoadError, "both gems sconce and red-candle are installed, and both provide `candle`: " \
                   "uninstall red-candle (or leave it out of the Gemfile), or use `require \"sconce\"` and `Sconce`"
end

require_relative "sconce"

raise LoadError, "a module Candle is defined already: use `require \"sconce\"` and `Sconce`" if defined?(Candle) && Candle != Sconce

Candle = Sconce unless defined?(Candle)
