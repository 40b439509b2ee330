//! llama-nemotron-rerank: a cross-encoder that reads query and passage as one text, in a prompt that
//! its files omit. The prompt is the one that its authors trained with and publish (the model card
//! of nvidia/llama-nemotron-rerank-1b-v2).

use crate::config::FileFacts;
use crate::error::{Error, Result};
use sconce_text::{Encoded, Reader, TextOrPair, Truncate};

/// Whether the files are of such a model. No other model has its type and a classification head.
pub(super) fn is_question_reranker(facts: &FileFacts) -> bool {
    facts.model_type() == "llama_bidirec" && facts.is_sequence_classifier()
}

fn prompt((query, passage): &(&str, &str)) -> String {
    format!("question:{query} \n \n passage:{passage}")
}

/// The prompt for each query and document, truncated at the document's end if it is too long.
pub(super) fn encode(t: Reader<'_>, pairs: &[(&str, &str)]) -> Result<Vec<Encoded>> {
    if t.truncate() == Truncate::Left {
        let what = "this reranker's prompt begins with the query, so documents can only be truncated on the right";
        return Err(Error::Input(what.into()));
    }
    let prompts: Vec<String> = pairs.iter().map(prompt).collect();
    Ok(t.encode_pairs(&prompts.iter().map(|prompt| TextOrPair::from(prompt.as_str())).collect::<Vec<_>>())?)
}

#[cfg(test)]
mod tests {
    use super::prompt;

    #[test]
    fn prompt_is_that_of_the_training() {
        assert_eq!(prompt(&("who?", "me.")), "question:who? \n \n passage:me.");
    }
}
