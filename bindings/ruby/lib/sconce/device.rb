# frozen_string_literal: true

module Sconce
  # A device by name: `cpu`, `cuda`, `cuda:1`, `metal`.
  class Device
    class << self
      def cpu = new("cpu")
      def cuda(index = 0) = new("cuda:#{index}").available!
      def metal(index = 0) = new("metal:#{index}").available!
      def best = new(Native.best_device)
      alias default best

      # The names of the devices that can be used, without ordinals.
      def available_devices = Native.devices.map { |name| name.split(":").first }.uniq

      # A Device from a Device, a String or a Symbol; nil is the best one.
      def from(device)
        case device
        when Device then device
        when nil then best
        when String, Symbol then new(device.to_s).available!
        else raise TypeError, "a Sconce::Device or its name is expected, not #{device.class}"
        end
      end
    end

    # The name with its ordinal, as in `cuda:0`.
    attr_reader :name

    def initialize(name)
      match = /\A(cpu|(cuda|metal)(:\d+)?)\z/.match(name.to_s)
      raise ArgumentError, "unknown device #{name.inspect}; one of cpu, cuda, cuda:N, metal, metal:N" unless match

      @name = match[2] && !match[3] ? "#{name}:0" : name.to_s.dup
      @name.freeze
    end

    # This device, or an error that says why it cannot be used.
    def available!
      Native.check_device(@name)
      self
    end

    # `cpu`, `cuda` or `metal`; the ordinal only if it is not the first.
    def to_s = @name.delete_suffix(":0")
    def inspect = "#<Sconce::Device #{self}>"
    def ==(other) = other.is_a?(Device) && other.name == @name
    alias eql? ==
    def hash = @name.hash
  end

  # The older name of Device.best.
  module DeviceUtils
    def self.best_device
      warn "DeviceUtils.best_device is deprecated: use Device.best", category: :deprecated
      Device.best
    end
  end
end
