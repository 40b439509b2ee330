//! Randomly corrupted files: opening gives an error or a tokenizer, never a
//! panic, and never takes long.

use super::layouts::layouts;
use crate::open::{catch_panic, open};
use crate::spm;
use proptest::prelude::any;
use proptest::sample::Index;
use sconce_testkit::{DamagedFile, check, mutations};
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn copy(dir: &Path, to: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        if name != "golden.json" {
            std::fs::copy(&path, to.join(name)).unwrap();
            files.push(to.join(name));
        }
    }
    files.sort();
    files
}

#[test]
fn mutated_tokenizer_files_never_panic() {
    let root = std::env::temp_dir().join(format!("sconce-layouts-{}", std::process::id()));
    let (opened, refused) = (Cell::new(0), Cell::new(0));
    let slow = RefCell::new(Vec::new());
    let damage = mutations(
        1..=3,
        b"\x00\xff\x80\"\n9",
        &[b"-1", b"4294967295", b"1e999", b"99999999999999999999", b"null", b"[]"],
    );
    for dir in layouts() {
        let to = root.join(dir.file_name().unwrap());
        std::fs::create_dir_all(&to).unwrap();
        let files = copy(&dir, &to);
        check(40, &(any::<Index>(), &damage), |(file, damage)| {
            let file = file.get(&files);
            let _damaged = DamagedFile::new(file, &damage, usize::MAX);
            let started = Instant::now();
            match open(&to) {
                Ok(tokenizer) => {
                    opened.set(opened.get() + 1);
                    let text = "Anna <mask> [MASK] naïve ｶﾞ 東京 👩‍👩‍👧 \u{0}\u{1} didn't";
                    let _ = catch_panic(|| tokenizer.encode_char_offsets((text, text), true));
                }
                Err(error) => {
                    refused.set(refused.get() + 1);
                    assert!(error.path.starts_with(&to) && !error.what.is_empty(), "{error}");
                }
            }
            if started.elapsed() > Duration::from_secs(2) {
                slow.borrow_mut().push(format!("{}, {damage:?}: {:?}", file.display(), started.elapsed()));
            }
        });
    }
    std::fs::remove_dir_all(&root).unwrap();
    let (opened, refused, slow) = (opened.get(), refused.get(), slow.into_inner());
    assert!(slow.is_empty(), "{slow:?}");
    assert!(opened > 20 && refused > 20, "opened {opened}, refused {refused}");
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut n = bytes.len();
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
    [out, bytes.to_vec()].concat()
}

#[test]
fn invalid_sentencepiece_models_are_rejected() {
    let parse_error = |bytes: &[u8]| spm::Model::parse(bytes).unwrap_err();
    let piece = |text: &[u8]| field(1, &field(1, text));
    assert!(spm::Model::parse(&piece(b"a")).is_ok());
    assert!(parse_error(b"").contains("no pieces"));
    assert!(parse_error(&[0xff; 40]).contains("cut short"));
    assert!(parse_error(&piece(b"")).contains("0 bytes"));
    assert!(parse_error(&piece(&[b'a'; 1 << 20])).contains("1048576 bytes"));
    assert!(parse_error(&piece(&[0xff])).contains("UTF-8"));
    // A length that the library would allocate before it checks.
    let map = |bytes: &[u8]| [piece(b"a"), field(3, &field(2, bytes))].concat();
    assert!(parse_error(&map(&[0xfc, 0xff, 0xff, 0xff, 0])).contains("cut short"));
    let long = [&[4, 0, 0, 0, 0, 0, 0, 0][..], &[b'x'; 1000]].concat();
    assert!(parse_error(&map(&long)).contains("1000 bytes"));
    // Unknown piece beyond the end; model type 3 (words).
    assert!(parse_error(&[piece(b"a"), field(2, &[0xc0, 2, 5])].concat()).contains("number 5 of 1"));
    assert!(parse_error(&[piece(b"a"), field(2, &[3 << 3, 3])].concat()).contains("model type 3"));
    // NaN as a score.
    let mut nan = field(1, b"a");
    nan.extend([2 << 3 | 5, 0, 0, 0xc0, 0x7f]);
    assert!(parse_error(&field(1, &nan)).contains("NaN"));
}

#[test]
fn tokenizer_errors_name_class_and_file() {
    let dir = std::env::temp_dir().join(format!("sconce-class-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let config = |file: &str, text: &str| std::fs::write(dir.join(file), text).unwrap();
    let why = || open(&dir).unwrap_err().to_string();
    assert!(why().contains("config.json") && why().contains("no tokenizer.json"), "{}", why());
    config("config.json", r#"{"model_type": "mamba"}"#);
    assert!(why().contains("config.json: models of type mamba"), "{}", why());
    config("tokenizer_config.json", r#"{"tokenizer_class": "LlamaTokenizerFast"}"#);
    assert!(why().contains("tokenizer_config.json: the tokenizer class LlamaTokenizerFast"), "{}", why());
    config("tokenizer_config.json", r#"{"tokenizer_class": "QWenTokenizer"}"#);
    assert!(why().contains("QWenTokenizer") && why().contains("GGUF file of the model"), "{}", why());
    config("tokenizer_config.json", r#"{"tokenizer_class": "BertTokenizer"}"#);
    assert!(why().contains("vocab.txt: cannot be read"), "{}", why());
    config("vocab.txt", "[UNK]\na\nb\n");
    // Special tokens missing from the vocabulary get the ids after its end.
    assert_eq!(open(&dir).unwrap().encode("a", true).unwrap().get_ids(), [5, 1, 3]);
    config("added_tokens.json", r#"{"new": 1}"#);
    assert!(why().contains("has the id 1 of another token"), "{}", why());
    // An id with a gap before it is kept.
    config("added_tokens.json", r#"{"new": 40, "old": 30}"#);
    let tokenizer = open(&dir).unwrap();
    assert_eq!((tokenizer.token_to_id("new"), tokenizer.token_to_id("old")), (Some(40), Some(30)));
    let ids = tokenizer.encode("a new b", false).unwrap();
    assert_eq!(ids.get_ids(), [1, 40, 2]);
    std::fs::remove_dir_all(&dir).unwrap();
}
