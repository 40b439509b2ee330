//! A model's tokenizer from whatever files its directory has.

use super::guard::guard;
use super::recipe::{Class, Source, tokenizer_json};
use super::special::Told;
use super::spm;
use sconce_formats::FileError;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;

/// The largest vocabularies are some 30 MB of JSON.
const LARGEST: u64 = 256 << 20;
/// The largest of the older files are 17 MB (`vocab.json` of a quarter million tokens).
const LARGEST_OLD: u64 = 64 << 20;

/// Opens `tokenizer.json`, or makes what it would be from the older files: `vocab.txt`, `vocab.json` with `merges.txt`, or a
/// SentencePiece model, read as the class named in `tokenizer_config.json` or `config.json` reads it.
pub fn open(dir: &Path) -> Result<Tokenizer, FileError> {
    let whole = dir.join("tokenizer.json");
    if whole.is_file() {
        let json = read(&whole, LARGEST)?;
        guard(&json).map_err(|what| FileError { path: whole.clone(), what })?;
        return tokenizer(&json, &whole);
    }
    let config = object(&dir.join("tokenizer_config.json"))?;
    let class = class(dir, &config)?;
    let map = object(&dir.join("special_tokens_map.json"))?;
    let added = object(&dir.join("added_tokens.json"))?;
    let told =
        Told::new(&config, &map, &added).map_err(|what| FileError { path: dir.join("tokenizer_config.json"), what })?;
    let (path, source) = source(dir, class)?;
    let json = tokenizer_json(class, source, &config, &told).map_err(|what| FileError { path: path.clone(), what })?;
    let bytes = serde_json::to_vec(&json).map_err(|e| FileError { path: path.clone(), what: e.to_string() })?;
    drop(json);
    tokenizer(&bytes, &path)
}

fn tokenizer(json: &[u8], path: &Path) -> Result<Tokenizer, FileError> {
    sound(|| Tokenizer::from_bytes(json))
        .map_err(|e| FileError { path: path.into(), what: format!("not a tokenizer that can be used: {e}") })
}

/// A tokenizer file is untrusted, and the library asserts some of what such a file may break.
pub fn sound<T>(f: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(_) => Err("it contradicts itself".into()),
    }
}

/// The class, from the configuration of the tokenizer, else of the model, else from the model's type.
fn class(dir: &Path, config: &Value) -> Result<Class, FileError> {
    let model_path = dir.join("config.json");
    let model = object(&model_path)?;
    let named = [(dir.join("tokenizer_config.json"), config), (model_path.clone(), &model)];
    for (path, file) in named {
        let Some(name) = file.get("tokenizer_class").and_then(Value::as_str) else { continue };
        // These two say only that there was a tokenizer.json once.
        if matches!(name, "PreTrainedTokenizerFast" | "PreTrainedTokenizer" | "TokenizersBackend") {
            continue;
        }
        return by_class(name.strip_suffix("Fast").unwrap_or(name)).ok_or_else(|| FileError {
            path,
            what: format!("the tokenizer class {name} is read from a tokenizer.json only, and there is none beside it"),
        });
    }
    let Some(kind) = model.get("model_type").and_then(Value::as_str) else {
        let what =
            "there is no tokenizer.json, and neither tokenizer_config.json nor this file names a class of tokenizer";
        return Err(FileError { path: model_path, what: what.into() });
    };
    by_model_type(kind).ok_or_else(|| FileError {
        path: model_path,
        what: format!("models of type {kind} need a tokenizer.json, and there is none beside it"),
    })
}

fn by_class(name: &str) -> Option<Class> {
    Some(match name.strip_suffix("Tokenizer")? {
        "Bert" | "DistilBert" | "Electra" | "MobileBert" | "ConvBert" | "SqueezeBert" | "LayoutLM" | "Lxmert"
        | "Realm" | "RetriBert" | "DPRReader" | "DPRQuestionEncoder" | "DPRContextEncoder" => Class::Bert,
        "MPNet" => Class::Mpnet,
        "Roberta" | "Longformer" | "Bart" | "LED" => Class::Roberta,
        "XLMRoberta" => Class::XlmRoberta,
        "Camembert" => Class::Camembert,
        "Deberta" => Class::Deberta,
        "DebertaV2" => Class::DebertaV2,
        "T5" | "MT5" => Class::T5,
        "CLIP" => Class::Clip,
        "Siglip" => Class::Siglip,
        "Albert" => Class::Albert,
        _ => return None,
    })
}

fn by_model_type(kind: &str) -> Option<Class> {
    Some(match kind {
        "bert" | "distilbert" | "electra" | "mobilebert" | "convbert" | "squeezebert" | "nomic_bert" => Class::Bert,
        "mpnet" => Class::Mpnet,
        "roberta" | "longformer" | "roberta-prelayernorm" => Class::Roberta,
        "xlm-roberta" | "xlm-roberta-xl" => Class::XlmRoberta,
        "camembert" => Class::Camembert,
        "deberta" => Class::Deberta,
        "deberta-v2" => Class::DebertaV2,
        "t5" | "mt5" | "umt5" => Class::T5,
        "clip" | "clip_text_model" => Class::Clip,
        "siglip" | "siglip_text_model" => Class::Siglip,
        "albert" => Class::Albert,
        _ => return None,
    })
}

/// The vocabulary of a class, and the file to name when it cannot be used.
fn source(dir: &Path, class: Class) -> Result<(PathBuf, Source), FileError> {
    match class {
        Class::Bert | Class::Mpnet => {
            let path = dir.join("vocab.txt");
            let vocab = lines(&path)?.into_iter().zip(0..).collect();
            Ok((path, Source::Words(vocab)))
        }
        Class::Roberta | Class::Deberta | Class::Clip => {
            let path = dir.join("vocab.json");
            let vocab: HashMap<String, u32> = serde_json::from_slice(&read(&path, LARGEST_OLD)?)
                .map_err(|e| FileError { path: path.clone(), what: format!("not a table of tokens and ids: {e}") })?;
            Ok((path, Source::Pairs(vocab, merges(&dir.join("merges.txt"), class)?)))
        }
        _ => {
            let first = match class {
                Class::XlmRoberta | Class::Camembert => "sentencepiece.bpe.model",
                Class::DebertaV2 => "spm.model",
                _ => "spiece.model",
            };
            // Repositories have been renamed from one family to another without their files.
            let names = [first, "spiece.model", "spm.model", "sentencepiece.bpe.model", "sentencepiece.model"];
            let path = names.iter().map(|name| dir.join(name)).find(|path| path.is_file()).unwrap_or(dir.join(first));
            let model = spm::Model::parse(&read(&path, LARGEST_OLD)?);
            let model = model.map_err(|what| FileError { path: path.clone(), what })?;
            Ok((path, Source::Pieces(model)))
        }
    }
}

/// Two tokens a line, under a line that tells the version. Like the reference, the last line counts only if it is ended, except
/// for CLIP, whose file once held merges of a longer vocabulary too.
fn merges(path: &Path, class: Class) -> Result<Vec<(String, String)>, FileError> {
    let text = text(path)?;
    let mut lines: Vec<&str> = match class {
        Class::Clip => text.trim().split('\n').skip(1).take(49152 - 256 - 2).collect(),
        _ => text.split('\n').skip(1).collect(),
    };
    if class != Class::Clip {
        lines.pop();
    }
    let mut seen = HashSet::new();
    let mut merges = Vec::with_capacity(lines.len());
    for (n, line) in lines.into_iter().enumerate() {
        let mut words = line.split_whitespace();
        let (Some(left), Some(right), None) = (words.next(), words.next(), words.next()) else {
            return Err(FileError { path: path.into(), what: format!("line {} is not two tokens", n + 2) });
        };
        if seen.insert((left, right)) {
            merges.push((left.to_string(), right.to_string()));
        }
    }
    Ok(merges)
}

/// Lines of a vocabulary. Those of a file from Windows are the same lines.
fn lines(path: &Path) -> Result<Vec<String>, FileError> {
    let text = text(path)?;
    let lines: Vec<String> =
        text.split_inclusive('\n').map(|l| l.strip_suffix('\n').unwrap_or(l).to_string()).collect();
    match lines.len() {
        0 => Err(FileError { path: path.into(), what: "it is empty".into() }),
        _ => Ok(lines),
    }
}

fn text(path: &Path) -> Result<String, FileError> {
    let text = String::from_utf8(read(path, LARGEST_OLD)?)
        .map_err(|e| FileError { path: path.into(), what: format!("not UTF-8: {e}") })?;
    Ok(if text.contains('\r') { text.replace("\r\n", "\n").replace('\r', "\n") } else { text })
}

/// A file of settings; an empty one where there is none.
fn object(path: &Path) -> Result<Value, FileError> {
    if !path.is_file() {
        return Ok(Value::Object(Default::default()));
    }
    match serde_json::from_slice(&read(path, LARGEST_OLD)?) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err(FileError { path: path.into(), what: "not a JSON object".into() }),
        Err(e) => Err(FileError { path: path.into(), what: format!("not JSON: {e}") }),
    }
}

fn read(path: &Path, largest: u64) -> Result<Vec<u8>, FileError> {
    let fault = |what: String| FileError { path: path.into(), what };
    let file = File::open(path).map_err(|e| fault(format!("cannot be read: {e}")))?;
    let mut bytes = Vec::new();
    file.take(largest + 1).read_to_end(&mut bytes).map_err(|e| fault(format!("cannot be read: {e}")))?;
    if bytes.len() as u64 > largest {
        return Err(fault(format!("it is larger than {largest} bytes")));
    }
    Ok(bytes)
}
