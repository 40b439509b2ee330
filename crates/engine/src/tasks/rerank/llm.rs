//! Language models as rerankers. The prompt asks whether a document answers a query, and the score
//! is the logit of "yes" minus that of "no". Qwen3-Reranker (Zhang et al. 2025, arXiv:2506.05176)
//! was trained with exactly this prompt.

use crate::config::{FileFacts, plain_input_spec};
use crate::error::{Error, Result};
use crate::tasks::classify::{ClassifierSpec, Scores};
use sconce_text::{Encoded, ModelTokenizer, Reader, TokenizerOptions, Truncate};
use std::path::Path;

/// The prompt before query and document.
const PROMPT_PREFIX: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct \
                      provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";

/// The prompt after them; the next token is the answer.
const PROMPT_SUFFIX: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// The default instruction.
const INSTRUCTION: &str = "Given a web search query, retrieve relevant passages that answer the query";

/// The longest prompt, as the model's authors set it.
const LONGEST: usize = 8192;

/// Whether the files are of a language model that can rerank: it has no classification head.
pub(super) fn is_llm_reranker(facts: &FileFacts) -> bool {
    facts.class() == "Qwen3ForCausalLM"
}

/// Reads the settings of such a model.
pub(super) fn spec(root: &Path) -> Result<ClassifierSpec> {
    let mut input_spec = plain_input_spec(root)?;
    input_spec.max_tokens = Some(input_spec.max_tokens.map_or(LONGEST, |most| most.min(LONGEST)));
    let tokenizer = ModelTokenizer::load(root, LONGEST, TokenizerOptions::default())?;
    let id = |word: &str| {
        let what = || format!("its vocabulary has no token `{word}`, which a language model needs to rerank");
        tokenizer.id(word).ok_or_else(|| Error::file(root, what()))
    };
    let words = ["yes", "no"];
    Ok(ClassifierSpec {
        input_spec,
        labels: words.map(String::from).to_vec(),
        scores: Scores::Softmax,
        has_pooler: false,
        answers: vec![id(words[0])?, id(words[1])?],
    })
}

/// The prompt around query and document.
#[derive(Clone)]
pub(crate) struct YesNoPrompt {
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    pub(crate) instruction: String,
}

impl YesNoPrompt {
    pub(crate) fn new(root: &Path, tokenizer: &ModelTokenizer) -> Result<YesNoPrompt> {
        let fixed = tokenizer.reader(Truncate::Right).encode_bare(&[PROMPT_PREFIX, PROMPT_SUFFIX], usize::MAX)?;
        let mut fixed = fixed.into_iter().map(|e| e.ids);
        let (prefix, suffix) = (fixed.next().unwrap_or_default(), fixed.next().unwrap_or_default());
        let (most, taken) = (tokenizer.max_tokens(), prefix.len() + suffix.len());
        if taken >= most {
            let what = format!("the reranking prompt alone takes {taken} tokens of the model's {most}");
            return Err(Error::file(root, what));
        }
        Ok(YesNoPrompt { prefix, suffix, instruction: INSTRUCTION.into() })
    }

    /// The prompt for each query and document, truncated at the document's end if it is too long.
    pub(crate) fn encode(&self, t: Reader<'_>, pairs: &[(&str, &str)]) -> Result<Vec<Encoded>> {
        if t.truncate() == Truncate::Left {
            let what =
                "this reranker's prompt begins with its instruction, so documents can only be truncated on the right";
            return Err(Error::Input(what.into()));
        }
        let taken = self.prefix.len() + self.suffix.len();
        let room = t.max_tokens().checked_sub(taken).filter(|room| *room > 0).ok_or_else(|| {
            Error::Input(format!("the reranking prompt alone takes {taken} tokens; allow more than {}", t.max_tokens()))
        })?;
        let prompts = |(query, document): &(&str, &str)| {
            format!("<Instruct>: {}\n<Query>: {query}\n<Document>: {document}", self.instruction)
        };
        let prompts: Vec<String> = pairs.iter().map(prompts).collect();
        let mut encoded = t.encode_bare(&prompts, room)?;
        for e in &mut encoded {
            let ids = std::mem::take(&mut e.ids);
            e.ids = [&self.prefix[..], &ids, &self.suffix].concat();
        }
        Ok(encoded)
    }
}
