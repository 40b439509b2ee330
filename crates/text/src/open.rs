//! Opens a model's tokenizer from the files in its directory.

use super::legacy::{Class, Source, tokenizer_json};
use super::special::SpecialTokens;
use super::spm;
use super::tokenizer_json_checks::check_strings;
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
/// The largest legacy files are 17 MB (`vocab.json` of a quarter million tokens).
const LARGEST_LEGACY: u64 = 64 << 20;

/// Opens `tokenizer.json`, or builds its equivalent from legacy files: `vocab.txt`, `vocab.json`
/// with `merges.txt`, or a SentencePiece model. `tokenizer_class` in `tokenizer_config.json` or
/// `config.json` decides how they are read.
pub fn open(dir: &Path) -> Result<Tokenizer, FileError> {
    let path = dir.join("tokenizer.json");
    if path.is_file() {
        return open_json(&path);
    }
    let config = object(&dir.join("tokenizer_config.json"))?;
    let class = class(dir, &config)?;
    let map = object(&dir.join("special_tokens_map.json"))?;
    let added = object(&dir.join("added_tokens.json"))?;
    let specials = SpecialTokens::new(&config, &map, &added)
        .map_err(|what| FileError { path: dir.join("tokenizer_config.json"), what })?;
    let (path, source) = source(dir, class)?;
    let json =
        tokenizer_json(class, source, &config, &specials).map_err(|what| FileError { path: path.clone(), what })?;
    let bytes = serde_json::to_vec(&json).map_err(|e| FileError { path: path.clone(), what: e.to_string() })?;
    drop(json);
    tokenizer(&bytes, &path)
}

/// Opens a `tokenizer.json`.
pub(crate) fn open_json(path: &Path) -> Result<Tokenizer, FileError> {
    let json = read(path, LARGEST)?;
    check_strings(&json).map_err(|what| FileError { path: path.into(), what })?;
    tokenizer(&json, path)
}

fn tokenizer(json: &[u8], path: &Path) -> Result<Tokenizer, FileError> {
    catch_panic(|| Tokenizer::from_bytes(json))
        .map_err(|e| FileError { path: path.into(), what: format!("not a usable tokenizer: {e}") })
}

/// Runs `f` and turns a panic into an error. A tokenizer file is untrusted, and the `tokenizers`
/// crate asserts some properties that such a file can break.
pub fn catch_panic<T>(f: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(_) => Err("the tokenizers crate panicked: the tokenizer file is inconsistent".into()),
    }
}

/// The tokenizer class: from `tokenizer_config.json`, else `config.json`, else the model type.
fn class(dir: &Path, config: &Value) -> Result<Class, FileError> {
    let model_path = dir.join("config.json");
    let model = object(&model_path)?;
    let named = [(dir.join("tokenizer_config.json"), config), (model_path.clone(), &model)];
    for (path, file) in named {
        let Some(name) = file.get("tokenizer_class").and_then(Value::as_str) else { continue };
        // These classes only say that the tokenizer was saved as a tokenizer.json.
        if matches!(name, "PreTrainedTokenizerFast" | "PreTrainedTokenizer" | "TokenizersBackend") {
            continue;
        }
        // Qwen 1 has its vocabulary in tiktoken's format.
        let hint = if name == "QWenTokenizer" { "; a GGUF file of the model has its tokenizer" } else { "" };
        return by_class(name.strip_suffix("Fast").unwrap_or(name)).ok_or_else(|| FileError {
            path,
            what: format!("the tokenizer class {name} needs a tokenizer.json, and this directory has none{hint}"),
        });
    }
    let Some(kind) = model.get("model_type").and_then(Value::as_str) else {
        let what = "there is no tokenizer.json, and neither tokenizer_config.json nor this file names a tokenizer_class or model_type";
        return Err(FileError { path: model_path, what: what.into() });
    };
    by_model_type(kind).ok_or_else(|| FileError {
        path: model_path,
        what: format!("models of type {kind} need a tokenizer.json, and this directory has none"),
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

/// The vocabulary of a class, and the file that error messages name.
fn source(dir: &Path, class: Class) -> Result<(PathBuf, Source), FileError> {
    match class {
        Class::Bert | Class::Mpnet => {
            let path = dir.join("vocab.txt");
            let vocab = lines(&path)?.into_iter().zip(0..).collect();
            Ok((path, Source::Words(vocab)))
        }
        Class::Roberta | Class::Deberta | Class::Clip => {
            let path = dir.join("vocab.json");
            let vocab: HashMap<String, u32> = serde_json::from_slice(&read(&path, LARGEST_LEGACY)?)
                .map_err(|e| FileError { path: path.clone(), what: format!("not a table of tokens and ids: {e}") })?;
            Ok((path, Source::Pairs(vocab, merges(&dir.join("merges.txt"), class)?)))
        }
        _ => {
            let first = match class {
                Class::XlmRoberta | Class::Camembert => "sentencepiece.bpe.model",
                Class::DebertaV2 => "spm.model",
                _ => "spiece.model",
            };
            // A repository may use the file name of another model family.
            let names = [first, "spiece.model", "spm.model", "sentencepiece.bpe.model", "sentencepiece.model"];
            let path = names.iter().map(|name| dir.join(name)).find(|path| path.is_file()).unwrap_or(dir.join(first));
            let model = spm::Model::parse(&read(&path, LARGEST_LEGACY)?);
            let model = model.map_err(|what| FileError { path: path.clone(), what })?;
            Ok((path, Source::Pieces(model)))
        }
    }
}

/// Reads `merges.txt`: a version line, then two tokens per line. As in the reference, a last line
/// without a newline is ignored. CLIP ignores merges beyond the size of its vocabulary instead.
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

/// Lines of a vocabulary. Windows line ends are accepted.
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
    let text = String::from_utf8(read(path, LARGEST_LEGACY)?)
        .map_err(|e| FileError { path: path.into(), what: format!("not UTF-8: {e}") })?;
    Ok(if text.contains('\r') { text.replace("\r\n", "\n").replace('\r', "\n") } else { text })
}

/// The JSON object in a file; an empty one if there is no file.
pub(crate) fn object(path: &Path) -> Result<Value, FileError> {
    if !path.is_file() {
        return Ok(Value::Object(Default::default()));
    }
    match serde_json::from_slice(&read(path, LARGEST_LEGACY)?) {
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
