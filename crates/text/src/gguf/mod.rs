//! Builds a tokenizer from the metadata of a GGUF file. It produces the ids that llama.cpp
//! produces.
//!
//! It differs from llama.cpp on purpose in three points:
//! - Ordinary text never becomes a control token, not even by merges.
//! - WordPiece normalizes as BERT does, and limits a word to 100 characters. llama.cpp has no such
//!   limit, and drops vowel signs of Indian scripts and all but the first letter of a Korean
//!   syllable.
//! - Decoding keeps the space before a full stop.

mod merges;
mod pipeline;
mod pre_tokenizers;
#[cfg(test)]
mod tests;
mod tokens;

use self::pipeline::{Pipeline, TemplateTokens};
use self::pre_tokenizers::{AddBos, Alphabet, pre_tokenizer};
use self::tokens::Tokens;
use super::open::catch_panic;
use super::spm;
use crate::Result as TextResult;
use sconce_formats::FileError;
use sconce_formats::gguf::{Gguf, Vocabulary};
use std::path::Path;
use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::{ModelWrapper, Tokenizer};

/// SentencePiece's character for a space.
const SPACE: &str = "\u{2581}";
/// Most characters of a WordPiece word. As in BERT, a longer word is unknown: matching its pieces
/// takes time cubic in its length.
const LONGEST_WORD: usize = 100;

/// How a tokenizer treats control tokens such as `<|im_start|>` in a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Specials {
    /// As control tokens: for the output of a chat template. Such a tokenizer can also decode.
    Parsed,
    /// As ordinary text: for user input. The vocabulary of such a tokenizer does not contain the
    /// names of control tokens, so no text can become one, and it cannot decode them.
    Text,
}

/// The tokenizer of the model in `file`. Control tokens in a text are parsed, as transformers does.
pub fn open(file: &Path) -> TextResult<Tokenizer> {
    let gguf = Gguf::open(&[file.to_path_buf()])?;
    tokenizer(&gguf.vocabulary()?, Specials::Parsed).map_err(|what| FileError::new(file, what).into())
}

/// The tokenizer that llama.cpp would use. Errors name the metadata key.
pub fn tokenizer(vocabulary: &Vocabulary<'_>, specials: Specials) -> Result<Tokenizer, String> {
    let tokens = Tokens::new(vocabulary, specials)?;
    let added = tokens.added(vocabulary)?;
    let builder = Builder { vocabulary, tokens };
    let (model, pipeline) = match vocabulary.model {
        "gpt2" => builder.byte_pairs(vocabulary.pre)?,
        "gemma4" => builder.byte_pairs(Some("gemma4"))?,
        "whitespace" => builder.byte_pairs(Some("whitespace"))?,
        "llama" => builder.sentence_pieces()?,
        "bert" => builder.word_pieces()?,
        "t5" => builder.unigram()?,
        other => {
            return Err(format!(
                "tokenizer.ggml.model is {other:?}; supported are gpt2, llama, bert, t5, gemma4 and whitespace"
            ));
        }
    };
    catch_panic(|| {
        let mut tokenizer = Tokenizer::new(model);
        tokenizer.with_normalizer(pipeline.normalizer()?)?;
        tokenizer.with_pre_tokenizer(pipeline.pre_tokenizer()?);
        tokenizer.with_decoder(pipeline.decoder()?);
        tokenizer.with_post_processor(pipeline.post_processor()?);
        tokenizer.add_tokens(added)?;
        Ok(tokenizer)
    })
    .map_err(|e| format!("tokenizer.ggml.tokens: cannot build a tokenizer from them: {e}"))
}

struct Builder<'a> {
    vocabulary: &'a Vocabulary<'a>,
    tokens: Tokens<'a>,
}

impl Builder<'_> {
    fn byte_pairs(&self, pre: Option<&str>) -> Result<(ModelWrapper, Pipeline), String> {
        let v = self.vocabulary;
        let kind = pre_tokenizer(pre).ok_or_else(|| {
            format!("tokenizer.ggml.pre is {:?}, a pre-tokenizer that is not supported", pre.unwrap_or(""))
        })?;
        let lines = v.merges.as_deref();
        let lines = lines.ok_or("tokenizer.ggml.merges is not there, and a BPE vocabulary needs it")?;
        let merges = merges::from_file(lines, &self.tokens)?;
        let bytes = kind.alphabet == Alphabet::Bytes;
        let builder = BPE::builder().byte_fallback(!bytes).ignore_merges(kind.whole_words);
        let model = bpe(builder, &self.tokens, merges)?;
        let add_bos = match kind.add_bos {
            AddBos::Always => true,
            default => v.add_bos.unwrap_or(default == AddBos::Yes),
        };
        // GPT-2's default id, which other vocabularies do not have.
        let default = match pre {
            Some("chatglm-bpe" | "glm4" | "glm5" | "gemma4") => None,
            _ => Some(11),
        };
        let pipeline = match kind.alphabet {
            Alphabet::Bytes => Pipeline::bytes(kind.cuts, &self.tokens.byte_lookalikes()?),
            Alphabet::Pieces => Pipeline::pieces(kind.cuts),
            Alphabet::Words => Pipeline::words(v.lowercase.unwrap_or(false)),
        };
        let bos = self.template_token(add_bos, ("bos_token_id", v.bos), default)?;
        let eos = self.template_token(v.add_eos.unwrap_or(false), ("eos_token_id", v.eos), Some(11))?;
        Ok((model, pipeline.with_template(self.template_tokens(bos, eos)?)))
    }

    fn sentence_pieces(&self) -> Result<(ModelWrapper, Pipeline), String> {
        let v = self.vocabulary;
        let scores = self.tokens.scores()?;
        let merges = merges::by_score(scores, &self.tokens)?;
        let mut builder = BPE::builder().byte_fallback(true);
        if let Some(unknown) = self.known(v.unk, Some(0)) {
            builder = builder.unk_token(self.tokens.name(unknown).into());
        }
        let model = bpe(builder, &self.tokens, merges)?;
        let bos = self.template_token(v.add_bos.unwrap_or(true), ("bos_token_id", v.bos), Some(1))?;
        let eos = self.template_token(v.add_eos.unwrap_or(false), ("eos_token_id", v.eos), Some(2))?;
        Ok((model, Pipeline::spm(v.add_space_prefix.unwrap_or(true)).with_template(self.template_tokens(bos, eos)?)))
    }

    fn word_pieces(&self) -> Result<(ModelWrapper, Pipeline), String> {
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
        let cls = self.template_token(true, ("bos_token_id", v.bos.or(v.cls)), Some(101))?;
        let sep = self.template_token(true, ("seperator_token_id", v.sep), Some(102))?;
        let template = TemplateTokens { between: None, second: 1, ..self.template_tokens(cls, sep)? };
        Ok((model.into(), Pipeline::bert(lowercase, v.strip_accents.unwrap_or(lowercase)).with_template(template)))
    }

    fn unigram(&self) -> Result<(ModelWrapper, Pipeline), String> {
        let v = self.vocabulary;
        let unknown = self.known(v.unk, Some(2));
        let unknown = unknown.ok_or("tokenizer.ggml.unknown_token_id is not there, and a unigram model needs it")?;
        let charsmap = v.precompiled_charsmap.unwrap_or_default();
        spm::check_charsmap(charsmap).map_err(|e| format!("tokenizer.ggml.precompiled_charsmap: {e}"))?;
        let pieces = self.tokens.pieces()?;
        let model = catch_panic(|| Unigram::from(pieces, Some(unknown as usize), false))
            .map_err(|e| format!("tokenizer.ggml.tokens: {e}"))?;
        let bos = self.template_token(v.add_bos.unwrap_or(false), ("bos_token_id", v.bos), None)?;
        let eos = self.template_token(v.add_eos.unwrap_or(true), ("eos_token_id", v.eos), Some(1))?;
        let pipeline = Pipeline::unigram(
            charsmap,
            v.add_space_prefix.unwrap_or(false),
            v.remove_extra_whitespaces.unwrap_or(false),
        );
        Ok((model.into(), pipeline.with_template(self.template_tokens(bos, eos)?)))
    }

    /// The id from the file, which [`Tokens::new`] has checked, or llama.cpp's default if the
    /// vocabulary has it.
    fn known(&self, id: Option<u32>, default: Option<u32>) -> Option<u32> {
        id.or(default.filter(|id| (*id as usize) < self.tokens.len()))
    }

    /// A special token that the template adds to every text, if `wanted`.
    fn template_token(
        &self,
        wanted: bool,
        (key, id): (&str, Option<u32>),
        default: Option<u32>,
    ) -> Result<Option<(String, u32)>, String> {
        if !wanted {
            return Ok(None);
        }
        let id = self.known(id, default);
        let id = id.ok_or_else(|| {
            format!("tokenizer.ggml.{key} is not there, and this tokenizer adds that token to every text")
        })?;
        Ok(Some((self.tokens.name(id).into(), id)))
    }

    fn template_tokens(
        &self,
        first: Option<(String, u32)>,
        last: Option<(String, u32)>,
    ) -> Result<TemplateTokens, String> {
        let v = self.vocabulary;
        let between = self.template_token(v.add_sep.unwrap_or(false), ("seperator_token_id", v.sep), None)?;
        Ok(TemplateTokens { first, last, between, second: 0 })
    }
}

fn bpe(
    builder: tokenizers::models::bpe::BpeBuilder,
    tokens: &Tokens<'_>,
    merges: Vec<(String, String)>,
) -> Result<ModelWrapper, String> {
    catch_panic(|| builder.vocab_and_merges(tokens.map(), merges).build())
        .map(ModelWrapper::from)
        .map_err(|e| format!("tokenizer.ggml.merges: {e}"))
}
