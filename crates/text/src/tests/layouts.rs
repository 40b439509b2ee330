//! Tokenizer directories of every layout, compared with transformers.

use crate::open::open;
use sconce_testkit::json;
use serde_json::Value;
use std::path::PathBuf;

pub(super) fn goldens() -> PathBuf {
    sconce_testkit::golden("tokenizers")
}

pub(super) fn layouts() -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = std::fs::read_dir(goldens().join("layouts"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.is_dir())
        .collect();
    dirs.sort();
    dirs
}

fn numbers(value: &Value) -> Vec<usize> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|v| match v {
            Value::Array(_) => numbers(v),
            v => vec![v.as_u64().unwrap() as usize],
        })
        .collect()
}

#[test]
fn tokenizer_layouts_match_transformers() {
    let texts = json(&goldens().join("texts.json"));
    let text = |i: &Value| texts["texts"][i.as_u64().unwrap() as usize].as_str().unwrap().to_string();
    let singles = 0..texts["texts"].as_array().unwrap().len();
    let mut wrong = Vec::new();
    let mut compared = 0;
    for dir in layouts() {
        let name = dir.file_name().unwrap().to_str().unwrap().to_string();
        let tokenizer = match open(&dir) {
            Ok(t) => t,
            Err(e) => {
                wrong.push(format!("{name}: {e}"));
                continue;
            }
        };
        let golden = json(&dir.join("golden.json"));
        let inputs = singles.clone().map(|i| (Value::from(i), None));
        let pairs = texts["pairs"].as_array().unwrap().iter().map(|p| (p[0].clone(), Some(p[1].clone())));
        for ((a, b), row) in inputs.chain(pairs).zip(golden.as_array().unwrap()) {
            let encoding = match &b {
                None => tokenizer.encode_char_offsets(text(&a), true),
                Some(b) => tokenizer.encode_char_offsets((text(&a), text(b)), true),
            }
            .unwrap();
            let ids: Vec<usize> = encoding.get_ids().iter().map(|&i| i as usize).collect();
            let types: Vec<usize> = encoding.get_type_ids().iter().map(|&i| i as usize).collect();
            let mask: Vec<usize> = encoding.get_special_tokens_mask().iter().map(|&i| i as usize).collect();
            let offsets: Vec<usize> = encoding.get_offsets().iter().flat_map(|o| [o.0, o.1]).collect();
            compared += 1;
            let ours = [("ids", ids), ("types", types), ("mask", mask), ("offsets", offsets)];
            for (what, ours) in ours.into_iter().filter(|(what, _)| row.get(what).is_some()) {
                let theirs = numbers(&row[what]);
                if ours != theirs {
                    wrong.push(format!(
                        "{name} {what} of {:?} {:?}\n  {ours:?}\n  {theirs:?}",
                        text(&a),
                        b.as_ref().map(text)
                    ));
                }
            }
        }
    }
    assert!(compared > 500, "{compared} rows");
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
