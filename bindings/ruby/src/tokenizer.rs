//! `Sconce::Native::Tokenizer`.

use crate::convert::{Text, numbers, texts};
use crate::error::{argument, failure};
use crate::guard::{function, method};
use crate::gvl;
use magnus::{Class, Error, Module, Object, RArray, RHash, RModule, Ruby};
use sconce_engine::{
    Encoding, LoadOptions, PadTo, Padding, RequestContext, TextOrPair, Tokenizer, Truncate, load_tokenizer,
};
use std::path::PathBuf;
use std::sync::Arc;

#[magnus::wrap(class = "Sconce::Native::Tokenizer", free_immediately)]
struct NativeTokenizer(Arc<Tokenizer>);

/// The ids, type ids, attention mask and tokens of an encoding.
type Lists = (Vec<u32>, Vec<u32>, Vec<u32>, Vec<String>);

fn wrapped(tokenizer: Tokenizer) -> NativeTokenizer {
    NativeTokenizer(Arc::new(tokenizer))
}

/// Runs `work` with the tokenizer, without the Ruby VM lock.
fn with<T: Send + 'static, E: ToString + Send + 'static>(
    ruby: &Ruby,
    this: &NativeTokenizer,
    work: impl FnOnce(&Tokenizer) -> Result<T, E> + Send + 'static,
) -> Result<T, Error> {
    let tokenizer = this.0.clone();
    gvl::run(ruby, &RequestContext::default(), move || work(&tokenizer))
}

fn from_file(ruby: &Ruby, path: Text) -> Result<NativeTokenizer, Error> {
    gvl::run(ruby, &RequestContext::default(), move || Tokenizer::open(&PathBuf::from(path.0))).map(wrapped)
}

fn load(ruby: &Ruby, name: Text) -> Result<NativeTokenizer, Error> {
    let reference = name.parse().map_err(|e| failure(ruby, e))?;
    let options = LoadOptions::from_env().map_err(|e| failure(ruby, e))?;
    gvl::run(ruby, &RequestContext::default(), move || load_tokenizer(&reference, &options, &())).map(wrapped)
}

fn encodings(ruby: &Ruby, this: &NativeTokenizer, list: RArray, special: bool) -> Result<Vec<Encoding>, Error> {
    let texts = texts(ruby, list)?;
    with(ruby, this, move |tokenizer| {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        tokenizer.encode_batch(&texts, special)
    })
}

/// The ids of each text.
fn encode(ruby: &Ruby, this: &NativeTokenizer, list: RArray, special: bool) -> Result<Vec<Vec<u32>>, Error> {
    Ok(encodings(ruby, this, list, special)?.into_iter().map(|e| e.ids).collect())
}

/// The ids and the tokens of each text.
type IdsAndTokens = (Vec<u32>, Vec<String>);

fn encode_with_tokens(
    ruby: &Ruby,
    this: &NativeTokenizer,
    list: RArray,
    special: bool,
) -> Result<Vec<IdsAndTokens>, Error> {
    Ok(encodings(ruby, this, list, special)?.into_iter().map(|e| (e.ids, e.tokens)).collect())
}

/// `[ids, type_ids, attention_mask, tokens]` of a pair of texts.
fn encode_pair(ruby: &Ruby, this: &NativeTokenizer, text: Text, pair: Text) -> Result<Lists, Error> {
    with(ruby, this, move |tokenizer| {
        tokenizer
            .encode(TextOrPair { text: &text, pair: Some(&pair) }, true)
            .map(|e| (e.ids, e.type_ids, e.attention_mask, e.tokens))
    })
}

fn decode(ruby: &Ruby, this: &NativeTokenizer, ids: RArray, skip_special: bool) -> Result<String, Error> {
    let ids = numbers::<u32>(ids)?;
    with(ruby, this, move |tokenizer| tokenizer.decode(&ids, skip_special))
}

fn token(_: &Ruby, this: &NativeTokenizer, id: u32) -> Result<Option<String>, Error> {
    Ok(this.0.token(id))
}

fn vocabulary(ruby: &Ruby, this: &NativeTokenizer, added: bool) -> Result<RHash, Error> {
    let all = with(ruby, this, move |tokenizer| Ok::<_, String>(tokenizer.vocabulary(added)))?;
    let hash = ruby.hash_new();
    for (token, id) in all {
        hash.aset(token, id)?;
    }
    Ok(hash)
}

fn vocabulary_size(_: &Ruby, this: &NativeTokenizer, added: bool) -> Result<usize, Error> {
    Ok(this.0.vocabulary_size(added))
}

fn special_tokens(ruby: &Ruby, this: &NativeTokenizer) -> Result<RHash, Error> {
    let hash = ruby.hash_new();
    for (role, id) in this.0.special_tokens() {
        hash.aset(role.as_str(), *id)?;
    }
    Ok(hash)
}

/// A padding length of nil pads to the longest text of a batch; a token of nil is the tokenizer's
/// own.
fn with_padding(
    ruby: &Ruby,
    this: &NativeTokenizer,
    length: Option<usize>,
    direction: Text,
    token: Option<Text>,
) -> Result<NativeTokenizer, Error> {
    let left = match &*direction {
        "left" => true,
        "right" => false,
        other => return Err(argument(ruby, format!("unknown direction {other}; left or right"))),
    };
    let to = length.map_or(PadTo::Longest, PadTo::Length);
    let padding = Padding { to, multiple_of: None, left, token: token.map(|token| token.0) };
    with(ruby, this, move |tokenizer| tokenizer.with_padding(&padding)).map(wrapped)
}

fn with_truncation(ruby: &Ruby, this: &NativeTokenizer, most: usize) -> Result<NativeTokenizer, Error> {
    with(ruby, this, move |tokenizer| tokenizer.with_truncation(most, Truncate::Right)).map(wrapped)
}

pub(crate) fn define(ruby: &Ruby, native: RModule) -> Result<(), Error> {
    let class = native.define_class("Tokenizer", ruby.class_object())?;
    class.undef_default_alloc_func();
    class.define_singleton_method("from_file", function!(from_file, 1))?;
    class.define_singleton_method("load", function!(load, 1))?;
    class.define_method("encode", method!(encode, 2))?;
    class.define_method("encode_with_tokens", method!(encode_with_tokens, 2))?;
    class.define_method("encode_pair", method!(encode_pair, 2))?;
    class.define_method("decode", method!(decode, 2))?;
    class.define_method("token", method!(token, 1))?;
    class.define_method("vocabulary", method!(vocabulary, 1))?;
    class.define_method("vocabulary_size", method!(vocabulary_size, 1))?;
    class.define_method("special_tokens", method!(special_tokens, 0))?;
    class.define_method("with_padding", method!(with_padding, 3))?;
    class.define_method("with_truncation", method!(with_truncation, 1))
}
