# frozen_string_literal: true

module Sconce
  class << self
    attr_writer :logger

    # Warnings go to standard error; with CANDLE_VERBOSE or SCONCE_VERBOSE set, everything does.
    def logger
      @logger ||= LoggerConfig.new.tap { |c| c.verbose! if ENV["CANDLE_VERBOSE"] || ENV["SCONCE_VERBOSE"] }.build_logger
    end

    def configure_logging
      config = LoggerConfig.new
      yield config if block_given?
      self.logger = config.build_logger
    end
  end

  # What `Sconce.configure_logging` yields.
  class LoggerConfig
    LEVELS = {
      "debug" => Logger::DEBUG, "info" => Logger::INFO, "warn" => Logger::WARN, "warning" => Logger::WARN,
      "error" => Logger::ERROR, "fatal" => Logger::FATAL
    }.freeze

    attr_accessor :level, :output, :formatter

    def initialize
      @level = :warn
      @output = $stderr
      @formatter = :simple
    end

    def verbose! = @level = :debug
    def info! = @level = :info
    def quiet! = @level = :warn
    def silent! = @level = :error
    def log_to_stdout! = @output = $stdout
    def log_to_file!(path) = @output = path
    def disable! = @output = File::NULL

    def build_logger
      logger = Logger.new(@output)
      logger.level = @level.is_a?(Integer) ? @level : LEVELS.fetch(@level.to_s.downcase, Logger::WARN)
      logger.formatter = @formatter.respond_to?(:call) ? @formatter : formatter_named(@formatter)
      logger
    end

    private

    def formatter_named(name)
      case name
      when :detailed then ->(severity, time, _, text) { "[#{time.strftime("%F %T")}] #{severity}: #{text}\n" }
      when :json
        lambda do |severity, time, program, text|
          "#{JSON.generate(timestamp: time.strftime("%FT%T%:z"), level: severity, message: text, program: program)}\n"
        end
      else ->(_, _, _, text) { "#{text}\n" }
      end
    end
  end
end
