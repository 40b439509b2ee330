# frozen_string_literal: true

module Sconce
  # Named entities in a text, by a token classification model. Offsets count characters.
  class NER < Model
    class << self
      # `tokenizer` may only be the model itself.
      def from_pretrained(model_id, device: nil, tokenizer: nil) = new(model_id, device, tokenizer)

      def suggested_models
        {
          general: { model: "Babelscape/wikineural-multilingual-ner" },
          general_alt: { model: "dslim/bert-base-NER" },
          multilingual: { model: "Davlan/bert-base-multilingual-cased-ner-hrl" },
          biomedical: { model: "d4data/biomedical-ner-all" }
        }
      end

      private :new
    end

    # `[{text:, label:, start:, end:, confidence:, token_start:, token_end:}]`; for a list of texts a
    # list of such lists. Adjacent tokens of one type are one entity, and its confidence is their mean.
    def extract_entities(text, confidence_threshold: 0.9)
      each_of(text) do |texts|
        @native.scores(texts).zip(texts).map do |tokens, one|
          entities(tokens, one).select { |entity| entity[:confidence] >= confidence_threshold }
        end
      end
    end

    # `[{"token", "label", "confidence", "index", "probabilities"}]`, special tokens included.
    def predict_tokens(text)
      each_of(text) do |texts|
        @native.scores(texts).map do |tokens|
          tokens.each_with_index.map do |(id, _, _, _, scores), index|
            label, confidence = best(scores)
            { "token" => tokenizer.id_to_token(id), "label" => label, "confidence" => confidence, "index" => index,
              "probabilities" => label_names.zip(scores).to_h }
          end
        end
      end
    end

    def extract_entity_type(text, type, confidence_threshold: 0.9)
      found = extract_entities(text, confidence_threshold: confidence_threshold)
      of_type = ->(list) { list.select { |entity| entity[:label].casecmp?(type.to_s) } }
      text.is_a?(Array) ? found.map(&of_type) : of_type.call(found)
    end

    def analyze(text, confidence_threshold: 0.9)
      { entities: extract_entities(text, confidence_threshold: confidence_threshold), tokens: predict_tokens(text) }
    end

    # The text with a mark such as `[PER:0.98]` after each entity.
    def format_entities(text, confidence_threshold: 0.9)
      extract_entities(text, confidence_threshold: confidence_threshold).reverse.inject(text.dup) do |marked, entity|
        marked.insert(entity[:end], "[#{entity[:label]}:#{entity[:confidence].round(2)}]")
      end
    end

    # `{"id2label" => {0 => "O", …}, "label2id" => {"O" => 0, …}, "num_labels" => n}`
    def labels
      by_id = label_names.each_with_index.to_h { |label, id| [id, label] }
      { "id2label" => by_id, "label2id" => by_id.invert, "num_labels" => by_id.size }
    end

    # The types of entities, without `B-` and `I-`.
    def entity_types = label_names.reject { |label| label == "O" }.map { |label| type_of(label) }.uniq.sort
    def supports_entity?(type) = entity_types.any? { |known| known.casecmp?(type.to_s) }
    def model_info = "NER model #{@model_id} on #{@device}, #{label_names.size} labels: #{entity_types.join(", ")}"
    def options = super.merge("num_labels" => label_names.size, "entity_types" => entity_types)

    private

    def initialize(model_id, device, tokenizer)
      check_tokenizer(tokenizer, model_id)
      super(Native::Tagger, model_id, device)
    end

    def label_names = @label_names ||= @native.labels
    def type_of(label) = label.sub(/\A[BILUSE]-/, "")

    def best(scores)
      index = scores.each_index.max_by { |i| scores[i] }
      [label_names[index], scores[index]]
    end

    def entities(tokens, text)
      groups = []
      tokens.each_with_index do |(_, first, last, special, scores), index|
        next if special

        label, confidence = best(scores)
        next if label == "O"

        token = { type: type_of(label), index: index, start: first, end: last, confidence: confidence }
        continues?(groups.last&.last, token, label) ? groups.last << token : groups << [token]
      end
      groups.map { |group| entity(group, text) }
    end

    # `B-` begins a new entity, as in the strategy "simple" of transformers.
    def continues?(before, token, label)
      before && before[:index] == token[:index] - 1 && before[:type] == token[:type] && !label.start_with?("B-")
    end

    def entity(group, text)
      first, last = group.first, group.last
      {
        text: text[first[:start]...last[:end]], label: first[:type], start: first[:start], end: last[:end],
        confidence: group.sum { |token| token[:confidence] } / group.size,
        token_start: first[:index], token_end: last[:index] + 1
      }
    end
  end
end
