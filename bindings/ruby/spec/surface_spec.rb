# frozen_string_literal: true

require_relative "spec_helper"

# The public API of red-candle 1.8.1, as shared by its users: class methods, then instance methods.
SURFACE = {
  Candle => ["build_info logger logger= configure_logging", ""],
  Candle::BuildInfo => ["cuda_available? metal_available? mkl_available? accelerate_available? cudnn_available? summary display_cuda_info", ""],
  Candle::Utils => ["cuda_is_available get_num_threads has_accelerate has_mkl", ""],
  Candle::DeviceUtils => ["best_device", ""],
  Candle::LoggerConfig => ["new", "verbose! info! quiet! silent! log_to_stdout! log_to_file! disable! level= output= formatter= level output formatter"],
  Candle::Device => ["cpu cuda metal best default available_devices", "to_s inspect =="],
  Candle::DType => ["new", "to_s inspect"],
  Candle::Tensor => [
    "new ones zeros rand randn",
    "values values_f32 item to_f to_i shape stride dtype device rank elem_count each " \
    "sin cos log sqr sqrt recip exp powf + - * / matmul broadcast_add broadcast_sub broadcast_mul broadcast_div " \
    "where_cond index_select sum mean sum_all mean_all max_keepdim min_keepdim argmax_keepdim argmin_keepdim " \
    "reshape broadcast_as broadcast_left squeeze unsqueeze get [] transpose t narrow flatten_from flatten_to flatten_all " \
    "contiguous is_contiguous is_fortran_contiguous detach copy to_dtype to_device map select inject"
  ],
  Candle::EmbeddingModel => [
    "from_pretrained new",
    "embedding embeddings pool_embedding pool_and_normalize_embedding pool_cls_embedding model_type tokenizer model_id device options"
  ],
  Candle::EmbeddingModelType => ["all suggested_model_paths", ""],
  Candle::Reranker => ["from_pretrained", "rerank rerank_with_options debug_tokenization tokenizer model_id device options"],
  Candle::Tokenizer => [
    "from_file from_pretrained",
    "encode encode_to_tokens encode_with_tokens encode_batch encode_batch_to_tokens decode id_to_token get_vocab vocab_size " \
    "with_padding with_truncation get_special_tokens options"
  ],
  Candle::LLM => [
    "from_pretrained register_tokenizer guess_tokenizer",
    "generate generate_stream chat chat_stream chat_with_tools generate_structured generate_regex constraint_from_schema " \
    "constraint_from_regex apply_chat_template tokenizer eos_token model_eos_tokens clear_cache model_name model_id device options"
  ],
  Candle::GenerationConfig => [
    "new default deterministic balanced creative",
    "max_length temperature top_p top_k repetition_penalty seed stop_sequences include_prompt debug_tokens constraint " \
    "stop_on_constraint_satisfaction stop_on_match with options"
  ],
  Candle::StructuredConstraint => ["from_schema from_regex from_schema_with_model from_regex_with_model", ""],
  Candle::NER => [
    "from_pretrained suggested_models",
    "extract_entities predict_tokens extract_entity_type analyze format_entities labels entity_types supports_entity? tokenizer " \
    "model_info model_id device options"
  ],
  Candle::PatternEntityRecognizer => ["new", "add_pattern recognize"],
  Candle::GazetteerEntityRecognizer => ["new", "add_terms load_from_file recognize"],
  Candle::HybridNER => ["new", "add_pattern_recognizer add_gazetteer_recognizer extract_entities"],
  Candle::Tool => ["new", "call to_tool_definition name description parameters"],
  Candle::ToolCall => ["new", "name arguments"],
  Candle::ToolCallResult => ["new", "tool_calls tool_results text_response raw_response has_tool_calls? success?"],
  Candle::ToolCallParser => ["new", "parse"],
  Candle::Agent => ["new", "run"],
  Candle::AgentResult => ["new", "response messages iterations tool_calls_made"],
  Candle::AgentMaxIterationsError => ["new", "message"],
  Candle::VLM => ["from_pretrained", "describe ask tokenizer model_id device"]
}.freeze

RSpec.describe "the API of red-candle" do
  SURFACE.each do |owner, (class_methods, instance_methods)|
    it "has #{owner}" do
      missing = class_methods.split.reject { |name| owner.respond_to?(name) }.map { |name| ".#{name}" }
      missing += instance_methods.split.reject { |name| owner.public_method_defined?(name) }.map { |name| "##{name}" }
      expect(missing).to eq([])
    end
  end

  it "has its constants" do
    expect(Candle::LLM::TOKENIZER_REGISTRY).to be_a(Hash)
    expect(Candle::EmbeddingModelType.constants).to include(:JINA_BERT, :STANDARD_BERT, :MINILM, :DISTILBERT)
    expect(Candle::Error.ancestors).to include(RuntimeError)
    expect(Candle::Tensor.ancestors).to include(Enumerable)
  end

  # `model_type:` and `embedding_size:` of the embedder, for example, in the forms that programs write.
  it "has its keywords" do
    keywords = ->(method) { method.parameters.filter_map { |kind, name| name if %i[key keyreq].include?(kind) } }
    expect(keywords.(Candle::EmbeddingModel.method(:from_pretrained))).to match_array(%i[device tokenizer model_type embedding_size])
    expect(keywords.(Candle::EmbeddingModel.method(:new))).to match_array(%i[model_path tokenizer_path device model_type embedding_size])
    expect(keywords.(Candle::Reranker.method(:from_pretrained))).to match_array(%i[device max_length])
    expect(keywords.(Candle::LLM.method(:from_pretrained))).to match_array(%i[device gguf_file tokenizer])
    expect(keywords.(Candle::NER.method(:from_pretrained))).to match_array(%i[device tokenizer])
    expect(keywords.(Candle::VLM.method(:from_pretrained))).to match_array(%i[device])
    expect(keywords.(Candle::LLM.instance_method(:generate))).to match_array(%i[config reset_cache])
    expect(keywords.(Candle::LLM.instance_method(:chat_with_tools))).to include(:tools, :execute)
    expect(keywords.(Candle::LLM.instance_method(:generate_structured))).to include(:schema)
    expect(keywords.(Candle::LLM.instance_method(:generate_regex))).to include(:pattern, :stop_on_match)
    expect(keywords.(Candle::Reranker.instance_method(:rerank))).to match_array(%i[pooling_method apply_sigmoid])
    expect(keywords.(Candle::Tokenizer.instance_method(:with_padding))).to match_array(%i[length max_length direction pad_id pad_token])
    expect(keywords.(Candle::Agent.instance_method(:initialize))).to match_array(%i[tools system_prompt max_iterations])
  end

  it "is in docs/ruby.md, class by class", if: ENV["SCONCE_DOCS"] do
    documented = File.read(File.join(ENV.fetch("SCONCE_DOCS"), "ruby.md"))
    names = SURFACE.keys.map { |owner| owner.name.split("::").last } - ["Sconce"]
    expect(names.reject { |name| documented.include?("`#{name}`") }).to eq([])
  end
end
