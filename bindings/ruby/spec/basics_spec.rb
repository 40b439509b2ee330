# frozen_string_literal: true

require_relative "spec_helper"

RSpec.describe "require" do
  it "defines Candle as another name of Sconce" do
    expect(Candle).to equal(Sconce)
    expect(require("red-candle")).to be(true).or be(false)
    expect(Candle::VERSION).to eq(Gem.loaded_specs.fetch("sconce").version.to_s)
  end

  it "is a gem for the versions of Ruby that it has extensions for" do
    gem = Gem.loaded_specs.fetch("sconce")
    versions = Dir[File.join(gem.full_gem_path, "lib/sconce/*/sconce_native.*")].map { |path| File.basename(File.dirname(path)) }
    expect(versions).to include(RUBY_VERSION[/\d+\.\d+/])
    versions.each { |version| expect(gem.required_ruby_version).to be_satisfied_by(Gem::Version.new("#{version}.9")) }
    expect(gem.required_ruby_version).not_to be_satisfied_by(Gem::Version.new("2.7.8"))
    expect(gem.required_ruby_version).not_to be_satisfied_by(Gem::Version.new("99.0"))
    expect(gem.platform.version).to be_nil
  end

  it "refuses to shadow the red-candle gem, and require \"sconce\" still works" do
    Dir.mktmpdir do |home|
      File.write(File.join(home, "red-candle.gemspec"), <<~SPEC)
        Gem::Specification.new { |s| s.name = "red-candle"; s.version = "1.8.1"; s.summary = "a stand-in"; s.authors = ["x"]; s.files = [] }
      SPEC
      built = system("gem", "build", "-q", "red-candle.gemspec", chdir: home, out: File::NULL, err: File::NULL) &&
              system("gem", "install", "-q", "--local", "--no-document", "-i", File.join(home, "gems"), File.join(home, "red-candle-1.8.1.gem"),
                     out: File::NULL, err: File::NULL)
      expect(built).to be(true)
      beside = { "GEM_PATH" => [File.join(home, "gems"), *Gem.path].join(":") }
      output, = ruby('gem "sconce"; begin; require "candle"; rescue LoadError => e; puts e.message; end', beside)
      expect(output).to include("uninstall red-candle").and include('require "sconce"')
      expect(ruby('require "sconce"; print Sconce::Device.cpu', beside)).to eq(["cpu", true])
    end
  end
end

RSpec.describe Candle::Device do
  it "has names, and compares by them" do
    expect(described_class.cpu.to_s).to eq("cpu")
    expect(described_class.cpu.inspect).to include("cpu")
    expect(described_class.cpu).to eq(described_class.new("cpu"))
    expect(described_class.new("cuda")).to eq(described_class.new("cuda:0"))
    expect(described_class.new("cuda:1").to_s).to eq("cuda:1")
    expect(described_class.available_devices).to include("cpu")
    expect(described_class.available_devices).to include(described_class.best.to_s)
    expect(described_class.default).to eq(described_class.best)
  end

  it "refuses names of no device, and devices that are not here" do
    ["gpu", "", "cpu:1", "cuda:x"].each { |name| expect { described_class.new(name) }.to raise_error(ArgumentError, /unknown device/) }
    expect { Candle::Tensor.zeros([2], device: "tpu") }.to raise_error(ArgumentError, /unknown device/)
    expect { Candle::Tensor.zeros([2], device: 7) }.to raise_error(TypeError)
    %i[cuda metal].each do |kind|
      next if described_class.available_devices.include?(kind.to_s)

      expect { described_class.public_send(kind) }.to raise_error(RuntimeError, /#{kind}:0/)
    end
  end

  it "keeps the deprecated DeviceUtils.best_device" do
    expect(Candle::DeviceUtils.best_device).to eq(described_class.best)
  end
end

RSpec.describe "build information" do
  it "says what can be used" do
    info = Candle.build_info
    expect(info.keys).to contain_exactly("default_device", *%w[cuda metal mkl accelerate cudnn].map { |name| "#{name}_available" })
    expect(info["default_device"]).to eq(Candle::Device.best.to_s)
    %w[cuda metal mkl accelerate cudnn].each do |name|
      expect(Candle::BuildInfo.public_send("#{name}_available?")).to eq(info["#{name}_available"])
    end
    expect(Candle::BuildInfo.summary).to include(available_backends: include("CPU"), cuda_available: info["cuda_available"])
    expect { Candle::BuildInfo.display_cuda_info }.not_to raise_error
    expect(Candle::Utils.cuda_is_available).to eq(info["cuda_available"])
    expect(Candle::Utils.get_num_threads).to be >= 1
    expect([Candle::Utils.has_accelerate, Candle::Utils.has_mkl]).to all(be(false))
  end

  it "has no vision-language models, and says so" do
    expect { Candle::VLM.from_pretrained("x/y", device: "cpu") }.to raise_error(Candle::Error, %r{x/y.*vision-language models yet})
    model = Candle::VLM.new
    calls = [-> { model.describe("a.png", max_length: 9) }, -> { model.ask("a.png", "What?") }, -> { model.tokenizer }, -> { model.model_id }, -> { model.device }]
    calls.each { |call| expect(&call).to raise_error(Candle::Error, /cannot run vision-language models yet/) }
  end
end

RSpec.describe "logging" do
  after { Candle.logger = nil }

  def logged(&configure)
    Tempfile.create("log") do |file|
      logger = Candle.configure_logging { |config| config.log_to_file!(file.path) && configure.call(config) }
      %i[debug info warn error].each { |level| logger.public_send(level, level.to_s) }
      File.read(file.path).lines.grep_v(/^#/).map(&:chomp)
    end
  end

  it "has levels" do
    expect(logged(&:verbose!)).to eq(%w[debug info warn error])
    expect(logged(&:info!)).to eq(%w[info warn error])
    expect(logged(&:quiet!)).to eq(%w[warn error])
    expect(logged(&:silent!)).to eq(%w[error])
    expect(logged { |config| config.level = "fatal" }).to eq([])
    expect(logged(&:disable!)).to eq([])
  end

  it "has formatters, an output and a replaceable logger" do
    expect(logged { |config| config.formatter = :detailed }.first).to match(/\A\[.*\] WARN: warn\z/)
    expect(JSON.parse(logged { |config| config.formatter = :json }.first)).to include("level" => "WARN", "message" => "warn")
    expect(Candle::LoggerConfig.new.tap(&:log_to_stdout!).output).to equal($stdout)
    output = StringIO.new
    Candle.configure_logging { |config| config.output = output }.warn("seen")
    expect(output.string).to eq("seen\n")
    own = Logger.new(File::NULL)
    Candle.logger = own
    expect(Candle.logger).to equal(own)
  end
end
