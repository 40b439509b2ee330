//! The vocabulary of a GGUF file: parallel lists of tokens, ids of special tokens, and text
//! preparation.

use super::metadata::Metadata;
use crate::FileError;

/// A vocabulary. Missing keys are `None`; their default depends on the model.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the names of the keys")]
pub struct Vocabulary<'a> {
    /// `llama` (SentencePiece's BPE), `gpt2` (BPE over bytes), `bert` (WordPiece), `t5` (Unigram)
    /// and others.
    pub model: &'a str,
    /// The pre-tokenizer: `llama-bpe`, `qwen2`, `default`, …
    pub pre: Option<&'a str>,
    pub tokens: Vec<&'a str>,
    /// One per token.
    pub scores: Option<Vec<f32>>,
    /// One per token: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub types: Option<Vec<i32>>,
    /// Pairs with a space between, in order of priority.
    pub merges: Option<Vec<&'a str>>,
    /// The precompiled normalizer of unigram models.
    pub precompiled_charsmap: Option<&'a [u8]>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    /// Ends a turn, if it is not `eos`.
    pub eot: Option<u32>,
    /// Ends a message that is not the last of its turn.
    pub eom: Option<u32>,
    pub unk: Option<u32>,
    pub sep: Option<u32>,
    pub pad: Option<u32>,
    pub mask: Option<u32>,
    /// BERT's first token.
    pub cls: Option<u32>,
    pub add_bos: Option<bool>,
    pub add_eos: Option<bool>,
    pub add_sep: Option<bool>,
    pub add_space_prefix: Option<bool>,
    pub remove_extra_whitespaces: Option<bool>,
    pub lowercase: Option<bool>,
    pub strip_accents: Option<bool>,
    /// `general.name` and `general.architecture`, which change how llama.cpp tokenizes.
    pub name: Option<&'a str>,
    pub architecture: Option<&'a str>,
}

pub(super) fn read<'a>(metadata: Metadata<'a>) -> Result<Vocabulary<'a>, FileError> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let missing = |name: &str| metadata.fault(format!("has no vocabulary (`{}`)", key(name)));
    let tokens = metadata.strs(&key("tokens"))?.ok_or_else(|| missing("tokens"))?;
    let count = tokens.len();
    let lengths = |name: &str, length: Option<usize>| match length {
        Some(n) if n != count => Err(metadata.fault(format!("has {n} `{}` for {count} tokens", key(name)))),
        _ => Ok(()),
    };
    let scores = metadata.f32s(&key("scores"))?;
    lengths("scores", scores.as_ref().map(ExactSizeIterator::len))?;
    let types = metadata.i32s(&key("token_type"))?;
    lengths("token_type", types.as_ref().map(ExactSizeIterator::len))?;
    let id = |names: &[&str]| {
        for name in names {
            if let Some(id) = metadata.u64(&key(name))? {
                // Some files write this for a missing token.
                if id == u64::from(u32::MAX) {
                    return Ok(None);
                }
                return match u32::try_from(id) {
                    Ok(short) if (short as usize) < count => Ok(Some(short)),
                    _ => Err(metadata.fault(format!("has {id} for `{}`, but only {count} tokens", key(name)))),
                };
            }
        }
        Ok(None)
    };
    let flag = |name: &str| metadata.bool(&key(name));
    Ok(Vocabulary {
        model: metadata.str(&key("model"))?.ok_or_else(|| missing("model"))?,
        pre: metadata.str(&key("pre"))?,
        tokens: tokens.collect(),
        scores: scores.map(Iterator::collect),
        types: types.map(Iterator::collect),
        merges: metadata.strs(&key("merges"))?.map(Iterator::collect),
        precompiled_charsmap: metadata.bytes(&key("precompiled_charsmap"))?,
        bos: id(&["bos_token_id"])?,
        eos: id(&["eos_token_id"])?,
        eot: id(&["eot_token_id"])?,
        eom: id(&["eom_token_id"])?,
        unk: id(&["unknown_token_id"])?,
        // GGUF misspells it; the correct spelling is accepted, too.
        sep: id(&["seperator_token_id", "separator_token_id"])?,
        pad: id(&["padding_token_id"])?,
        mask: id(&["mask_token_id"])?,
        cls: id(&["cls_token_id"])?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_sep: flag("add_sep_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        remove_extra_whitespaces: flag("remove_extra_whitespaces")?,
        lowercase: flag("normalizer.lowercase")?,
        strip_accents: flag("normalizer.strip_accents")?,
        name: metadata.str("general.name")?,
        architecture: metadata.str("general.architecture")?,
    })
}
