//! The tokenizer on its own.

use crate::{ModelTokenizer, PadTo, Padding, TextOrPair, Tokenizer, TokenizerOptions, Truncate};
use sconce_testkit::golden;

const TEXTS: [&str; 4] = ["A man is eating food.", "", "Grüße, a man", "a"];

fn tokenizer() -> Tokenizer {
    Tokenizer::open(&golden("st-legacy")).unwrap()
}

#[test]
fn encodes_as_the_models_tokenizer_with_offsets_and_decodes() {
    let (own, model) = (tokenizer(), ModelTokenizer::load(&golden("st-legacy"), 512, TokenizerOptions::default()));
    let want = model.unwrap().reader(Truncate::Right).encode(&TEXTS, "").unwrap();
    let batch = own.encode_batch(&TEXTS, true).unwrap();
    for ((text, want), got) in TEXTS.iter().zip(&want).zip(&batch) {
        assert_eq!((&got.ids, got.truncated), (&want.ids, false), "{text}");
        assert_eq!(got, &own.encode(*text, true).unwrap(), "{text}: alone as in a batch");
        assert!(got.attention_mask.iter().all(|m| *m == 1) && got.type_ids.iter().all(|t| *t == 0));
        let chars: Vec<char> = text.chars().collect();
        for ((id, token), (offsets, special)) in
            got.ids.iter().zip(&got.tokens).zip(got.offsets.iter().zip(&got.special))
        {
            assert_eq!((own.token(*id).as_ref(), own.id(token)), (Some(token), Some(*id)));
            assert_eq!(offsets.is_none(), *special, "{token}");
            if let Some((start, end)) = offsets {
                let covered: String = chars[*start..*end].iter().collect();
                assert!(token == "[UNK]" || covered.to_lowercase() == token.trim_start_matches("##"), "{token}");
            }
        }
        let bare = own.encode(*text, false).unwrap();
        assert_eq!(bare.ids[..], got.ids[1..got.ids.len() - 1], "{text}: without special tokens");
    }
    let ids: Vec<&[u32]> = batch.iter().map(|e| e.ids.as_slice()).collect();
    let decoded = own.decode_batch(&ids, true).unwrap();
    assert_eq!(decoded[0], "a man is eating food.");
    assert!(own.decode(ids[0], false).unwrap().starts_with("[CLS] a man"));
    assert!(own.decode(&[u32::MAX], true).is_err());
    let pair = own.encode(TextOrPair::from(("a man", "a girl")), true).unwrap();
    assert_eq!(pair.type_ids.iter().max(), Some(&1));
    assert_eq!(own.special_tokens()["cls_token"], batch[0].ids[0]);
    assert_eq!(own.vocabulary(true).len(), own.vocabulary_size(true));
}

#[test]
fn truncates_at_either_end_or_refuses() {
    let whole = tokenizer().encode(TEXTS[0], true).unwrap().ids;
    let with = |n, truncate| tokenizer().with_truncation(n, truncate).unwrap();
    let right = with(4, Truncate::Right).encode(TEXTS[0], true).unwrap();
    assert_eq!(right.ids, [&whole[..3], &whole[whole.len() - 1..]].concat());
    assert!(right.truncated);
    let left = with(4, Truncate::Left).encode(TEXTS[0], true).unwrap();
    assert_eq!(left.ids, [&whole[..1], &whole[whole.len() - 3..]].concat());
    let never = with(4, Truncate::Never);
    assert!(never.encode("a", true).is_ok());
    let error = never.encode_batch(&TEXTS, true).unwrap_err().to_string();
    assert!(error.starts_with("text 1:") && error.contains("more than 4 tokens"), "{error}");
    assert!(tokenizer().with_truncation(0, Truncate::Right).and_then(|t| t.encode("a", true)).is_err());
}

#[test]
fn pads_to_the_longest_or_to_a_length() {
    let pad = |padding: Padding| tokenizer().with_padding(&padding).unwrap().encode_batch(&TEXTS, true).unwrap();
    let plain = tokenizer().encode_batch(&TEXTS, true).unwrap();
    let longest = plain.iter().map(|e| e.ids.len()).max().unwrap();
    let id = tokenizer().special_tokens()["pad_token"];
    for (e, plain) in pad(Padding::default()).iter().zip(&plain) {
        let n = plain.ids.len();
        assert_eq!((e.ids.len(), &e.ids[..n]), (longest, &plain.ids[..]));
        assert!(e.ids[n..].iter().all(|i| *i == id) && e.attention_mask[n..].iter().all(|m| *m == 0));
        assert!(e.offsets[n..].iter().all(Option::is_none));
    }
    let left = pad(Padding { to: PadTo::Length(20), left: true, ..Padding::default() });
    assert!(left.iter().all(|e| e.ids.len() == 20 && e.attention_mask[19] == 1));
    let eights = pad(Padding { multiple_of: Some(8), ..Padding::default() });
    assert!(eights.iter().all(|e| e.ids.len() == longest.next_multiple_of(8)));
    for bad in [
        Padding { to: PadTo::Length(usize::MAX), ..Padding::default() },
        Padding { multiple_of: Some(0), ..Padding::default() },
        Padding { token: Some("no such token".into()), ..Padding::default() },
    ] {
        assert!(tokenizer().with_padding(&bad).is_err(), "{bad:?}");
    }
    let named = Padding { token: Some("[SEP]".into()), to: PadTo::Length(6), ..Padding::default() };
    let named = tokenizer().with_padding(&named).unwrap().encode("a", true).unwrap();
    assert_eq!(named.tokens[5], "[SEP]");
}

#[test]
fn opens_a_tokenizer_json_alone() {
    let file = golden("st-legacy").join("tokenizer.json");
    let alone = Tokenizer::open(&file).unwrap();
    assert_eq!(alone.encode(TEXTS[0], true).unwrap(), tokenizer().encode(TEXTS[0], true).unwrap());
    assert!(alone.special_tokens().is_empty());
    assert!(alone.with_padding(&Padding::default()).is_ok(), "[PAD] is known by its name");
}
