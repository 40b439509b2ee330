# frozen_string_literal: true

require "securerandom"

module Sconce
  # Documents, their embeddings and full text in one file, and search in it.
  #
  # Many threads and processes search while one writes. A forked process opens the file itself.
  class Index
    DEFAULT_MODEL = "minilm"
    # Documents of one call of the native module.
    PAGE = 1000
    # What a process runs to parse files.
    PARSER = "require ARGV.shift; Sconce::Native.parse_files"
    private_constant :PAGE, :PARSER

    @opened = ObjectSpace::WeakMap.new

    class << self
      # `model` is the name of an embedding model: dense, sparse (SPLADE) or multi-vector (ColBERT).
      # An index keeps the name of its model and loads it when it is needed; a new one takes
      # SCONCE_MODEL, or else minilm. With a block, the index is closed at its end.
      def open(path, model: nil, device: nil, create: true, read_only: false)
        index = new(path, model, device, create && !read_only, read_only)
        @opened[index] = true
        return index unless block_given?

        begin
          yield index
        ensure
          index.close
        end
      end

      # Closes idle connections of SQLite, which must not be carried into a forked process.
      def before_fork = @opened.keys.each { |index| index.send(:close_idle) }

      private :new
    end

    # The index's file.
    attr_reader :path

    # The model of the embeddings: name, revision, kind and dimensions; nil if nothing was embedded so far.
    def model = parsed(@native.model)

    # Brings the index up to date with files and folders, and returns what was done. The block is
    # called several times per second with how far the run is. An interrupted run keeps what it has
    # committed, and the next one goes on from there.
    def update(*paths, hidden: false, ignore_files: true, chunk_tokens: nil, chunk_overlap: nil, prune: true, rebuild: false)
      options = { hidden: hidden, ignore_files: ignore_files, prune: prune, rebuild: rebuild,
                  chunk_tokens: chunk_tokens, chunk_overlap: chunk_overlap }
      files = paths.flatten.map { |path| path_text(path) }
      run = @native.update(embedding_model, files, JsonText.generate(options, "the options"), parser)
      loop do
        is_done, json = run.next
        return parsed(json) if is_done

        yield parsed(json) if block_given?
      end
    ensure
      run&.cancel
    end

    # Adds texts and returns their ids; a document with the same id is replaced. `documents` are texts,
    # or hashes with `text`, and where they have one `id`, `title`, `kind` and `metadata`. `metadata` is
    # a hash for each document, or one for all: its values are texts, numbers, booleans or nil. `kind`
    # is "text", "markdown" or a programming language, and decides where chunks end.
    def add(documents, ids: nil, metadata: nil, titles: nil, kind: "text")
      items = documents_of(documents)
      { "id" => ids && Array(ids), "metadata" => metadata.is_a?(Hash) ? [metadata] * items.size : metadata, "title" => titles }.each do |name, values|
        next if values.nil?
        raise ArgumentError, "#{items.size} documents, but #{values.size} values of #{name}" unless values.size == items.size

        items.zip(values) { |item, value| item[name] = value }
      end
      items.each do |item|
        item["id"] ||= SecureRandom.uuid
        item["kind"] ||= kind.to_s
      end
      @native.add(embedding_model, JsonText.generate(items, "the documents")) unless items.empty?
      items.map { |item| item["id"] }
    end

    # Removes added documents by their ids, and files by their paths. Returns how many there were.
    def remove(ids) = @native.remove(Array(ids))

    # Finds passages, best first: a list of `Hit`. `mode` is hybrid (the default), dense, bm25, sparse or
    # multi_vector. `filter` is a condition on the metadata ("year>=2020", "path:docs/*"), a hash in the
    # form of OpenAI's vector stores, or a list of these, which must all pass. `rerank` is a `Reranker`,
    # or the name of one: it orders the best `candidates` anew.
    def search(query, limit: 10, mode: nil, filter: nil, rerank: nil, candidates: nil)
      options = { mode: mode&.to_s, limit: limit, filter: filter, candidates: candidates }.compact
      embedder = embedding_model unless mode.to_s == "bm25" || @native.model.nil?
      json = @native.search(query, JsonText.generate(options, "the options"), embedder, rerank && native_reranker(rerank))
      JSON.parse(json).map { |hit| Hit.of(hit.transform_keys(&:to_sym)) }
    end

    # The passage of a hit, or of its `chunk`, with so many chunks before and after it; nil if there is
    # no such chunk any more.
    def passage(chunk, before: 1, after: 1)
      json = @native.passage(chunk.is_a?(Hit) ? chunk.chunk : chunk, before, after)
      json && Passage.of(JSON.parse(json).transform_keys(&:to_sym))
    end

    # All documents, or those whose path or id begins with `prefix`, without their texts: an Enumerator.
    def documents(prefix: nil)
      Enumerator.new do |all|
        last = nil
        loop do
          page = JSON.parse(@native.documents(last, PAGE, prefix))
          page.each { |document| all << IndexedDocument.of(document.transform_keys(&:to_sym)) }
          break if page.size < PAGE

          last = page.last["id"]
        end
      end
    end

    # The document of an id or path with its text, of a table the first row; nil if there is none.
    def document(id)
      json = @native.get(id)
      json && IndexedDocument.of(JSON.parse(json).transform_keys(&:to_sym))
    end

    # What the index has: its model, paths, numbers of files, documents and chunks.
    def status = parsed(@native.status)

    # Closes the file, and unloads the models that the index has loaded. Any later call raises.
    def close
      @native.close
      models = @lock.synchronize { [@model, *@rerankers.values].tap { @model, @rerankers = nil, {} } }
      models.compact.each(&:close)
    end

    def inspect = "#<#{self.class.name} #{@path}>"
    alias to_s inspect

    private

    def initialize(path, model, device, create, read_only)
      raise TypeError, "a model is named by a String, not #{model.class}" unless model.nil? || model.is_a?(String)

      @path = File.expand_path(path_text(path))
      # The working directory may be another one when the model is loaded.
      @chosen = model && File.exist?(model) ? File.expand_path(model) : model
      @device = device
      @lock = Mutex.new
      @rerankers = {}
      @native = Native::Index.open(@path, create ? true : false, read_only ? true : false)
    end

    def parsed(json) = json && JSON.parse(json, symbolize_names: true)

    def path_text(path) = path.respond_to?(:to_path) ? path.to_path : path

    def close_idle
      @native.close_idle
    rescue Error
      # It is closed, or of the parent of this process.
    end

    # The model, loaded at its first use.
    def embedding_model
      @lock.synchronize do
        @model ||= begin
          known = model if @chosen.nil?
          name = @chosen || known&.fetch(:name) || ENV["SCONCE_MODEL"].to_s.then { |usual| usual.empty? ? DEFAULT_MODEL : usual }
          Native::IndexModel.load(name, Device.from(@device).name, known&.fetch(:kind))
        end
      end
    end

    def native_reranker(reranker)
      return reranker.send(:native) if reranker.is_a?(Reranker)

      @lock.synchronize { @rerankers[reranker] ||= Reranker.from_pretrained(reranker, device: @device, max_length: nil) }.send(:native)
    end

    def documents_of(documents)
      list = documents.is_a?(Array) ? documents : [documents]
      list.map do |document|
        case document
        when String then { "text" => document }
        when Hash then document.transform_keys(&:to_s)
        else raise TypeError, "a document is a String or a Hash, not #{document.class}"
        end
      end
    end

    # The command of the process that parses files of untrusted formats.
    def parser
      extension = $LOADED_FEATURES.reverse_each.find { |path| File.basename(path, ".*") == "sconce_native" }
      [RbConfig.ruby, "-e", PARSER, extension]
    end
  end

  # Ruby calls `_fork` for every fork.
  module BeforeFork
    def _fork
      Index.before_fork
      super
    end
  end
  private_constant :BeforeFork
  Process.singleton_class.prepend(BeforeFork)
end
