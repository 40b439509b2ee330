//! The text settings of a language model: tokenizer, detokenizer, chat templates, end tokens and
//! recommended sampling parameters.

use super::generation_config::{self, count, greedy, unsupported_note, unsupported_notes};
use crate::error::{Error, Result};
use crate::sampling::GenerationParams;
use sconce_formats::gguf::Gguf;
use sconce_formats::{Model, optional_json};
use sconce_text::chat::{ChatTemplate, ChatTemplates, TemplateError};
use sconce_text::gguf::{self as metadata, Specials};
use sconce_text::{LONGEST_TOKEN, catch_panic, open};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use tokenizers::{Encoding, Tokenizer};

/// End-of-turn tokens of model families. Files made from older checkpoints name only the
/// end-of-text token.
const END_OF_TURN: [&str; 10] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|END_OF_TURN_TOKEN|>",
    "<EOT>",
    "<|return|>",
];

/// The text settings of a language model.
pub(crate) struct LmText {
    /// The tokenizer that recognizes control tokens. It also detokenizes.
    pub(crate) tokenizer: Arc<Tokenizer>,
    /// The tokenizer that treats control tokens as text. Made when a text first contains one, since
    /// it takes as much memory as the other.
    plain: OnceLock<Tokenizer>,
    /// The GGUF file, unless the model is a folder.
    gguf: Option<Arc<Gguf>>,
    /// An error in the templates is reported only when a chat needs them; plain continuation does
    /// not.
    templates: Result<ChatTemplates, TemplateError>,
    /// End tokens.
    pub(crate) ends: Arc<BTreeSet<u32>>,
    /// The sampling parameters that the files recommend.
    pub(crate) params: GenerationParams,
    /// The most tokens of an answer, if the files say.
    pub(crate) most: Option<usize>,
    /// Notes on unsupported options.
    pub(crate) notes: Vec<String>,
}

impl LmText {
    pub(crate) fn open(root: &Path, model: &Model) -> Result<LmText> {
        LmText::open_with(root, model, None)
    }

    /// With this chat template instead of the one in the files.
    pub(crate) fn open_with(root: &Path, model: &Model, template: Option<&str>) -> Result<LmText> {
        let text = match &model.gguf {
            Some(gguf) => LmText::of_gguf(root, gguf, template),
            None => LmText::of_folder(root, &model.config, template),
        }?;
        if template.is_some()
            && let Err(why) = &text.templates
        {
            return Err(Error::Input(format!("the given chat template cannot be used: {why}")));
        }
        Ok(text)
    }

    fn of_gguf(root: &Path, gguf: &Arc<Gguf>, given: Option<&str>) -> Result<LmText> {
        let vocabulary = gguf.vocabulary()?;
        let tokenizer = metadata::tokenizer(&vocabulary, Specials::Parsed).map_err(|what| Error::file(root, what))?;
        let named = [vocabulary.eos, vocabulary.eot, vocabulary.eom].into_iter().flatten();
        let ends = named.chain(end_of_turn_ids(&tokenizer)).collect();
        let word = |id: Option<u32>| id.and_then(|id| vocabulary.tokens.get(id as usize).copied());
        let template = |source: &str| ChatTemplate::new(source, word(vocabulary.bos), word(vocabulary.eos));
        let (default, tool_use) = match given {
            Some(_) => (given, None),
            None => (gguf.chat_template(None)?, gguf.chat_template(Some("tool_use"))?),
        };
        let default = default.map(template).transpose();
        let templates =
            default.and_then(|default| Ok(ChatTemplates { default, tool_use: tool_use.map(template).transpose()? }));
        gguf.let_go();
        Ok(LmText {
            tokenizer: Arc::new(tokenizer),
            plain: OnceLock::new(),
            gguf: Some(gguf.clone()),
            templates,
            ends: Arc::new(ends),
            params: greedy(),
            most: None,
            notes: Vec::new(),
        })
    }

    fn of_folder(root: &Path, config: &Value, template: Option<&str>) -> Result<LmText> {
        let mut tokenizer = open(root)?;
        tokenizer.with_padding(None);
        catch_panic(|| tokenizer.with_truncation(None).map(drop)).map_err(|e| Error::file(root, e))?;
        let tokenizer_config: Value = optional_json(&root.join("tokenizer_config.json"))?.unwrap_or_default();
        let generation: Value = optional_json(&root.join("generation_config.json"))?.unwrap_or_default();
        let file = root.join("chat_template.jinja");
        let file = match file.exists() {
            true => Some(sconce_formats::bytes(&file, 1 << 20)?),
            false => None,
        };
        let file = file.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let templates = ChatTemplates::read(template.or(file.as_deref()), &tokenizer_config);
        let mut ends: BTreeSet<u32> = [&generation["eos_token_id"], &config["eos_token_id"]]
            .into_iter()
            .flat_map(|value| value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]))
            .filter_map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
            .collect();
        let eos = tokenizer_config["eos_token"].as_str().or(tokenizer_config["eos_token"]["content"].as_str());
        ends.extend(eos.and_then(|token| tokenizer.token_to_id(token)));
        ends.extend(end_of_turn_ids(&tokenizer));
        let params = generation_config::params(&generation)
            .map_err(|what| Error::file(&root.join("generation_config.json"), what))?;
        let mut notes = unsupported_notes(&generation);
        notes.extend(
            count(&generation, "num_beams").filter(|n| *n > 1).map(|_| unsupported_note(&generation, "num_beams")),
        );
        Ok(LmText {
            tokenizer: Arc::new(tokenizer),
            plain: OnceLock::new(),
            gguf: None,
            templates,
            ends: Arc::new(ends),
            params,
            most: count(&generation, "max_new_tokens").filter(|n| *n > 0),
            notes,
        })
    }

    /// Tokenizes a user's text, with the special tokens that begin every text.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = encoding(&self.tokenizer, text, true)?;
        let added = self.tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        // Special tokens that every text gets are marked.
        let content_ids =
            encoding.get_ids().iter().zip(encoding.get_special_tokens_mask()).filter(|(_, every)| **every == 0);
        // If no part of the text became a control token, both tokenizers agree.
        if content_ids.into_iter().any(|(id, _)| added.contains_key(id)) {
            ids(self.plain()?, text, true)
        } else {
            Ok(encoding.get_ids().to_vec())
        }
    }

    fn plain(&self) -> Result<&Tokenizer> {
        if let Some(plain) = self.plain.get() {
            return Ok(plain);
        }
        let plain = match &self.gguf {
            Some(gguf) => {
                let plain = metadata::tokenizer(&gguf.vocabulary()?, Specials::Text);
                gguf.let_go();
                plain.map_err(|what| Error::file(gguf.path(), what))?
            }
            None => {
                let mut plain = Tokenizer::clone(&self.tokenizer);
                plain.set_encode_special_tokens(true);
                plain
            }
        };
        Ok(self.plain.get_or_init(|| plain))
    }

    /// Tokenizes a text and parses its control tokens. Truncates to `most` tokens, but keeps the
    /// end token; returns whether it truncated.
    pub(crate) fn encode_to(&self, text: &str, most: usize) -> Result<(Vec<u32>, bool)> {
        // Tokenize only the part of a very long text that can remain after truncation.
        let seen = text.char_indices().nth(most.saturating_mul(LONGEST_TOKEN)).map_or(text.len(), |(i, _)| i);
        let mut ids = ids(&self.tokenizer, &text[..seen], true)?;
        let cut = ids.len() > most;
        if cut {
            let end = ids.last().copied().filter(|id| self.ends.contains(id));
            ids.truncate(most);
            if let (Some(end), Some(last)) = (end, ids.last_mut()) {
                *last = end;
            }
        }
        Ok((ids, cut || seen < text.len()))
    }

    /// Tokenizes the output of a chat template.
    pub(crate) fn encode_rendered(&self, text: &str) -> Result<Vec<u32>> {
        ids(&self.tokenizer, text, false)
    }

    /// The template for a conversation.
    pub(crate) fn template(&self, tools: bool) -> Result<&ChatTemplate, TemplateError> {
        self.templates.as_ref().map_err(Clone::clone)?.pick(tools)
    }
}

fn ids(tokenizer: &Tokenizer, text: &str, special: bool) -> Result<Vec<u32>> {
    Ok(encoding(tokenizer, text, special)?.get_ids().to_vec())
}

fn encoding(tokenizer: &Tokenizer, text: &str, special: bool) -> Result<Encoding> {
    catch_panic(|| tokenizer.encode(text, special))
        .map_err(|e| Error::Input(format!("the tokenizer failed on a text of {} bytes: {e}", text.len())))
}

/// The ids of end-of-turn tokens, whatever the files declare. Only added tokens count; the same
/// spelling may be an ordinary word.
fn end_of_turn_ids(tokenizer: &Tokenizer) -> impl Iterator<Item = u32> {
    let added = tokenizer.get_added_vocabulary().get_vocab();
    END_OF_TURN.iter().filter_map(|token| added.get(*token).copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A folder with a tokenizer of a few words and `added` tokens, and a generation config.
    fn folder(added: &[(&str, bool)], generation: &Value) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let added: Vec<Value> = (3..)
            .zip(added)
            .map(|(id, (token, special))| {
                json!({"id": id, "content": token, "special": special, "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false})
            })
            .collect();
        let vocabulary = json!({"[UNK]": 0, "a": 1, "<|eot_id|>": 2});
        let model = json!({"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"});
        let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
            "model": model});
        std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        std::fs::write(dir.path().join("generation_config.json"), generation.to_string()).unwrap();
        dir
    }

    #[test]
    fn added_end_of_turn_tokens_end_generation() {
        let dir = folder(&[("<s>", true), ("<|im_end|>", true), ("<end_of_turn>", false)], &json!({"eos_token_id": 3}));
        let lm_text = LmText::of_folder(dir.path(), &json!({}), None).unwrap();
        // The same spelling that was not added is an ordinary word.
        assert_eq!(*lm_text.ends, BTreeSet::from([3, 4, 5]));
    }

    #[test]
    fn control_tokens_in_user_text_are_plain_text() {
        let dir = folder(&[("<s>", true)], &json!({}));
        let lm_text = LmText::of_folder(dir.path(), &json!({}), None).unwrap();
        assert_eq!((lm_text.encode("a a").unwrap(), lm_text.plain.get().is_none()), (vec![1, 1], true));
        assert_eq!(lm_text.encode_rendered("a<s>").unwrap(), [1, 3]);
        let text = lm_text.encode("a<s>").unwrap();
        assert!(!text.contains(&3) && text[0] == 1, "{text:?}");
    }
}
