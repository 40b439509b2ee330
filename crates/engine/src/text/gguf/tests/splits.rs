//! scratch only
use super::*;
use tokenizers::tokenizer::normalizer::OffsetReferential;
use tokenizers::{OffsetType, PreTokenizedString, PreTokenizer};

#[test]
#[ignore = "scratch"]
fn splits() {
    let list: Vec<(String, Vec<String>)> = serde_json::from_slice(&std::fs::read(std::env::var("SPLITS_IN").unwrap()).unwrap()).unwrap();
    let mut out = Vec::new();
    for (name, texts) in list {
        let kind = kind(Some(&name)).unwrap_or_else(|| panic!("{name}"));
        let steps: Vec<serde_json::Value> = kind.cuts.iter().map(|c| super::super::parts::isolate(c)).collect();
        let pre: tokenizers::PreTokenizerWrapper = serde_json::from_value(serde_json::json!({"type":"Sequence","pretokenizers":steps})).unwrap();
        for t in texts {
            let mut p = PreTokenizedString::from(t.as_str());
            pre.pre_tokenize(&mut p).unwrap();
            let v: Vec<usize> = p.get_splits(OffsetReferential::Original, OffsetType::Byte).iter().map(|(_, (a, b), _)| b - a).collect();
            out.push(v);
        }
    }
    std::fs::write(std::env::var("SPLITS_OUT").unwrap(), serde_json::to_vec(&out).unwrap()).unwrap();
}
