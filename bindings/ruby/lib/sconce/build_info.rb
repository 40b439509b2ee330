# frozen_string_literal: true

module Sconce
  # What this build can use. `*_available` says what a program can use here and now: the feature is
  # in the build, and the device in the machine.
  def self.build_info
    devices = Device.available_devices
    {
      "default_device" => Device.best.to_s,
      "cuda_available" => devices.include?("cuda"),
      "metal_available" => devices.include?("metal"),
      # Sconce has CPU kernels of its own and links none of these libraries.
      "mkl_available" => false,
      "accelerate_available" => false,
      "cudnn_available" => false
    }
  end

  # The same as methods.
  module BuildInfo
    class << self
      %w[cuda metal mkl accelerate cudnn].each do |name|
        define_method("#{name}_available?") { Sconce.build_info["#{name}_available"] }
      end

      def summary
        info = Sconce.build_info
        backends = [("Metal" if info["metal_available"]), ("CUDA" if info["cuda_available"]), "CPU"].compact
        info.transform_keys(&:to_sym).merge(available_backends: backends)
      end

      # Logs a warning if the machine seems to have CUDA, but this build does not.
      def display_cuda_info
        return if Native.has_feature("cuda")

        toolkit = ENV["CUDA_ROOT"] || ENV["CUDA_PATH"] || ["/usr/local/cuda", "/opt/cuda"].find { |path| File.exist?(path) }
        Sconce.logger.warn("CUDA found (#{toolkit}), but this build of the gem sconce has no CUDA") if toolkit
      end
    end
  end

  # red-candle's names for the same facts.
  module Utils
    class << self
      def cuda_is_available = BuildInfo.cuda_available?
      def get_num_threads = Native.threads
      def has_accelerate = BuildInfo.accelerate_available?
      def has_mkl = BuildInfo.mkl_available?
    end
  end

  # The operations on tensors that ran so far, by name, device, dtype and rung.
  def self.tensor_counts
    Native.counts.map { |op, device, dtype, rung, count| { op: op, device: device, dtype: dtype, rung: rung, count: count } }
  end
end
