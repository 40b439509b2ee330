# frozen_string_literal: true

require_relative "spec_helper"

RSpec.describe Candle::EmbeddingModel do
  let(:texts) { ["A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby."] }

  def cosine(a, b) = a.zip(b).sum { |v, w| v * w }

  it "embeds a text as sentence-transformers does" do
    embedding = minilm.embedding(texts[0])
    expect(embedding.shape).to eq([1, 384])
    expect(embedding.values.first(4)).to close_to([0.0332416, 0.00440607, -0.00627694, 0.04837868])
    expect(cosine(embedding.values, embedding.values)).to be_within(1e-5).of(1)
  end

  it "embeds a list of texts in one call" do
    rows = minilm.embedding(texts).values.each_slice(384).to_a
    expect(cosine(rows[0], rows[1])).to be_within(1e-5).of(0.755337)
    expect(cosine(rows[0], rows[2])).to be_within(1e-5).of(-0.104959)
    expect(rows[1]).to close_to(minilm.embedding(texts[1]).values)
    expect(minilm.embedding([]).shape).to eq([0, 384])
  end

  it "pools as asked, in the engine and from hidden states" do
    states = minilm.embeddings(texts[0])
    expect(states.shape).to eq([1, 8, 384])
    expect(minilm.embeddings(texts.first(2)).map(&:shape)).to eq([[1, 8, 384], [1, 11, 384]])
    expect(minilm.pool_embedding(states).values).to close_to(minilm.embedding(texts[0], pooling_method: "pooled").values)
    expect(minilm.pool_and_normalize_embedding(states).values).to close_to(minilm.embedding(texts[0], pooling_method: "pooled_normalized").values)
    expect(minilm.pool_cls_embedding(states).values).to close_to(minilm.embedding(texts[0], pooling_method: :cls).values)
    expect { minilm.embedding("x", pooling_method: "max") }.to raise_error(ArgumentError, /pooling_method/)
  end

  it "reads the pooling and dense layers of the model's files" do
    model = described_class.from_pretrained(golden("st-mean-dense"), device: "cpu")
    cases = answers("st-mean-dense")
    expect(cases).not_to be_empty
    expect(model.embedding("cat").shape).to eq([1, model.dimension])
    expect(model.dimension).not_to eq(model.embeddings("cat").shape.last)
  end

  it "describes itself" do
    expect([minilm.model_id, minilm.device.to_s, minilm.model_type]).to eq([MINILM, "cpu", "minilm"])
    expect(minilm.options).to include("model_id" => MINILM, "embedding_size" => 384)
    expect(minilm.tokenizer.encode(texts[0])).to eq([101, 1037, 2158, 2003, 5983, 2833, 1012, 102])
    expect(minilm.inspect).to include("minilm", "cpu")
    expect(Candle::EmbeddingModelType.all).to include(Candle::EmbeddingModelType::MINILM)
    expect(Candle::EmbeddingModelType.suggested_model_paths.keys).to match_array(Candle::EmbeddingModelType.all)
    %i[JINA_BERT STANDARD_BERT DISTILBERT].each { |name| expect(Candle::EmbeddingModelType.const_get(name)).to be_a(String) }
  end

  it "takes the older constructor and checks its arguments" do
    model = described_class.new(model_path: golden("st-mean-dense"), device: "cpu", model_type: "standard_bert")
    expect(model.model_type).to eq("standard_bert")
    expect { described_class.from_pretrained(golden("st-mean-dense"), device: "cpu", embedding_size: 7) }.to raise_error(ArgumentError, /dimensions/)
    expect { described_class.from_pretrained("/no/such/folder") }.to raise_error(RuntimeError, /no such directory/)
    expect { described_class.from_pretrained(7) }.to raise_error(TypeError)
    expect { described_class.from_pretrained("\xff", device: "cpu") }.to raise_error(ArgumentError, /UTF-8/)
    expect { described_class.from_pretrained(golden("task-tag"), device: "nope") }.to raise_error(ArgumentError)
  end

  it "takes no other tokenizer than the model's own" do
    folder = golden("st-mean-dense")
    expect(described_class.from_pretrained(folder, device: "cpu", tokenizer: folder).tokenizer.options).to include("model_id" => folder)
    expect { described_class.from_pretrained(folder, device: "cpu", tokenizer: MINILM) }.to raise_error(ArgumentError, /tokenizer: "minilm" cannot be used/)
    expect { described_class.new(model_path: folder, device: "cpu", tokenizer_path: MINILM) }.to raise_error(ArgumentError, /comes with its own/)
    expect { Candle::NER.from_pretrained(golden("task-tag"), device: "cpu", tokenizer: MINILM) }.to raise_error(ArgumentError, /comes with its own/)
  end
end

RSpec.describe Candle::Reranker do
  let(:golden_answers) { answers("task-rerank") }
  let(:query) { golden_answers["queries"].first }
  let(:documents) { golden_answers["documents"] }

  it "ranks as the cross-encoder of sentence-transformers" do
    ranked = reranker.rerank(query, documents)
    expect(ranked.map { |r| r[:doc_id] }).to eq(golden_answers["ranking"].first)
    want = golden_values("task-rerank", "sigmoid")
    ranked.each do |r|
      expect(r[:score]).to be_within(1e-5).of(want[r[:doc_id]])
      expect(r[:text]).to eq(documents[r[:doc_id]])
    end
  end

  it "has poolings and logits" do
    { "pooler" => "pooler", cls: "cls", "mean" => "mean" }.each do |pooling, key|
      want = golden_values("task-rerank", key)
      ranked = reranker.rerank(query, documents, pooling_method: pooling, apply_sigmoid: false)
      expect(ranked.sort_by { |r| r[:doc_id] }.map { |r| r[:score] }).to close_to(want.first(documents.size))
    end
    text, score, index = reranker.rerank_with_options(query, documents, "pooler", true).first
    expect([text, index]).to eq([documents[index], golden_answers["ranking"].first.first])
    expect(score).to be_between(0, 1)
    expect(reranker.rerank(query, [])).to eq([])
    expect { reranker.rerank(query, documents, pooling_method: "max") }.to raise_error(ArgumentError)
    expect { reranker.rerank(query, "one") }.to raise_error(TypeError)
    expect { reranker.rerank(query, [1]) }.to raise_error(TypeError)
  end

  it "truncates pairs at max_length, at most at the model's own limit" do
    long = documents.map { |document| "#{document} " * 20 }
    scores = lambda do |**options|
      model = described_class.from_pretrained(golden("task-rerank"), device: "cpu", **options)
      lengths = long.map { |document| model.debug_tokenization(query, document)["token_ids"].size }
      [model.max_length, lengths.max, model.rerank(query, long, apply_sigmoid: false).sort_by { |r| r[:doc_id] }.map { |r| r[:score] }]
    end
    own, longest, full = scores.(max_length: nil)
    expect(longest).to eq(own)
    expect(scores.().first).to eq([own, 512].min)
    expect(scores.(max_length: own + 100)).to match([own, own, close_to(full)])
    limit, longest, short = scores.(max_length: 12)
    expect([limit, longest]).to eq([12, 12])
    expect(short).not_to close_to(full)
    expect(reranker.options).to include("max_length" => reranker.max_length)
    [0, -1, 2.5, "512"].each do |bad|
      expect { described_class.from_pretrained(golden("task-rerank"), device: "cpu", max_length: bad) }.to raise_error(ArgumentError, /max_length/)
    end
  end

  it "shows its tokens and describes itself" do
    pair = golden_answers["pairs"].first
    shown = reranker.debug_tokenization(golden_answers["queries"][pair["query"]], documents[pair["document"]])
    expect(shown).to include("token_ids" => pair["ids"], "token_type_ids" => pair["type_ids"])
    expect(shown["attention_mask"]).to eq([1] * pair["ids"].size)
    expect(shown["tokens"].first).to eq("[CLS]")
    expect([reranker.model_id, reranker.device.to_s]).to eq([golden("task-rerank"), "cpu"])
    expect(reranker.tokenizer).to be_a(Candle::Tokenizer)
    expect(reranker.options).to include("device" => "cpu")
    expect { described_class.from_pretrained(golden("task-tag"), device: "cpu", max_length: 512) }.to raise_error(RuntimeError, /tag/)
  end
end

RSpec.describe Candle::Tokenizer do
  let(:tokenizer) { described_class.from_pretrained(MINILM) }
  let(:ids) { [101, 1037, 2158, 2003, 5983, 2833, 1012, 102] }
  let(:text) { "A man is eating food." }

  it "encodes and decodes" do
    expect(tokenizer.encode(text)).to eq(ids)
    expect(tokenizer.encode(text, add_special_tokens: false)).to eq(ids[1..-2])
    expect(tokenizer.encode_to_tokens(text)).to eq(%w[[CLS] a man is eating food . [SEP]])
    expect(tokenizer.encode_with_tokens(text)).to eq(ids: ids, tokens: tokenizer.encode_to_tokens(text))
    expect(tokenizer.encode_batch([text, "food"])).to eq([ids, [101, 2833, 102]])
    expect(tokenizer.encode([text, "food"])).to eq(tokenizer.encode_batch([text, "food"]))
    expect(tokenizer.encode_batch_to_tokens(["food"])).to eq([%w[[CLS] food [SEP]]])
    expect(tokenizer.decode(ids)).to eq("a man is eating food.")
    expect(tokenizer.decode(ids, skip_special_tokens: false)).to start_with("[CLS]")
  end

  it "knows its vocabulary" do
    expect(tokenizer.id_to_token(2833)).to eq("food")
    expect(tokenizer.id_to_token(1 << 30)).to be_nil
    expect(tokenizer.get_vocab["food"]).to eq(2833)
    expect(tokenizer.vocab_size).to eq(30_522)
    expect(tokenizer.vocab_size(with_added_tokens: false)).to eq(tokenizer.get_vocab(with_added_tokens: false).size)
    expect(tokenizer.get_special_tokens).to include("cls_token" => 101, "sep_token" => 102)
    expect(tokenizer.options).to include("model_id" => MINILM)
    expect(tokenizer.inspect).to include(MINILM)
  end

  it "pads and truncates as a new object" do
    expect(tokenizer.with_padding(length: 4).encode("food")).to eq([101, 2833, 102, 0])
    expect(tokenizer.with_padding(max_length: 4, direction: :left).encode("food")).to eq([0, 101, 2833, 102])
    expect(tokenizer.with_padding(pad_id: 103).encode_batch(["food", text]).first.last).to eq(103)
    expect(tokenizer.with_padding(length: 4, pad_token: "[MASK]").encode("food").last).to eq(103)
    expect(tokenizer.with_truncation(4).encode(text)).to eq([101, 1037, 2158, 102])
    expect(tokenizer.encode("food")).to eq([101, 2833, 102])
    expect { tokenizer.with_padding(pad_id: 1 << 30) }.to raise_error(ArgumentError)
    expect { tokenizer.with_padding(direction: "up") }.to raise_error(ArgumentError)
  end

  it "opens files, and refuses others" do
    file = described_class.from_file(File.join(golden("task-tag"), "tokenizer.json"))
    expect(file.encode("the cat")).not_to be_empty
    expect { described_class.from_file("/no/such.json") }.to raise_error(RuntimeError)
    expect { described_class.from_file(__FILE__) }.to raise_error(RuntimeError)
    expect { tokenizer.encode("\xff") }.to raise_error(ArgumentError, /UTF-8/)
    expect { tokenizer.encode_pair("a", "\xff") }.to raise_error(ArgumentError, /UTF-8/)
    expect { tokenizer.with_padding(pad_token: "\xff") }.to raise_error(ArgumentError, /UTF-8/)
    expect { described_class.from_pretrained("\xff") }.to raise_error(ArgumentError, /UTF-8/)
    expect { described_class.from_file("\xff") }.to raise_error(ArgumentError, /UTF-8/)
    expect { tokenizer.encode(nil) }.to raise_error(TypeError)
    expect { tokenizer.decode(["a"]) }.to raise_error(TypeError)
  end
end

RSpec.describe Candle::NER do
  let(:cases) { answers("task-tag")["cases"] }

  it "finds the entities of the transformers pipeline, with offsets in characters" do
    found = tagger.extract_entities(cases.map { |c| c["text"] }, confidence_threshold: 0)
    cases.zip(found).each do |want, got|
      expect(got.map { |e| [e[:label], e[:start], e[:end]] }).to eq(want["simple"].map { |e| [e["entity_group"], e["start"], e["end"]] })
      got.zip(want["simple"]) { |e, w| expect(e[:confidence]).to be_within(1e-5).of(w["score"]) }
      got.each { |e| expect(e[:text]).to eq(want["text"][e[:start]...e[:end]]) }
    end
    expect(found.flatten.size).to be > 50
    expect(tagger.extract_entities("Anna lives in Paris.")).to eq([])
    expect(tagger.extract_entities("Anna lives in Paris.", confidence_threshold: 0.68).map { |e| e[:token_start]..e[:token_end] }).to eq([1..2])
  end

  it "shows every token" do
    tokens = tagger.predict_tokens("Anna lives in Paris.")
    expect(tokens.first["token"]).to eq("[CLS]")
    expect(tokens[1]).to include("token" => "an", "label" => "I-PER", "index" => 1)
    expect(tokens[1]["probabilities"].values.sum).to be_within(1e-5).of(1)
    expect(tokens[1]["confidence"]).to be_within(1e-3).of(0.686)
    expect(tagger.analyze("Anna lives in Paris.", confidence_threshold: 0.5).keys).to eq(%i[entities tokens])
  end

  it "knows its labels and formats entities" do
    expect(tagger.entity_types).to eq(%w[LOC PER])
    expect(tagger.labels["id2label"].values).to eq(answers("task-tag")["labels"])
    expect([tagger.supports_entity?("per"), tagger.supports_entity?("GENE")]).to eq([true, false])
    expect(tagger.extract_entity_type("Anna lives in Paris.", "loc", confidence_threshold: 0).map { |e| e[:label] }.uniq).to eq(["LOC"])
    expect(tagger.format_entities("Anna lives in Paris.", confidence_threshold: 0.68)).to eq("An[PER:0.69]na lives in Paris.")
    expect(tagger.model_info).to include("task-tag", "LOC")
    expect([tagger.model_id, tagger.device.to_s, tagger.options["num_labels"]]).to eq([golden("task-tag"), "cpu", tagger.labels["num_labels"]])
    expect(tagger.tokenizer).to be_a(Candle::Tokenizer)
    expect(described_class.suggested_models).to include(:general)
  end

  it "recognizes patterns and terms" do
    patterns = Candle::PatternEntityRecognizer.new("GENE", [/[A-Z]{2,}\d+/]).add_pattern("p53")
    expect(patterns.recognize("é TP53 and p53")).to eq([
      { text: "TP53", label: "GENE", start: 2, end: 6, confidence: 1.0, source: "pattern" },
      { text: "p53", label: "GENE", start: 11, end: 14, confidence: 1.0, source: "pattern" }
    ])
    terms = Candle::GazetteerEntityRecognizer.new("DRUG", ["Aspirin"]).add_terms("c++")
    expect(terms.recognize("aspirin, aspirins, C++!").map { |e| [e[:text], e[:start]] }).to eq([["aspirin", 0], ["C++", 19]])
    exact = Candle::GazetteerEntityRecognizer.new("DRUG", case_sensitive: true)
    Tempfile.create("terms") do |file|
      File.write(file.path, "# drugs\nAspirin\n\n")
      expect(exact.load_from_file(file.path).recognize("aspirin Aspirin").map { |e| e[:start] }).to eq([8])
    end
    hybrid = Candle::HybridNER.new(golden("task-tag"), device: "cpu").add_pattern_recognizer("NAME", [/Anna/])
    hybrid.add_gazetteer_recognizer("CITY", ["paris"])
    expect(hybrid.extract_entities("Anna lives in Paris.", confidence_threshold: 0.9).map { |e| e[:label] }).to eq(%w[NAME CITY])
    overlapping = hybrid.extract_entities("Anna lives in Paris.", confidence_threshold: 0.0)
    expect(overlapping.each_cons(2).all? { |a, b| a[:end] <= b[:start] }).to be(true)
    expect(overlapping.first[:label]).to eq("NAME")
    expect([hybrid.model_ner, hybrid.pattern_recognizers.size, hybrid.gazetteer_recognizers.size]).to match([described_class, 1, 1])
  end
end
