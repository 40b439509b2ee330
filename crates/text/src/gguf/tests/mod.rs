//! Vocabularies small enough to check by hand, and invalid ones.

mod golden;
mod reader;
mod reference;

use super::pre_tokenizers::pre_tokenizer;
use super::*;
use std::collections::HashMap;

/// GPT-2's alphabet of bytes, then `more`.
fn bytes(more: &[&'static str]) -> Vec<String> {
    let letters = (0..=255).map(|b| super::pipeline::letter(b).to_string());
    letters.chain(more.iter().map(|s| s.to_string())).collect()
}

/// `<unk> <s> </s>`, the bytes, then `more` with scores.
fn pieces(more: &[(&str, f32)]) -> (Vec<String>, Vec<f32>, Vec<i32>) {
    let head = ["<unk>", "<s>", "</s>"].map(String::from).into_iter().chain((0..256).map(|b| format!("<0x{b:02X}>")));
    let tokens: Vec<String> = head.chain(more.iter().map(|(t, _)| t.to_string())).collect();
    let scores = vec![0.0; 259].into_iter().chain(more.iter().map(|(_, s)| *s)).collect();
    let types = [2, 3, 3].into_iter().chain([6; 256]).chain(more.iter().map(|_| 1)).collect();
    (tokens, scores, types)
}

fn refs(tokens: &[String]) -> Vec<&str> {
    tokens.iter().map(String::as_str).collect()
}

fn ids(tokenizer: &Tokenizer, text: &str, special: bool) -> Vec<u32> {
    tokenizer.encode(text, special).unwrap().get_ids().to_vec()
}

#[test]
fn every_pre_tokenizer_builds_and_merges() {
    let names = "default llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx smaug-bpe \
        chatglm-bpe glm4 glm5 jais-2 minicpm5 deepseek-llm deepseek-coder deepseek-v3 hunyuan-dense hy_v4 joyai-llm spark2_5 \
        youtu falcon starcoder refact command-r smollm codeshell exaone minerva-7b mellum2 gpt-2 phi-2 jina-es jina-de \
        gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en jina-v2-code roberta-bpe exaone4 mpt olmo jais \
        trillion granite-docling stablelm2 qwen2 deepseek-r1-qwen kormo f2llmv2 megrez hunyuan solar-open grok-2 qwen35 \
        laguna ufakzeka poro-chat bloom gpt3-finnish viking tekken chameleon gpt-4o llama4 kanana2 talkie minimax-m2 \
        granite-embed-multi-97m tiny_aya cohere2moe afmoe superbpe kimi-k2 bailingmoe bailingmoe2 llada-moe seed-coder \
        exaone-moe gemma4 granite-embed-multi-311m sarvam-moe whitespace";
    let tokens = bytes(&["ab", "<|end|>"]);
    for name in names.split_whitespace() {
        let merges = Some(vec!["a b"]);
        let (pre, bos) = (Some(name), Some(0));
        let v = Vocabulary { model: "gpt2", pre, tokens: refs(&tokens), merges, bos, ..Default::default() };
        let built = tokenizer(&v, Specials::Text).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(ids(&built, "ab", false).contains(&256), "{name}");
    }
    assert!(pre_tokenizer(Some("llama5")).is_none());
    let v = Vocabulary { model: "gpt2", pre: Some("llama5"), tokens: refs(&tokens), ..Default::default() };
    assert!(tokenizer(&v, Specials::Text).unwrap_err().contains("tokenizer.ggml.pre is \"llama5\""));
    for model in ["rwkv", "plamo2", "no_vocab", "hybriddna", ""] {
        let v = Vocabulary { model, tokens: refs(&tokens), ..Default::default() };
        assert!(tokenizer(&v, Specials::Text).unwrap_err().contains(&format!("tokenizer.ggml.model is {model:?}")));
    }
}

#[test]
fn control_tokens_are_parsed_only_on_request() {
    let tokens = bytes(&["ab", "<|im_end|>", "<s>", "<think>"]);
    let mut types = vec![1; tokens.len()];
    (types[257], types[258], types[259]) = (1, 3, 4);
    let v = Vocabulary {
        model: "gpt2",
        pre: Some("llama-bpe"),
        tokens: refs(&tokens),
        types: Some(types),
        merges: Some(vec!["a b", "< s"]),
        bos: Some(258),
        eos: Some(257),
        add_eos: Some(true),
        ..Default::default()
    };
    let error = tokenizer(&v, Specials::Text).unwrap_err();
    assert!(error.contains("merges, entry 1") && error.contains("\"<s\""), "{error}");
    let v = Vocabulary { merges: Some(vec!["a b"]), ..v };
    let (parsed, plain) = (tokenizer(&v, Specials::Parsed).unwrap(), tokenizer(&v, Specials::Text).unwrap());
    let text = "ab<|im_end|><think>ab";
    // The name of `<|im_end|>` makes it a control token, although its type is normal.
    assert_eq!(ids(&parsed, text, true), [258, 256, 257, 259, 256, 257]);
    let spelled = ids(&plain, text, true);
    assert_eq!((spelled[0], spelled[1], *spelled.last().unwrap()), (258, 256, 257));
    assert!(!spelled[1..spelled.len() - 1].contains(&257) && spelled.contains(&259));
    // A word that is a token's name is that token, unless it is a control token.
    assert!(!ids(&plain, "<s>", false).contains(&258));
    assert_eq!(parsed.decode(&ids(&parsed, text, false), false).unwrap(), text);
    assert_eq!(parsed.decode(&ids(&parsed, text, true), true).unwrap(), "ab<think>ab");
}

#[test]
fn spm_merges_by_score_with_byte_fallback_and_round_trips() {
    let (tokens, scores, types) = pieces(&[
        ("\u{2581}", -10.0),
        ("a", -11.0),
        ("b", -12.0),
        ("ab", -1.0),
        ("\u{2581}a", -2.0),
        ("ba", -0.5),
        ("<", -13.0),
        ("s", -14.0),
        (">", -15.0),
        ("<s", -3.0),
    ]);
    let v = Vocabulary {
        model: "llama",
        tokens: refs(&tokens),
        scores: Some(scores),
        types: Some(types),
        ..Default::default()
    };
    let (parsed, plain) = (tokenizer(&v, Specials::Parsed).unwrap(), tokenizer(&v, Specials::Text).unwrap());
    assert_eq!(ids(&plain, "aba", true), [1, 263, 264]);
    assert_eq!(ids(&plain, "b\u{e9}", false), [259, 261, 3 + 0xC3, 3 + 0xA9]);
    // `<s` and `>` would merge into a control token.
    assert_eq!(ids(&plain, "<s>", false), [259, 268, 267]);
    // A space is inserted again after a control token.
    assert_eq!(ids(&parsed, "a</s>a", false), [263, 2, 263]);
    for text in ["aba", " a", "b\u{e9}\n  b", "<s>", ""] {
        assert_eq!(parsed.decode(&ids(&plain, text, false), true).unwrap(), text);
    }
    let v = Vocabulary { add_space_prefix: Some(false), add_bos: Some(false), ..v };
    assert_eq!(ids(&tokenizer(&v, Specials::Text).unwrap(), "aba", true), [260, 264]);
}

#[test]
fn bert_word_starts_are_marked_by_prefix() {
    let mut tokens: Vec<String> = (0..104).map(|i| format!("[unused{i}]")).collect();
    tokens[100..].clone_from_slice(&["[UNK]", "[CLS]", "[SEP]", "[MASK]"].map(String::from));
    tokens.extend(["\u{2581}un", "able", "\u{2581}!", "\u{2581}able"].map(String::from));
    let mut types = vec![1; tokens.len()];
    types[100..104].fill(3);
    let v = Vocabulary { model: "bert", tokens: refs(&tokens), types: Some(types), ..Default::default() };
    let plain = tokenizer(&v, Specials::Text).unwrap();
    assert_eq!(ids(&plain, "Un\u{e4}ble! ABLE x [CLS]", true)[..6], [101, 104, 105, 106, 107, 100]);
    assert!(!ids(&plain, "[CLS]", false).contains(&101));
    let pair = plain.encode(("able", "able"), true).unwrap();
    assert_eq!(
        (pair.get_ids(), pair.get_type_ids()),
        ([101, 107, 102, 107, 102].as_slice(), [0, 0, 0, 1, 1].as_slice())
    );
    let parsed = tokenizer(&v, Specials::Parsed).unwrap();
    assert_eq!(ids(&parsed, "[CLS]able", false), [101, 107]);
    assert_eq!(parsed.decode(&[104, 105, 106], true).unwrap(), "unable!");
}

#[test]
fn unigram_takes_the_most_likely_segmentation() {
    let tokens = ["<pad>", "</s>", "<unk>", "\u{2581}", "a", "b", "\u{2581}a", "ab", "\u{2581}ab", "[PAD0]", "<0x61>"];
    let scores = vec![0.0, 0.0, 0.0, -2.0, -3.0, -4.0, -2.5, -9.0, -20.0, -10000.0, 0.0];
    let v = Vocabulary {
        model: "t5",
        tokens: tokens.to_vec(),
        scores: Some(scores),
        types: Some(vec![3, 3, 2, 1, 1, 1, 1, 1, 1, 5, 6]),
        add_space_prefix: Some(true),
        remove_extra_whitespaces: Some(true),
        ..Default::default()
    };
    let plain = tokenizer(&v, Specials::Text).unwrap();
    assert_eq!(ids(&plain, "  ab   a ", true), [6, 5, 6, 1]);
    // An unknown character costs ten more than the least likely piece, not than padding: five of
    // them, joined, are one token.
    assert_eq!(ids(&plain, "a</s>[PAD0]<0x61>", false), [6, 2]);
    let parsed = tokenizer(&v, Specials::Parsed).unwrap();
    assert_eq!(ids(&parsed, "a</s>", false), [6, 1]);
    assert_eq!(parsed.decode(&[6, 5, 6], true).unwrap(), "ab a");
}

#[test]
fn inconsistent_vocabulary_errors_name_the_key() {
    let tokens = bytes(&["ab", "bc"]);
    let tokens = refs(&tokens);
    let sound = Vocabulary { model: "gpt2", tokens, merges: Some(vec!["a b"]), ..Default::default() };
    assert!(tokenizer(&sound, Specials::Parsed).is_ok());
    let error = |change: &dyn Fn(&mut Vocabulary<'_>)| {
        let mut v = sound.clone();
        change(&mut v);
        tokenizer(&v, Specials::Parsed).unwrap_err()
    };
    assert!(error(&|v| v.merges = None).contains("tokenizer.ggml.merges is not there"));
    for (line, why) in [
        ("ab", "two tokens"),
        ("a ", "two tokens"),
        ("", "two tokens"),
        ("é", "two tokens"),
        ("é x", "é"),
        ("b a", "\"ba\""),
    ] {
        let text = error(&|v| v.merges = Some(vec!["a b", line]));
        assert!(text.contains("tokenizer.ggml.merges, entry 1") && text.contains(why), "{text}");
    }
    assert!(error(&|v| v.types = Some(vec![1; 3])).contains("tokenizer.ggml.token_type has 3 entries"));
    assert!(error(&|v| v.types = Some(vec![7; 258])).contains("tokenizer.ggml.token_type: token 0 has type 7"));
    assert!(error(&|v| v.scores = Some(vec![0.0; 259])).contains("tokenizer.ggml.scores has 259"));
    assert!(error(&|v| v.scores = Some(vec![f32::NAN; 258])).contains("tokenizer.ggml.scores: that of token 0"));
    assert!(error(&|v| v.bos = Some(258)).contains("tokenizer.ggml.bos_token_id is 258"));
    assert!(error(&|v| v.mask = Some(u32::MAX)).contains("tokenizer.ggml.mask_token_id"));
    assert!(error(&|v| v.tokens[7] = "ab").contains("tokenizer.ggml.tokens: \"ab\" is there twice"));
    assert!(error(&|v| v.tokens.clear()).contains("tokenizer.ggml.tokens has 0 entries"));
    let long = "x".repeat(4097);
    let mut v = sound.clone();
    v.tokens[7] = &long;
    assert!(tokenizer(&v, Specials::Parsed).unwrap_err().contains("token 7 has 4097 bytes"));
    assert!(error(&|v| v.model = "llama").contains("tokenizer.ggml.scores is not there"));
    assert!(error(&|v| (v.model, v.scores) = ("t5", None)).contains("tokenizer.ggml.scores"));
    let t5 = |map: &[u8]| {
        let (scores, map) = (Some(vec![0.0; 258]), Some(&*map.to_vec().leak()));
        error(&|v| (v.model, v.scores, v.precompiled_charsmap) = ("t5", scores.clone(), map))
    };
    assert!(t5(&[255; 9]).contains("tokenizer.ggml.precompiled_charsmap"));
    assert!(t5(&[1]).contains("tokenizer.ggml.precompiled_charsmap"));
    let few = Vocabulary { model: "bert", tokens: vec!["\u{2581}a"], ..Default::default() };
    assert!(tokenizer(&few, Specials::Text).unwrap_err().contains("tokenizer.ggml.unknown_token_id"));
    let few = Vocabulary { unk: Some(0), ..few };
    assert!(tokenizer(&few, Specials::Text).unwrap_err().contains("tokenizer.ggml.bos_token_id"));
}

#[test]
fn empty_tokens_are_counted_and_never_matched() {
    let mut tokens = bytes(&["ab"]);
    tokens.extend([String::new(), String::new()]);
    let v = Vocabulary { model: "gpt2", tokens: refs(&tokens), merges: Some(vec!["a b"]), ..Default::default() };
    let built = tokenizer(&v, Specials::Parsed).unwrap();
    assert_eq!((ids(&built, "ab", false), built.get_vocab_size(true)), (vec![256], 259));
}

#[test]
fn user_defined_tokens_and_merges_are_limited() {
    // Just over the limit, so that the test is short.
    let tokens: Vec<String> = (0..265_000).map(|i| format!("t{i:x}")).collect();
    let (scores, types) = (Some(vec![0.0; tokens.len()]), Some(vec![4; tokens.len()]));
    let v = Vocabulary { model: "llama", tokens: refs(&tokens), scores, types, ..Default::default() };
    assert!(tokenizer(&v, Specials::Text).unwrap_err().contains("tokenizer.ggml.token_type: 265000 tokens"));
    tokenizer(&Vocabulary { types: None, ..v }, Specials::Text).unwrap();
    // Every substring of one text: the number of merges grows with the cube of its length.
    let text: String = (0..1300).map(|i| char::from_u32(0x4E00 + i).unwrap()).collect();
    let part = |(i, j): (usize, usize)| &text[3 * i..3 * j];
    let parts = (0..1300).flat_map(|i| (i + 1..=(i + 85).min(1300)).map(move |j| (i, j)));
    let tokens: Vec<&str> = parts.map(part).collect();
    let scores = Some(vec![-1.0; tokens.len()]);
    let v = Vocabulary { model: "llama", tokens, scores, ..Default::default() };
    assert!(tokenizer(&v, Specials::Text).unwrap_err().contains("tokenizer.ggml.tokens: more than"));
}
