# frozen_string_literal: true

require_relative "spec_helper"
require "tmpdir"

RSpec.describe Candle::Index do
  let(:texts) { { "cat" => "The cat sat on the mat.", "food" => "A man is eating food.", "train" => "The train to Paris leaves at noon." } }
  let(:metadata) { [{ year: 2019, tag: "animal" }, { year: 2020, tag: "meal" }, { year: 2021, tag: nil }] }

  around do |example|
    Dir.mktmpdir do |folder|
      @folder = folder
      example.run
    end
  end

  def database = File.join(@folder, "test.db")

  def open(**options) = described_class.open(database, model: MINILM, device: "cpu", **options)

  # An index with three documents.
  def filled = open.tap { |index| index.add(texts.values, ids: texts.keys, metadata: metadata) }

  # A folder with files of several formats.
  def files
    File.join(@folder, "files").tap do |files|
      Dir.mkdir(files)
      File.write(File.join(files, "notes.md"), "# Trains\n\nThe train to Paris leaves at noon.\n")
      File.write(File.join(files, "page.html"), "<html><head><title>Lunch</title></head><body><p>A man is eating food.</p></body></html>")
      File.write(File.join(files, "rows.csv"), "text,year\nThe cat sat on the mat.,2019\nA dog barks.,2021\n")
    end
  end

  def names(hits) = hits.map { |hit| File.basename(hit.path) }

  it "indexes files and finds their passages" do
    folder = files
    open do |index|
      expect([index.model, index.search("anything")]).to eq([nil, []])
      seen = []
      report = index.update(folder) { |progress| seen << progress }
      expect(report).to include(indexed: 3, failed: [])
      expect([seen.first[:phase], seen.last[:phase], seen.last[:files]]).to eq(["walking", "finishing", 3])
      expect(index.model).to include(name: MINILM, kind: "dense", dimensions: 384)
      expect(index.status).to include(files: 3, documents: 4, database: index.path)

      hit = index.search("When does the train go?").first
      expect([names([hit]), hit.page, hit.ranks.keys.sort]).to eq([["notes.md"], nil, %i[bm25 dense]])
      expect(hit.line).to be >= 1
      hit = index.search("eating", mode: :bm25).first
      expect([names([hit]), hit.title, hit.highlights.map { |range| hit.snippet[range] }]).to eq([["page.html"], "Lunch", ["eating"]])
      hit = index.search("pet", filter: "year>=2020", mode: "dense").first
      expect([names([hit]), hit.row, hit.metadata["year"]]).to eq([["rows.csv"], 2, 2021])

      expect(index.update([folder])).to include(unchanged: 3)
      File.delete(File.join(folder, "page.html"))
      expect(index.update(folder)).to include(removed: 1)
      expect(index.documents.map { |document| File.basename(document.path) }).to match_array(%w[notes.md rows.csv rows.csv])
    end
  end

  it "adds, replaces and removes documents" do
    index = filled
    hit = index.search("lunch").first
    expect([hit.path, hit.to_s, hit.metadata]).to eq(["food", texts["food"], { "year" => 2020, "tag" => "meal" }])
    expect(index.add("A woman has dinner.", ids: "food", metadata: { year: 2022 })).to eq(["food"])
    expect(index.document("food").text).to eq("A woman has dinner.")
    ids = index.add([{ text: "One." }, { "text" => "Two.", id: "two", title: "Second", kind: "markdown" }])
    expect([ids.first.size, ids.last, index.document("two").title, index.document("no such id")]).to eq([36, "two", "Second", nil])
    expect(index.documents(prefix: "tw").map(&:path)).to eq(["two"])
    expect([index.remove(["two", "no such id"]), index.remove(ids.first), index.add([])]).to eq([1, 1, []])
    expect(index.documents.map(&:path)).to match_array(texts.keys)
    expect(index.document("cat").modified).to be_nil
  end

  it "reads around a passage" do
    index = open
    text = (0...6).map { |i| "Section #{i} is about the number #{i}. " * 40 }.join("\n\n")
    index.add(text, ids: "long")
    hit = index.search("section 3", limit: 100, mode: "dense").first
    expect(text.byteslice(hit.bytes)).to eq(hit.text)
    alone = index.passage(hit, before: 0, after: 0)
    around = index.passage(hit.chunk)
    expect(alone.text).to eq(hit.text)
    expect(around.text[around.passage]).to eq(hit.text)
    expect(around.text.size).to be > hit.text.size
    expect([around.document.path, index.passage(1 << 40)]).to eq(["long", nil])
  end

  it "has modes, filters and rerankers" do
    index = filled
    expect(index.search("food", mode: "bm25").map(&:path)).to eq(["food"])
    expect(index.search("food", mode: :dense, limit: 2).size).to eq(2)
    {
      "year>=2020" => %w[food train],
      { type: "eq", key: "tag", value: "animal" } => %w[cat],
      ["year>=2019", "year<2021"] => %w[cat food]
    }.each do |filter, want|
      expect(index.search("something", filter: filter).map(&:path)).to match_array(want)
    end
    want = reranker.rerank("cat", texts.values).map { |ranked| texts.keys[ranked[:doc_id]] }
    [reranker, golden("task-rerank")].each do |given|
      expect(index.search("cat", mode: "dense", rerank: given).map(&:path)).to eq(want)
    end
  end

  it "keeps its model" do
    filled.close
    described_class.open(database, device: "cpu") { |index| expect(index.search("lunch", limit: 1).map(&:path)).to eq(["food"]) }
    described_class.open(database, model: golden("st-mean-dense"), device: "cpu") do |index|
      expect { index.add("text") }.to raise_error(Candle::Error, /made with/)
      expect { index.search("text") }.to raise_error(Candle::Error, /made with/)
    end
  end

  it "refuses what it cannot use" do
    index = filled
    [{ mode: "best" }, { limit: -1 }, { filter: "nonsense" }, { filter: 3 }].each do |options|
      expect { index.search("cat", **options) }.to raise_error(ArgumentError)
    end
    expect { index.search("") }.to raise_error(Candle::Error, /empty/)
    expect { index.search("\xff") }.to raise_error(ArgumentError, /UTF-8/)
    expect { index.search(3) }.to raise_error(TypeError)
    expect { index.add(3) }.to raise_error(TypeError)
    expect { index.add("\xff") }.to raise_error(ArgumentError)
    expect { index.add("text", metadata: { tags: ["a"] }) }.to raise_error(ArgumentError, /tags.*list/)
    expect { index.add(%w[a b], ids: ["a"]) }.to raise_error(ArgumentError, /2 documents/)
    expect { described_class.open(File.join(@folder, "missing.db"), create: false) }.to raise_error(Candle::Error, /no index/)
    expect { described_class.open(@folder) }.to raise_error(Candle::Error, /folder/)
    described_class.open(database, read_only: true) do |reader|
      expect(reader.search("food", mode: "bm25").size).to eq(1)
      expect { reader.remove("food") }.to raise_error(Candle::Error, /read/)
    end
    2.times { index.close }
    expect { index.status }.to raise_error(Candle::Error, /closed/)
  end

  it "is searched by threads while one writes" do
    index = filled
    searches = Array.new(4) { Thread.new { Array.new(20) { index.search("eating food", mode: "bm25").first.path }.uniq } }
    writers = Array.new(4) { |i| Thread.new { index.add("Text #{i}.", ids: "t#{i}") } }
    writers.each(&:join)
    expect(searches.map(&:value).uniq).to eq([["food"]])
    expect(index.documents.count).to eq(7)
  end

  it "goes on after an interrupted run" do
    folder = files
    3000.times { |i| File.write(File.join(folder, "#{i}.txt"), "Text #{i} has some words of its own. " * 60) }
    index = filled
    expect { Timeout.timeout(2) { index.update(folder) } }.to raise_error(Timeout::Error)
    expect { index.update(folder) { raise "stop" } }.to raise_error("stop")
    # It waits for the end of the interrupted runs.
    index.add("The last document.", ids: "last")
    expect(index.search("last", mode: "bm25").first.path).to eq("last")
    expect(index.status[:files]).to be < 3000
  end

  it "is opened again after a fork" do
    filled.close
    program = "require 'candle'; $stdout.sync = true; open = -> { Candle::Index.open(#{database.inspect}, device: 'cpu') }; " \
              "index = open.(); index.search('lunch'); " \
              "pid = fork { begin; index.search('lunch'); rescue RuntimeError => e; puts e.message; end; puts open.().search('lunch').first.path }; " \
              "Process.wait(pid); puts index.search('lunch').first.path"
    output, = ruby(program)
    expect(output).to match(/index was loaded before a fork.*\nfood\nfood\n\z/)
  end

  it "carries no connection into a fork", if: File.directory?("/proc/self/fd") do
    index = filled
    opened = lambda do
      Dir.children("/proc/self/fd").filter_map { |fd| File.readlink("/proc/self/fd/#{fd}") rescue nil }.grep(/\A#{Regexp.escape(index.path)}/) # rubocop:disable Style/RescueModifier
    end
    index.search("food", mode: "bm25")
    expect(opened.()).not_to be_empty
    Process.wait(fork { exit!(opened.().empty? ? 0 : 1) })
    expect($?.exitstatus).to eq(0)
    expect(index.search("food", mode: "bm25").size).to eq(1)
  end
end
