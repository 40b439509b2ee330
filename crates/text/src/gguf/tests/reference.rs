//! Compares a slow reference of SentencePiece BPE with the library's ranked merges.

use super::golden::read;
use super::*;
use proptest::collection::vec;
use proptest::prelude::Strategy;
use proptest::sample::select;
use sconce_testkit::check;

/// Repeatedly joins the adjacent pair that makes the token with the best score, the leftmost first.
fn slow_bpe(v: &Vocabulary<'_>, text: &str) -> Vec<u32> {
    let scores = v.scores.as_deref().unwrap();
    let known: HashMap<&str, u32> = v.tokens.iter().copied().zip(0..).collect();
    let text_id = |part: &str| {
        let id = known.get(part).copied();
        id.filter(|id| v.types.as_ref().is_none_or(|t| matches!(t[*id as usize], 1 | 4 | 5)))
    };
    let text = format!("{SPACE}{}", text.replace(' ', SPACE));
    let mut parts: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let pairs = parts.windows(2).enumerate().filter_map(|(i, two)| Some((i, text_id(&two.concat())?)));
        let best = pairs.map(|(i, id)| (i, scores[id as usize])).reduce(|a, b| if b.1 > a.1 { b } else { a });
        let Some((at, _)) = best else { break };
        let right = parts.remove(at + 1);
        parts[at].push_str(&right);
    }
    let spell = |part: &String| match text_id(part) {
        Some(id) => vec![id],
        None => part.bytes().map(|b| known[format!("<0x{b:02X}>").as_str()]).collect(),
    };
    parts.iter().flat_map(spell).collect()
}

/// Up to `most` of the parts, one after the other.
fn texts(parts: &[&str], most: usize) -> impl Strategy<Value = String> {
    let parts: Vec<String> = parts.iter().map(|part| part.to_string()).collect();
    vec(select(parts), 1..=most).prop_map(|parts| parts.concat())
}

#[test]
fn ranked_merges_match_merges_by_score() {
    let runs: Vec<String> = (2..9).map(|n| SPACE.repeat(n)).collect();
    let mut list =
        vec![(SPACE, -9.0), ("a", -10.0), ("b", -11.0), ("c", -12.0), ("ab", -1.0), ("bc", -2.0), ("abc", -3.0)];
    list.extend([("ca", -4.0), ("\u{2581}a", -5.0), ("cc", -6.0), ("ccc", -7.0), ("cab", -8.0)]);
    list.extend(runs.iter().map(|run| (run.as_str(), 0.0)));
    let (tokens, scores, types) = pieces(&list);
    let (scores, types) = (Some(scores), Some(types));
    let v = Vocabulary { model: "llama", tokens: refs(&tokens), scores, types, ..Default::default() };
    let built = tokenizer(&v, Specials::Text).unwrap();
    check(2000, &texts(&["a", "b", "c", " ", "  ", "x", "cc"], 24), |text| {
        assert_eq!(ids(&built, &text, false), slow_bpe(&v, &text), "{text:?}");
    });
}

#[test]
#[ignore = "needs llama.cpp's vocabularies: SCONCE_LLAMA_MODELS"]
fn ranked_merges_match_merges_by_score_in_real_vocabularies() {
    for name in ["llama-spm", "phi-3", "baichuan"] {
        let file = read(name);
        let v = file.vocabulary();
        let built = tokenizer(&v, Specials::Text).unwrap();
        let parts: Vec<String> =
            v.tokens[259..].iter().filter(|t| !t.contains('|')).map(|t| t.replace(SPACE, " ")).collect();
        let mut parts = refs(&parts);
        parts.retain(|part| part.len() < 24);
        check(500, &texts(&parts, 30), |text| {
            assert_eq!(ids(&built, &text, false), slow_bpe(&v, &text), "{name}: {text:?}");
        });
    }
}
