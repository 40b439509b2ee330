//! The list of model families, as people know them: docs/models.md and `sconce show` are made from
//! it. What the code offers is asked of the registry; tests compare the rest with code and goldens.

use crate::{Task, dual, registry};

/// A family of models: one or more `model_type`s with the same code, heads and tests.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// The name that people know it by.
    pub name: &'static str,
    /// Its `model_type`s in `config.json`, all of one entry of the registry; [`GLINER`] for models
    /// with a configuration file of their own.
    pub types: &'static [&'static str],
    /// Its architecture names in GGUF files; several families may share one.
    pub gguf: &'static [&'static str],
    /// The task heads that `head` builds for it.
    pub heads: &'static [Task],
    /// The implementation that computed its goldens.
    pub reference: &'static str,
    /// The engine's test that compares it with them.
    pub test: &'static str,
    /// Ids of well-known models on the Hugging Face hub.
    pub models: &'static [&'static str],
}

impl Family {
    /// The family of a `model_type`.
    pub fn of(model_type: &str) -> Option<&'static Family> {
        FAMILIES.iter().find(|family| family.types.contains(&model_type))
    }

    /// Whether it generates text that continues a text.
    pub fn is_language_model(&self) -> bool {
        self.types.iter().all(|kind| registry::has_lm_head(kind))
    }

    /// Whether it generates text from text, with an encoder and a decoder.
    pub fn is_seq2seq(&self) -> bool {
        self.types.iter().all(|kind| registry::has_decoder(kind))
    }

    /// Whether it has towers for texts and images.
    pub fn is_dual(&self) -> bool {
        self.types.iter().all(|kind| dual::is_dual(kind))
    }

    /// Whether its models are GLiNERs, which have an encoder of another family.
    pub fn is_gliner(&self) -> bool {
        self.types == [GLINER]
    }
}

/// The `model_type` of a GLiNER, of which `gliner_config.json` need not say it.
pub const GLINER: &str = "gliner";

/// Every `model_type` that the code implements.
pub fn model_types() -> impl Iterator<Item = &'static str> {
    registry::model_types().chain(dual::model_types()).chain([GLINER])
}

/// The heads of most encoders.
const ENCODER: &[Task] = &[Task::Classify, Task::Tag, Task::Vocabulary];
/// The head of decoders, beside the LM head.
const DECODER: &[Task] = &[Task::Classify];

const TRANSFORMERS: &str = "transformers";
/// Where transformers lacks the model: the published code, rewritten in plain torch.
const PLAIN: &str = "plain torch";

/// Every family. Each `model_type` of the registry is in exactly one row.
pub static FAMILIES: &[Family] = &[
    Family {
        name: "BERT",
        types: &["bert"],
        gguf: &["bert"],
        heads: ENCODER,
        reference: TRANSFORMERS,
        test: "architectures",
        models: &[
            "sentence-transformers/all-MiniLM-L6-v2",
            "BAAI/bge-small-en-v1.5",
            "intfloat/e5-base-v2",
            "dslim/bert-base-NER",
            "colbert-ir/colbertv2.0",
        ],
    },
    Family {
        name: "DistilBERT",
        types: &["distilbert"],
        gguf: &["bert"],
        heads: ENCODER,
        reference: TRANSFORMERS,
        test: "architectures",
        models: &[
            "distilbert/distilbert-base-uncased-finetuned-sst-2-english",
            "sentence-transformers/multi-qa-distilbert-cos-v1",
        ],
    },
    Family {
        name: "ELECTRA",
        types: &["electra"],
        gguf: &[],
        heads: ENCODER,
        reference: TRANSFORMERS,
        test: "architectures",
        models: &["google/electra-base-discriminator", "cross-encoder/ms-marco-electra-base"],
    },
    Family {
        name: "RoBERTa",
        types: &["roberta"],
        gguf: &["bert"],
        heads: ENCODER,
        reference: TRANSFORMERS,
        test: "architectures",
        models: &["sentence-transformers/all-distilroberta-v1", "cardiffnlp/twitter-roberta-base-sentiment-latest"],
    },
    Family {
        name: "XLM-RoBERTa",
        types: &["xlm-roberta"],
        gguf: &["bert", "jina-bert-v3"],
        heads: ENCODER,
        reference: TRANSFORMERS,
        test: "architectures",
        models: &[
            "BAAI/bge-m3",
            "BAAI/bge-reranker-v2-m3",
            "jinaai/jina-reranker-v2-base-multilingual",
            "intfloat/multilingual-e5-large",
        ],
    },
    Family {
        name: "jina-embeddings-v3",
        types: &["jina_embeddings_v3"],
        gguf: &[],
        heads: ENCODER,
        reference: TRANSFORMERS,
        test: "architectures",
        models: &["jinaai/jina-embeddings-v3"],
    },
    Family {
        name: "CamemBERT",
        types: &["camembert"],
        gguf: &[],
        heads: ENCODER,
        reference: TRANSFORMERS,
        test: "architectures",
        models: &["almanach/camembert-base", "Jean-Baptiste/camembert-ner"],
    },
    Family {
        name: "MPNet",
        types: &["mpnet"],
        gguf: &[],
        heads: ENCODER,
        reference: TRANSFORMERS,
        test: "architectures",
        models: &["sentence-transformers/all-mpnet-base-v2", "sentence-transformers/multi-qa-mpnet-base-dot-v1"],
    },
    Family {
        name: "DeBERTa",
        types: &["deberta"],
        gguf: &[],
        heads: ENCODER,
        reference: TRANSFORMERS,
        test: "deberta",
        models: &["microsoft/deberta-base-mnli"],
    },
    Family {
        name: "DeBERTa v2 and v3",
        types: &["deberta-v2"],
        gguf: &[],
        heads: ENCODER,
        reference: TRANSFORMERS,
        test: "deberta",
        models: &["cross-encoder/nli-deberta-v3-base", "mixedbread-ai/mxbai-rerank-base-v1"],
    },
    Family {
        name: "ModernBERT",
        types: &["modernbert"],
        gguf: &["modern-bert"],
        heads: ENCODER,
        reference: TRANSFORMERS,
        test: "architectures",
        models: &["answerdotai/ModernBERT-base", "nomic-ai/modernbert-embed-base", "lightonai/GTE-ModernColBERT-v1"],
    },
    Family {
        name: "EuroBERT",
        types: &["eurobert"],
        gguf: &[],
        heads: ENCODER,
        reference: TRANSFORMERS,
        test: "architectures",
        models: &["EuroBERT/EuroBERT-210m", "EuroBERT/EuroBERT-610m"],
    },
    Family {
        name: "GTE (NewModel)",
        types: &["new", "gte"],
        gguf: &[],
        heads: ENCODER,
        reference: TRANSFORMERS,
        test: "architectures",
        models: &["Alibaba-NLP/gte-base-en-v1.5", "Alibaba-NLP/gte-multilingual-base"],
    },
    Family {
        name: "NomicBERT",
        types: &["nomic_bert"],
        gguf: &["nomic-bert", "nomic-bert-moe"],
        heads: ENCODER,
        reference: PLAIN,
        test: "architectures",
        models: &["nomic-ai/nomic-embed-text-v1.5", "nomic-ai/nomic-embed-text-v2-moe"],
    },
    Family {
        name: "JinaBERT v2",
        types: &["jina_bert"],
        gguf: &["jina-bert-v2"],
        heads: ENCODER,
        reference: PLAIN,
        test: "architectures",
        models: &["jinaai/jina-embeddings-v2-base-en", "jinaai/jina-embeddings-v2-base-code"],
    },
    Family {
        name: "T5, mT5, UMT5",
        types: &["t5", "mt5", "umt5"],
        gguf: &["t5", "t5encoder"],
        heads: &[Task::Classify, Task::Tag],
        reference: TRANSFORMERS,
        test: "seq2seq",
        models: &["google/flan-t5-base", "google/mt5-base", "sentence-transformers/sentence-t5-base"],
    },
    Family {
        name: "model2vec",
        types: &["model2vec"],
        gguf: &[],
        heads: &[],
        reference: "model2vec and sentence-transformers",
        test: "tasks",
        models: &["minishlab/potion-base-8M", "sentence-transformers/static-retrieval-mrl-en-v1"],
    },
    Family {
        name: "Llama",
        types: &["llama"],
        gguf: &["llama"],
        heads: DECODER,
        reference: TRANSFORMERS,
        test: "decoders",
        models: &["meta-llama/Llama-3.2-3B-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"],
    },
    Family {
        name: "Llama, bidirectional",
        types: &["llama_bidirec"],
        gguf: &[],
        heads: DECODER,
        reference: TRANSFORMERS,
        test: "architectures",
        models: &["nvidia/llama-nemotron-embed-1b-v2", "nvidia/llama-nemotron-rerank-1b-v2"],
    },
    Family {
        name: "pplx-embed",
        types: &["bidirectional_pplx_qwen3"],
        gguf: &[],
        heads: DECODER,
        reference: TRANSFORMERS,
        test: "architectures",
        models: &["perplexity-ai/pplx-embed-v1-0.6b"],
    },
    Family {
        name: "Mistral",
        types: &["mistral"],
        gguf: &["llama"],
        heads: DECODER,
        reference: TRANSFORMERS,
        test: "decoders",
        models: &["mistralai/Mistral-7B-Instruct-v0.3", "intfloat/e5-mistral-7b-instruct"],
    },
    Family {
        name: "Mixtral",
        types: &["mixtral"],
        gguf: &["llama"],
        heads: DECODER,
        reference: TRANSFORMERS,
        test: "decoders",
        models: &["mistralai/Mixtral-8x7B-Instruct-v0.1"],
    },
    Family {
        name: "Qwen 1",
        types: &["qwen"],
        gguf: &["qwen"],
        heads: DECODER,
        reference: "llama.cpp",
        test: "decoders",
        models: &["Qwen/Qwen-7B-Chat"],
    },
    Family {
        name: "Qwen2 and Qwen2.5",
        types: &["qwen2"],
        gguf: &["qwen2"],
        heads: DECODER,
        reference: TRANSFORMERS,
        test: "decoders",
        models: &["Qwen/Qwen2.5-7B-Instruct", "Alibaba-NLP/gte-Qwen2-1.5B-instruct"],
    },
    Family {
        name: "Qwen2-MoE",
        types: &["qwen2_moe"],
        gguf: &["qwen2moe"],
        heads: DECODER,
        reference: TRANSFORMERS,
        test: "decoders",
        models: &["Qwen/Qwen1.5-MoE-A2.7B-Chat"],
    },
    Family {
        name: "Qwen3",
        types: &["qwen3"],
        gguf: &["qwen3"],
        heads: DECODER,
        reference: TRANSFORMERS,
        test: "decoders",
        models: &["Qwen/Qwen3-4B", "Qwen/Qwen3-Embedding-0.6B", "Qwen/Qwen3-Reranker-0.6B", "voyageai/voyage-4-nano"],
    },
    Family {
        name: "Qwen3-MoE",
        types: &["qwen3_moe"],
        gguf: &["qwen3moe"],
        heads: DECODER,
        reference: TRANSFORMERS,
        test: "decoders",
        models: &["Qwen/Qwen3-30B-A3B"],
    },
    Family {
        name: "Phi-2",
        types: &["phi"],
        gguf: &["phi2"],
        heads: DECODER,
        reference: TRANSFORMERS,
        test: "decoders",
        models: &["microsoft/phi-2"],
    },
    Family {
        name: "Phi-3 and Phi-4",
        types: &["phi3"],
        gguf: &["phi3"],
        heads: DECODER,
        reference: TRANSFORMERS,
        test: "decoders",
        models: &["microsoft/Phi-3.5-mini-instruct", "microsoft/Phi-4-mini-instruct", "microsoft/phi-4"],
    },
    Family {
        name: "StableLM",
        types: &["stablelm", "stablelm_epoch"],
        gguf: &["stablelm"],
        heads: DECODER,
        reference: TRANSFORMERS,
        test: "decoders",
        models: &["stabilityai/stablelm-2-1_6b-chat", "stabilityai/stablelm-3b-4e1t"],
    },
    Family {
        name: "Falcon",
        types: &["falcon", "RefinedWeb", "RefinedWebModel"],
        gguf: &["falcon"],
        heads: DECODER,
        reference: TRANSFORMERS,
        test: "decoders",
        models: &["tiiuae/falcon-7b-instruct", "tiiuae/falcon-11B"],
    },
    Family {
        name: "Gemma 1 to 3",
        types: &["gemma", "gemma2", "gemma3", "gemma3_text"],
        gguf: &["gemma", "gemma2", "gemma3", "gemma-embedding"],
        heads: DECODER,
        reference: TRANSFORMERS,
        test: "decoders",
        models: &[
            "google/gemma-3-4b-it",
            "google/gemma-2-2b-it",
            "google/embeddinggemma-300m",
            "BAAI/bge-reranker-v2-gemma",
        ],
    },
    Family {
        name: "GPT-2",
        types: &["gpt2"],
        gguf: &["gpt2"],
        heads: DECODER,
        reference: TRANSFORMERS,
        test: "decoders",
        models: &["openai-community/gpt2"],
    },
    Family {
        name: "GPT-NeoX",
        types: &["gpt_neox"],
        gguf: &["gptneox"],
        heads: DECODER,
        reference: TRANSFORMERS,
        test: "decoders",
        models: &["EleutherAI/pythia-1.4b", "EleutherAI/gpt-neox-20b", "stabilityai/stablelm-tuned-alpha-3b"],
    },
    Family {
        name: "CLIP",
        types: &["clip", "clip_text_model", "clip_vision_model"],
        gguf: &[],
        heads: &[],
        reference: TRANSFORMERS,
        test: "towers",
        models: &["openai/clip-vit-base-patch32", "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"],
    },
    Family {
        name: "SigLIP",
        types: &["siglip", "siglip_text_model", "siglip_vision_model"],
        gguf: &[],
        heads: &[],
        reference: TRANSFORMERS,
        test: "towers",
        models: &["google/siglip-base-patch16-224", "google/siglip2-base-patch16-224"],
    },
    Family {
        name: "GLiNER",
        types: &[GLINER],
        gguf: &[],
        heads: &[],
        reference: "gliner",
        test: "gliner",
        models: &[
            "urchade/gliner_medium-v2.1",
            "gliner-community/gliner_medium-v2.5",
            "knowledgator/gliner-multitask-large-v0.5",
        ],
    },
];
