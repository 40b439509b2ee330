//! The metadata of a GGUF file, as far as tokenizers need it.

use super::Vocabulary;
use std::collections::HashMap;

pub(super) enum Value {
    Number(f64),
    Text(String),
    Texts(Vec<String>),
    Numbers(Vec<f64>),
}

pub(super) struct Metadata(HashMap<String, Value>);

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n);
        self.0 = rest;
        taken
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    fn text(&mut self) -> String {
        let n = self.u64() as usize;
        String::from_utf8(self.take(n).to_vec()).unwrap()
    }

    fn number(&mut self, kind: u32) -> f64 {
        match kind {
            0 | 7 => self.take(1)[0].into(),
            1 => (self.take(1)[0] as i8).into(),
            2 => u16::from_le_bytes(self.take(2).try_into().unwrap()).into(),
            3 => i16::from_le_bytes(self.take(2).try_into().unwrap()).into(),
            4 => self.u32().into(),
            5 => (self.u32() as i32).into(),
            6 => f32::from_bits(self.u32()).into(),
            10 => self.u64() as f64,
            11 => self.u64() as i64 as f64,
            12 => f64::from_bits(self.u64()),
            _ => panic!("a value of type {kind}"),
        }
    }

    fn value(&mut self, kind: u32) -> Value {
        match kind {
            8 => Value::Text(self.text()),
            9 => {
                let (kind, n) = (self.u32(), self.u64());
                match kind {
                    8 => Value::Texts((0..n).map(|_| self.text()).collect()),
                    _ => Value::Numbers((0..n).map(|_| self.number(kind)).collect()),
                }
            }
            _ => Value::Number(self.number(kind)),
        }
    }
}

impl Metadata {
    pub(super) fn read(file: &[u8]) -> Metadata {
        let mut bytes = Bytes(file);
        assert_eq!(bytes.take(4), b"GGUF");
        assert!(bytes.u32() >= 2);
        let (_tensors, n) = (bytes.u64(), bytes.u64());
        let pair = |_| {
            let key = bytes.text();
            let kind = bytes.u32();
            (key, bytes.value(kind))
        };
        Metadata((0..n).map(pair).collect())
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(|v| if let Value::Text(text) = v { text.as_str() } else { panic!("{key} is no text") })
    }

    fn texts(&self, key: &str) -> Option<Vec<&str>> {
        self.0.get(key).map(|v| match v {
            Value::Texts(texts) => texts.iter().map(String::as_str).collect(),
            _ => panic!("{key} is no list of texts"),
        })
    }

    fn numbers(&self, key: &str) -> Option<&[f64]> {
        self.0.get(key).map(|v| if let Value::Numbers(list) = v { list.as_slice() } else { panic!("{key} is no list") })
    }

    pub(super) fn vocabulary(&self) -> Vocabulary<'_> {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let number = |name: &str| {
            self.0.get(&key(name)).map(|v| if let Value::Number(n) = v { *n } else { panic!("{name} is no number") })
        };
        let id = |name: &str| number(&format!("{name}_token_id")).map(|n| n as u32);
        let flag = |name: &str| number(name).map(|n| n != 0.0);
        Vocabulary {
            model: self.text(&key("model")).unwrap(),
            pre: self.text(&key("pre")),
            tokens: self.texts(&key("tokens")).unwrap(),
            scores: self.numbers(&key("scores")).map(|l| l.iter().map(|n| *n as f32).collect()),
            types: self.numbers(&key("token_type")).map(|l| l.iter().map(|n| *n as i32).collect()),
            merges: self.texts(&key("merges")),
            bos: id("bos"),
            eos: id("eos"),
            unk: id("unknown"),
            sep: id("seperator"),
            pad: id("padding"),
            cls: id("cls"),
            mask: id("mask"),
            add_bos: flag("add_bos_token"),
            add_eos: flag("add_eos_token"),
            add_sep: flag("add_sep_token"),
            add_space_prefix: flag("add_space_prefix"),
            remove_extra_whitespaces: flag("remove_extra_whitespaces"),
            lowercase: flag("normalizer.lowercase"),
            strip_accents: flag("normalizer.strip_accents"),
            precompiled_charsmap: self
                .numbers(&key("precompiled_charsmap"))
                .map(|l| &*l.iter().map(|n| *n as i64 as u8).collect::<Vec<_>>().leak()),
            name: self.text("general.name"),
            architecture: self.text("general.architecture"),
            ..Vocabulary::default()
        }
    }
}
