# frozen_string_literal: true

module Sconce
  # Entities that match patterns.
  class PatternEntityRecognizer
    attr_reader :entity_type, :patterns

    def initialize(entity_type, patterns = [])
      @entity_type = entity_type
      @patterns = Array(patterns).dup
    end

    def add_pattern(pattern)
      @patterns << pattern
      self
    end

    def recognize(text, _tokenizer = nil)
      @patterns.flat_map do |pattern|
        found = []
        text.scan(pattern.is_a?(Regexp) ? pattern : Regexp.new(pattern)) do
          from, to = Regexp.last_match.offset(0)
          found << { text: text[from...to], label: @entity_type, start: from, end: to, confidence: 1.0, source: "pattern" }
        end
        found
      end
    end
  end

  # Entities in a list of terms, as whole words.
  class GazetteerEntityRecognizer
    attr_reader :entity_type, :terms, :case_sensitive

    def initialize(entity_type, terms = [], case_sensitive: false)
      @entity_type = entity_type
      @case_sensitive = case_sensitive
      @terms = Set.new
      add_terms(terms)
    end

    def add_terms(terms)
      Array(terms).each { |term| @terms << (@case_sensitive ? term : term.downcase) unless term.empty? }
      self
    end

    # One term a line; empty lines and lines that begin with # are skipped.
    def load_from_file(path)
      add_terms(File.readlines(path, chomp: true).map(&:strip).reject { |line| line.empty? || line.start_with?("#") })
    end

    def recognize(text, _tokenizer = nil)
      @terms.flat_map do |term|
        # Lookarounds, not \b: a term may begin or end with another character than a letter.
        pattern = Regexp.new("(?<![[:word:]])#{Regexp.escape(term)}(?![[:word:]])", @case_sensitive ? 0 : Regexp::IGNORECASE)
        PatternEntityRecognizer.new(@entity_type, [pattern]).recognize(text).each { |entity| entity[:source] = "gazetteer" }
      end
    end
  end

  # A model, patterns and gazetteers together.
  class HybridNER
    attr_reader :model_ner, :pattern_recognizers, :gazetteer_recognizers

    def initialize(model_id = nil, device: nil)
      @model_ner = NER.from_pretrained(model_id, device: device) if model_id
      @pattern_recognizers = []
      @gazetteer_recognizers = []
    end

    def add_pattern_recognizer(entity_type, patterns)
      @pattern_recognizers << PatternEntityRecognizer.new(entity_type, patterns)
      self
    end

    def add_gazetteer_recognizer(entity_type, terms, **options)
      @gazetteer_recognizers << GazetteerEntityRecognizer.new(entity_type, terms, **options)
      self
    end

    # All entities in the order of the text. Of two that overlap, the first stays; at one place, the
    # more confident.
    def extract_entities(text, confidence_threshold: 0.9)
      found = @model_ner ? @model_ner.extract_entities(text, confidence_threshold: confidence_threshold) : []
      found += (@pattern_recognizers + @gazetteer_recognizers).flat_map { |recognizer| recognizer.recognize(text) }
      found.sort_by { |entity| [entity[:start], -entity[:confidence]] }.each_with_object([]) do |entity, kept|
        kept << entity if kept.none? { |other| entity[:start] < other[:end] && other[:start] < entity[:end] }
      end
    end
  end
end
