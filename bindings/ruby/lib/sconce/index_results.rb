# frozen_string_literal: true

module Sconce
  # A passage that a search found. `path` is the file, or the id of an added document; `line`, `page`
  # and `row` say where the passage begins, if its document has lines, pages or rows. `highlights` are
  # ranges of `snippet`. `ranks` has the rank and the score in each ranking that found the passage.
  # `bytes` is the passage's range in the document's text.
  Hit = Struct.new(:chunk, :document, :path, :text, :score, :title, :heading, :line, :page, :row, :snippet, :highlights,
                   :ranks, :metadata, :bytes, keyword_init: true) do
    def self.of(json)
      hit = new(**json)
      hit.highlights = hit.highlights.map { |from, to| from...to }
      hit.ranks = hit.ranks.to_h { |name, rank| [name.to_sym, rank.transform_keys(&:to_sym)] }
      hit.bytes = Range.new(*hit.bytes, true)
      hit
    end

    def to_s = text
  end

  # A document of an index: a file, a row of a table, or an added document. `modified` is the time of
  # the file's last change, and nil for added documents. Lists of documents have no `text`.
  IndexedDocument = Struct.new(:id, :path, :row, :title, :kind, :metadata, :bytes, :chunks, :modified, :text, keyword_init: true) do
    def self.of(json) = new(**json, modified: json[:modified] && Time.at(json[:modified]))
  end

  # A passage with the text around it. `passage` is its range in `text`.
  Passage = Struct.new(:document, :text, :passage, :bytes, :heading, :line, :page, keyword_init: true) do
    def self.of(json)
      document = IndexedDocument.of(json[:document].transform_keys(&:to_sym))
      new(**json, document: document, passage: Range.new(*json[:passage], true), bytes: Range.new(*json[:bytes], true))
    end

    def to_s = text
  end
end
