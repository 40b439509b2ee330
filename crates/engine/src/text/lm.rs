//! What a language model's files say of text: how it becomes tokens and comes back, how a conversation becomes a text, by which
//! tokens an answer ends, and how tokens are best chosen.

use super::chat::{ChatTemplate, ChatTemplates, TemplateError};
use super::gguf::{self as metadata, Specials};
use super::open::{open, sound};
use crate::load::gguf::Gguf;
use crate::load::{Model, optional_json};
use crate::sample::Params;
use crate::{Error, Result};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use tokenizers::Tokenizer;

/// Tokens by which families end a turn. Files made from older checkpoints name only the one that ends a text.
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

/// Words of a language model.
pub(crate) struct Words {
    /// In which control tokens are what they look like. It decodes, too.
    pub(crate) parsed: Arc<Tokenizer>,
    /// In which they are text.
    plain: Arc<Tokenizer>,
    /// Why not, where they are broken: who only wants a text continued need not know.
    templates: Result<ChatTemplates, TemplateError>,
    /// By which an answer ends.
    pub(crate) ends: Arc<BTreeSet<u32>>,
    /// How its makers choose tokens.
    pub(crate) params: Params,
}

impl Words {
    pub(crate) fn open(root: &Path, model: &Model) -> Result<Words> {
        match &model.gguf {
            Some(gguf) => Words::of_gguf(root, gguf),
            None => Words::of_folder(root, &model.config),
        }
    }

    fn of_gguf(root: &Path, gguf: &Gguf) -> Result<Words> {
        let held = gguf.vocabulary()?;
        let vocabulary = metadata::held(gguf)?;
        let build = |specials| metadata::tokenizer(&vocabulary, specials).map_err(|what| Error::file(root, what));
        let parsed = build(Specials::Parsed)?;
        let named = [held.eos, held.eot, held.eom].into_iter().flatten();
        let known = END_OF_TURN.iter().filter_map(|token| special(&parsed, token));
        let ends = named.chain(known).collect();
        let word = |id: Option<u32>| id.and_then(|id| vocabulary.tokens.get(id as usize).copied());
        let template = gguf.chat_template()?;
        let template = template.map(|source| ChatTemplate::new(source, word(held.bos), word(held.eos)));
        let templates = template.transpose().map(ChatTemplates::of);
        let plain = Arc::new(build(Specials::Text)?);
        Ok(Words { parsed: Arc::new(parsed), plain, templates, ends: Arc::new(ends), params: greedy() })
    }

    fn of_folder(root: &Path, config: &Value) -> Result<Words> {
        let mut parsed = open(root).map_err(|fault| Error::file(&fault.path, fault.what))?;
        parsed.with_padding(None);
        sound(|| parsed.with_truncation(None).map(drop)).map_err(|e| Error::file(root, e))?;
        let mut plain = parsed.clone();
        plain.set_encode_special_tokens(true);
        let told: Value = optional_json(&root.join("tokenizer_config.json"))?.unwrap_or_default();
        let advice: Value = optional_json(&root.join("generation_config.json"))?.unwrap_or_default();
        let file = root.join("chat_template.jinja");
        let file = match file.exists() {
            true => Some(crate::load::bytes(&file, 1 << 20)?),
            false => None,
        };
        let file = file.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let templates = ChatTemplates::read(file.as_deref(), &told);
        let mut ends: BTreeSet<u32> = [&advice["eos_token_id"], &config["eos_token_id"]]
            .into_iter()
            .flat_map(|value| value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]))
            .filter_map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
            .collect();
        let eos = told["eos_token"].as_str().or(told["eos_token"]["content"].as_str());
        ends.extend(eos.and_then(|token| parsed.token_to_id(token)));
        let params = recommended(&advice).map_err(|what| Error::file(&root.join("generation_config.json"), what))?;
        Ok(Words { parsed: Arc::new(parsed), plain: Arc::new(plain), templates, ends: Arc::new(ends), params })
    }

    /// Tokens of what somebody wrote, with those that begin every text.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        ids(&self.plain, text, true)
    }

    /// Tokens of a text whose control tokens are what they look like, cut at `most`, and whether it was. What ends every text
    /// stays.
    pub(crate) fn encode_to(&self, text: &str, most: usize) -> Result<(Vec<u32>, bool)> {
        // A text that goes on for megabytes is not tokenized for the sake of its beginning.
        let seen = text.char_indices().nth(most.saturating_mul(super::LONGEST_TOKEN)).map_or(text.len(), |(i, _)| i);
        let mut ids = ids(&self.parsed, &text[..seen], true)?;
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

    /// Tokens of what a template wrote.
    pub(crate) fn encode_rendered(&self, text: &str) -> Result<Vec<u32>> {
        ids(&self.parsed, text, false)
    }

    /// The template for a conversation.
    pub(crate) fn template(&self, tools: bool) -> Result<&ChatTemplate, TemplateError> {
        self.templates.as_ref().map_err(Clone::clone)?.pick(tools)
    }
}

fn ids(tokenizer: &Tokenizer, text: &str, special: bool) -> Result<Vec<u32>> {
    let encoding = sound(|| tokenizer.encode(text, special))
        .map_err(|e| Error::Input(format!("the tokenizer failed on a text of {} bytes: {e}", text.len())))?;
    Ok(encoding.get_ids().to_vec())
}

/// The id of a control token of that name.
fn special(tokenizer: &Tokenizer, token: &str) -> Option<u32> {
    let id = tokenizer.token_to_id(token)?;
    tokenizer.get_added_vocabulary().is_special_token(token).then_some(id)
}

/// The most likely token each time: where a model's makers recommend nothing, what is least surprising.
fn greedy() -> Params {
    Params { temperature: 0.0, ..Params::default() }
}

/// What `generation_config.json` recommends.
fn recommended(advice: &Value) -> Result<Params, String> {
    if advice["do_sample"].as_bool() != Some(true) {
        return Ok(greedy());
    }
    let number = |key: &str, usual: f32| match &advice[key] {
        Value::Null => Ok(usual),
        value => value.as_f64().map(|v| v as f32).ok_or_else(|| format!("{key} is {value}, not a number")),
    };
    // Fifty is what transformers keeps unless told otherwise; zero keeps all.
    let top_k = advice["top_k"].as_u64().unwrap_or(50) as u32;
    let params = Params {
        temperature: number("temperature", 1.0)?,
        top_k: Some(top_k).filter(|k| *k > 0),
        top_p: number("top_p", 1.0)?,
        min_p: number("min_p", 0.0)?,
        repetition_penalty: number("repetition_penalty", 1.0)?,
        ..Params::default()
    };
    params.check(usize::MAX).map_err(|invalid| invalid.to_string())?;
    Ok(params)
}
