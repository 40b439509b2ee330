# frozen_string_literal: true

# 1,000 texts in one call of the Ruby gem, against the same call in Rust (benches/ruby.rs). The gem
# must reach 0.95 of the rate. The two take turns, and the best time of each counts. On an idle
# machine:
#
#   bindings/ruby/test --run ruby "$PWD/benches/ruby.rb"
require "sconce"

TURNS = 3
texts = Array.new(1000) { |i| "Text number #{i}: a man is eating food, and someone else has lunch. " * (1 + i % 3) }

def rust
  output = IO.popen(%w[cargo bench --quiet --workspace --bench ruby], chdir: File.expand_path("..", __dir__), err: File::NULL, &:read)
  Float(output[/^seconds (\S+)$/, 1] || abort("`cargo bench --workspace --bench ruby` printed no time"))
end

def ruby(texts)
  model = Sconce::EmbeddingModel.from_pretrained("minilm", device: "cpu")
  model.embedding(texts.first(64))
  times = Array.new(3) do
    begun = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    model.embedding(texts)
    Process.clock_gettime(Process::CLOCK_MONOTONIC) - begun
  end
  times.min
ensure
  model&.close
end

rust # Compiles it.
turns = Array.new(TURNS) { [rust, ruby(texts)] }
in_rust, in_ruby = turns.transpose.map(&:min)
puts format("Rust %.1f texts/s, Ruby %.1f texts/s: %.3f", texts.size / in_rust, texts.size / in_ruby, in_rust / in_ruby)
exit in_rust / in_ruby >= 0.95
