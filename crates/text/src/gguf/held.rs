//! The vocabulary that a GGUF file holds, as tokenizers are made of it.

use super::{Specials, Vocabulary, tokenizer};
use crate::Result;
use sconce_formats::FileError;
use sconce_formats::gguf::Gguf;
use std::path::Path;
use tokenizers::Tokenizer;

/// What the file holds of it.
pub fn held(gguf: &Gguf) -> Result<Vocabulary<'_>, FileError> {
    let held = gguf.vocabulary()?;
    Ok(Vocabulary {
        model: held.model,
        pre: held.pre,
        tokens: held.tokens.clone().collect(),
        scores: held.scores.clone().map(Iterator::collect),
        types: held.types.clone().map(Iterator::collect),
        merges: held.merges.clone().map(Iterator::collect),
        bos: held.bos,
        eos: held.eos,
        unk: held.unk,
        sep: held.sep,
        pad: held.pad,
        cls: held.cls,
        mask: held.mask,
        add_bos: held.add_bos,
        add_eos: held.add_eos,
        add_sep: held.add_sep,
        add_space_prefix: held.add_space_prefix,
        remove_extra_whitespaces: held.remove_extra_whitespaces,
        lowercase: held.lowercase,
        strip_accents: held.strip_accents,
        precompiled_charsmap: held.charsmap.map(<[u8]>::to_vec),
        name: gguf.metadata().str("general.name")?,
        architecture: Some(gguf.architecture()),
    })
}

/// The tokenizer of the model in `file`, in which control tokens are what they look like, as transformers reads texts.
pub fn open(file: &Path) -> Result<Tokenizer> {
    let gguf = Gguf::open(&[file.to_path_buf()])?;
    tokenizer(&held(&gguf)?, Specials::Parsed).map_err(|what| FileError::new(file, what).into())
}
