//! A tokenizer from the metadata of a GGUF file, giving the ids that llama.cpp gives.
//!
//! Where it is not llama.cpp's, on purpose: control tokens are never made of ordinary text, not even by merges that would add up to
//! one; WordPiece normalises as BERT does, where llama.cpp drops vowel signs of Indian scripts and all but the first letter of a
//! Korean syllable, and does not tell words of more than 100 characters; and decoding keeps the space before a full stop.

mod kinds;
mod merges;
mod parts;
#[cfg(test)]
mod tests;
mod tokens;

use self::kinds::{Alphabet, Begins, kind};
use self::parts::{Ends, Parts};
use self::tokens::Tokens;
use super::open::sound;
use super::spm;
use crate::Result as TextResult;
use sconce_formats::FileError;
use sconce_formats::gguf::{Gguf, Vocabulary};
use std::path::Path;
use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::{ModelWrapper, Tokenizer};

/// SentencePiece's sign for a space.
const SPACE: &str = "\u{2581}";
/// As BERT has it: longer words are unknown, and trying all their pieces takes the cube of their length.
const LONGEST_WORD: usize = 100;

/// What `<|im_start|>` and its like are when a text holds them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Specials {
    /// The tokens of that name: for what a chat template wrote. Such a tokenizer decodes, too.
    Parsed,
    /// Text like any other: for what people wrote. The vocabulary of such a tokenizer has no name for control tokens at all, so
    /// nothing a text says can become one; it is not for decoding.
    Text,
}

/// The tokenizer of the model in `file`, in which control tokens are what they look like, as transformers reads texts.
pub fn open(file: &Path) -> TextResult<Tokenizer> {
    let gguf = Gguf::open(&[file.to_path_buf()])?;
    tokenizer(&gguf.vocabulary()?, Specials::Parsed).map_err(|what| FileError::new(file, what).into())
}

/// The tokenizer that llama.cpp would use. Errors name the key to look at.
pub fn tokenizer(vocabulary: &Vocabulary<'_>, specials: Specials) -> Result<Tokenizer, String> {
    let tokens = Tokens::new(vocabulary, specials)?;
    let added = tokens.added(vocabulary)?;
    let plan = Plan { vocabulary, tokens };
    let (model, parts) = match vocabulary.model {
        "gpt2" => plan.byte_pairs(vocabulary.pre)?,
        "gemma4" => plan.byte_pairs(Some("gemma4"))?,
        "whitespace" => plan.byte_pairs(Some("whitespace"))?,
        "llama" => plan.sentence_pieces()?,
        "bert" => plan.word_pieces()?,
        "t5" => plan.unigram()?,
        other => {
            return Err(format!(
                "tokenizer.ggml.model is {other:?}; of the kinds there are, gpt2, llama, bert, t5, gemma4 and whitespace \
                 are read"
            ));
        }
    };
    sound(|| {
        let mut tokenizer = Tokenizer::new(model);
        tokenizer.with_normalizer(parts.normalizer()?)?;
        tokenizer.with_pre_tokenizer(parts.pre_tokenizer()?);
        tokenizer.with_decoder(parts.decoder()?);
        tokenizer.with_post_processor(parts.post_processor()?);
        tokenizer.add_tokens(added)?;
        Ok(tokenizer)
    })
    .map_err(|e| format!("tokenizer.ggml.tokens: no tokenizer can be made of them: {e}"))
}

struct Plan<'a> {
    vocabulary: &'a Vocabulary<'a>,
    tokens: Tokens<'a>,
}

impl Plan<'_> {
    fn byte_pairs(&self, pre: Option<&str>) -> Result<(ModelWrapper, Parts), String> {
        let v = self.vocabulary;
        let kind = kind(pre).ok_or_else(|| {
            format!(
                "tokenizer.ggml.pre is {:?}; how such texts are cut into words is not known here",
                pre.unwrap_or("")
            )
        })?;
        let lines = v.merges.as_deref();
        let lines = lines.ok_or("tokenizer.ggml.merges is not there, and a vocabulary of byte pairs needs it")?;
        let merges = merges::told(lines, &self.tokens)?;
        let bytes = kind.alphabet == Alphabet::Bytes;
        let builder = BPE::builder().byte_fallback(!bytes).ignore_merges(kind.whole_words);
        let model = bpe(builder, &self.tokens, merges)?;
        let add_bos = match kind.begins {
            Begins::Always => true,
            begins => v.add_bos.unwrap_or(begins == Begins::Yes),
        };
        // GPT-2's own, which other vocabularies do not have there.
        let default = match pre {
            Some("chatglm-bpe" | "glm4" | "glm5" | "gemma4") => None,
            _ => Some(11),
        };
        let parts = match kind.alphabet {
            Alphabet::Bytes => Parts::bytes(kind.cuts, &self.tokens.mistakable()?),
            Alphabet::Pieces => Parts::pieces(kind.cuts),
            Alphabet::Words => Parts::words(v.lowercase.unwrap_or(false)),
        };
        let bos = self.end(add_bos, ("bos_token_id", v.bos), default)?;
        let eos = self.end(v.add_eos.unwrap_or(false), ("eos_token_id", v.eos), Some(11))?;
        Ok((model, parts.ends(self.ends(bos, eos)?)))
    }

    fn sentence_pieces(&self) -> Result<(ModelWrapper, Parts), String> {
        let v = self.vocabulary;
        let scores = self.tokens.scores()?;
        let merges = merges::by_score(scores, &self.tokens)?;
        let mut builder = BPE::builder().byte_fallback(true);
        if let Some(unknown) = self.known(v.unk, Some(0)) {
            builder = builder.unk_token(self.tokens.name(unknown).into());
        }
        let model = bpe(builder, &self.tokens, merges)?;
        let bos = self.end(v.add_bos.unwrap_or(true), ("bos_token_id", v.bos), Some(1))?;
        let eos = self.end(v.add_eos.unwrap_or(false), ("eos_token_id", v.eos), Some(2))?;
        Ok((model, Parts::spm(v.add_space_prefix.unwrap_or(true)).ends(self.ends(bos, eos)?)))
    }

    fn word_pieces(&self) -> Result<(ModelWrapper, Parts), String> {
        let v = self.vocabulary;
        let unknown = self.known(v.unk, Some(100));
        let unknown = unknown.ok_or("tokenizer.ggml.unknown_token_id is not there, and WordPiece needs it")?;
        let model = WordPiece::builder()
            .vocab(self.tokens.map())
            .unk_token(self.tokens.name(unknown).into())
            .continuing_subword_prefix("##".into())
            .max_input_chars_per_word(LONGEST_WORD)
            .build()
            .map_err(|e| format!("tokenizer.ggml.tokens: {e}"))?;
        let lowercase = v.lowercase.unwrap_or(true);
        let cls = self.end(true, ("bos_token_id", v.bos.or(v.cls)), Some(101))?;
        let sep = self.end(true, ("seperator_token_id", v.sep), Some(102))?;
        let ends = Ends { between: None, second: 1, ..self.ends(cls, sep)? };
        Ok((model.into(), Parts::bert(lowercase, v.strip_accents.unwrap_or(lowercase)).ends(ends)))
    }

    fn unigram(&self) -> Result<(ModelWrapper, Parts), String> {
        let v = self.vocabulary;
        let unknown = self.known(v.unk, Some(2));
        let unknown = unknown.ok_or("tokenizer.ggml.unknown_token_id is not there, and a unigram model needs it")?;
        let charsmap = v.precompiled_charsmap.unwrap_or_default();
        spm::check_charsmap(charsmap).map_err(|e| format!("tokenizer.ggml.precompiled_charsmap: {e}"))?;
        let pieces = self.tokens.pieces()?;
        let model = sound(|| Unigram::from(pieces, Some(unknown as usize), false))
            .map_err(|e| format!("tokenizer.ggml.tokens: {e}"))?;
        let bos = self.end(v.add_bos.unwrap_or(false), ("bos_token_id", v.bos), None)?;
        let eos = self.end(v.add_eos.unwrap_or(true), ("eos_token_id", v.eos), Some(1))?;
        let parts =
            Parts::unigram(charsmap, v.add_space_prefix.unwrap_or(false), v.remove_extra_whitespaces.unwrap_or(false));
        Ok((model.into(), parts.ends(self.ends(bos, eos)?)))
    }

    /// The id a file gives, which [`Tokens::new`] has looked at, or llama.cpp's default where there is such a token.
    fn known(&self, id: Option<u32>, default: Option<u32>) -> Option<u32> {
        id.or(default.filter(|id| (*id as usize) < self.tokens.len()))
    }

    /// A token that every text gets.
    fn end(
        &self,
        wanted: bool,
        (key, id): (&str, Option<u32>),
        default: Option<u32>,
    ) -> Result<Option<(String, u32)>, String> {
        if !wanted {
            return Ok(None);
        }
        let id = self.known(id, default);
        let id = id.ok_or_else(|| format!("tokenizer.ggml.{key} is not there, and every text is to get that token"))?;
        Ok(Some((self.tokens.name(id).into(), id)))
    }

    fn ends(&self, first: Option<(String, u32)>, last: Option<(String, u32)>) -> Result<Ends, String> {
        let v = self.vocabulary;
        let between = self.end(v.add_sep.unwrap_or(false), ("seperator_token_id", v.sep), None)?;
        Ok(Ends { first, last, between, second: 0 })
    }
}

fn bpe(
    builder: tokenizers::models::bpe::BpeBuilder,
    tokens: &Tokens<'_>,
    merges: Vec<(String, String)>,
) -> Result<ModelWrapper, String> {
    sound(|| builder.vocab_and_merges(tokens.map(), merges).build())
        .map(ModelWrapper::from)
        .map_err(|e| format!("tokenizer.ggml.merges: {e}"))
}
