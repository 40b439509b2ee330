//! `Sconce::Native::Tokenizer`.

use crate::convert::{numbers, texts};
use crate::error::{argument, failure};
use crate::gvl;
use magnus::{Class, Error, Module, Object, RArray, RHash, RModule, Ruby, function, method};
use sconce_engine::{
    Encoding, LoadOptions, PadTo, Padding, RequestContext, TextOrPair, Tokenizer, Truncate, load_tokenizer,
};
use std::path::PathBuf;
use std::sync::Arc;

#[magnus::wrap(class = "Sconce::Native::Tokenizer", free_immediately)]
struct NativeTokenizer(Arc<Tokenizer>);

/// The lists of an encoding.
type Lists = (Vec<u32>, Vec<u32>, Vec<u32>, Vec<String>);

fn lists(e: Encoding) -> Lists {
    (e.ids, e.type_ids, e.attention_mask, e.tokens)
}

fn wrapped(tokenizer: Tokenizer) -> NativeTokenizer {
    NativeTokenizer(Arc::new(tokenizer))
}

fn from_file(ruby: &Ruby, path: String) -> Result<NativeTokenizer, Error> {
    gvl::run(ruby, &RequestContext::default(), move || Tokenizer::open(&PathBuf::from(path))).map(wrapped)
}

fn load(ruby: &Ruby, name: String) -> Result<NativeTokenizer, Error> {
    let reference = name.parse().map_err(|e| failure(ruby, e))?;
    let options = LoadOptions::from_env().map_err(|e| failure(ruby, e))?;
    gvl::run(ruby, &RequestContext::default(), move || load_tokenizer(&reference, &options, &())).map(wrapped)
}

/// `[ids, type_ids, attention_mask, tokens]` of each text.
fn encode(ruby: &Ruby, this: &NativeTokenizer, list: RArray, special: bool) -> Result<Vec<Lists>, Error> {
    let (tokenizer, texts) = (this.0.clone(), texts(ruby, list)?);
    let encodings = gvl::run(ruby, &RequestContext::default(), move || {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        tokenizer.encode_batch(&texts, special)
    })?;
    Ok(encodings.into_iter().map(lists).collect())
}

fn encode_pair(ruby: &Ruby, this: &NativeTokenizer, text: String, pair: String) -> Result<Lists, Error> {
    let encoding = this.0.encode(TextOrPair { text: &text, pair: Some(&pair) }, true);
    encoding.map(lists).map_err(|e| failure(ruby, e))
}

fn decode(ruby: &Ruby, this: &NativeTokenizer, ids: RArray, skip_special: bool) -> Result<String, Error> {
    this.0.decode(&numbers::<u32>(ids)?, skip_special).map_err(|e| failure(ruby, e))
}

fn vocabulary(ruby: &Ruby, this: &NativeTokenizer, added: bool) -> Result<RHash, Error> {
    let hash = ruby.hash_new();
    for (token, id) in this.0.vocabulary(added) {
        hash.aset(token, id)?;
    }
    Ok(hash)
}

fn special_tokens(ruby: &Ruby, this: &NativeTokenizer) -> Result<RHash, Error> {
    let hash = ruby.hash_new();
    for (role, id) in this.0.special_tokens() {
        hash.aset(role.as_str(), *id)?;
    }
    Ok(hash)
}

/// A padding length of nil pads to the longest text of a batch; a token of nil is the tokenizer's own.
fn with_padding(
    ruby: &Ruby,
    this: &NativeTokenizer,
    length: Option<usize>,
    direction: String,
    token: Option<String>,
) -> Result<NativeTokenizer, Error> {
    let left = match &*direction {
        "left" => true,
        "right" => false,
        other => return Err(argument(ruby, format!("unknown direction {other}; left or right"))),
    };
    let to = length.map_or(PadTo::Longest, PadTo::Length);
    let padded = this.0.with_padding(&Padding { to, multiple_of: None, left, token });
    padded.map(wrapped).map_err(|e| failure(ruby, e))
}

fn with_truncation(ruby: &Ruby, this: &NativeTokenizer, most: usize) -> Result<NativeTokenizer, Error> {
    this.0.with_truncation(most, Truncate::Right).map(wrapped).map_err(|e| failure(ruby, e))
}

pub(crate) fn define(ruby: &Ruby, native: RModule) -> Result<(), Error> {
    let class = native.define_class("Tokenizer", ruby.class_object())?;
    class.undef_default_alloc_func();
    class.define_singleton_method("from_file", function!(from_file, 1))?;
    class.define_singleton_method("load", function!(load, 1))?;
    class.define_method("encode", method!(encode, 2))?;
    class.define_method("encode_pair", method!(encode_pair, 2))?;
    class.define_method("decode", method!(decode, 2))?;
    class.define_method("token", method!(|this: &NativeTokenizer, id: u32| this.0.token(id), 1))?;
    class.define_method("id", method!(|this: &NativeTokenizer, token: String| this.0.id(&token), 1))?;
    class.define_method("vocabulary", method!(vocabulary, 1))?;
    class.define_method(
        "vocabulary_size",
        method!(|this: &NativeTokenizer, added: bool| this.0.vocabulary_size(added), 1),
    )?;
    class.define_method("special_tokens", method!(special_tokens, 0))?;
    class.define_method("with_padding", method!(with_padding, 3))?;
    class.define_method("with_truncation", method!(with_truncation, 1))
}
