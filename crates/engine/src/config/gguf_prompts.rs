//! Prompts that the GGUF files of a family omit.

use std::collections::BTreeMap;

/// The prompts of a family whose GGUF files omit them. They are those of EmbeddingGemma, the only
/// model of its architecture, in the files of its authors.
pub(crate) fn family_prompts(architecture: &str) -> BTreeMap<String, String> {
    let prompts: &[(&str, &str)] = match architecture {
        "gemma-embedding" => &[
            ("query", SEARCH),
            ("document", DOCUMENT),
            ("BitextMining", SEARCH),
            ("Classification", "task: classification | query: "),
            ("Clustering", "task: clustering | query: "),
            ("InstructionRetrieval", "task: code retrieval | query: "),
            ("MultilabelClassification", "task: classification | query: "),
            ("PairClassification", "task: sentence similarity | query: "),
            ("Reranking", SEARCH),
            ("Retrieval", SEARCH),
            ("Retrieval-document", DOCUMENT),
            ("Retrieval-query", SEARCH),
            ("STS", "task: sentence similarity | query: "),
            ("Summarization", "task: summarization | query: "),
        ],
        _ => &[],
    };
    prompts.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect()
}

const SEARCH: &str = "task: search result | query: ";
const DOCUMENT: &str = "title: none | text: ";
