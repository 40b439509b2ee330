use super::{Detokenizer, Step, Stops, decoder::TokenBytes, decoder::token_bytes};
use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use proptest::sample::select;
use sconce_testkit::check;
use tokenizers::Tokenizer;

fn tokenizer(vocab: &[&str], decoder: &str, special: &str) -> Tokenizer {
    let vocab: serde_json::Map<_, _> = vocab.iter().zip(0..).map(|(t, i)| (t.to_string(), i.into())).collect();
    let added: Vec<_> = vocab.iter().filter(|(t, _)| *t == special).collect();
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "pre_tokenizer": null,
        "post_processor": null,
        "added_tokens": added.iter().map(|(t, i)| serde_json::json!({"id": i, "content": t, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false, "special": true})).collect::<Vec<_>>(),
        "decoder": serde_json::from_str::<serde_json::Value>(decoder).unwrap(),
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    });
    Tokenizer::from_bytes(json.to_string()).unwrap()
}

/// Streamed pieces of texts of `ids` concatenate to what the library decodes at once.
pub(crate) fn assert_streams_like_decode(tokenizer: &Tokenizer, ids: &[u32], texts: u32) {
    check(texts, &vec(select(ids.to_vec()), 0..40), |text| {
        for skip in [false, true] {
            let mut detok = Detokenizer::new(tokenizer.clone().into(), skip);
            assert!(detok.streams());
            let mut whole = String::new();
            for id in &text {
                whole.extend(detok.push(*id));
            }
            whole += &detok.finish().unwrap();
            assert_eq!(whole, tokenizer.decode(&text, skip).unwrap(), "ids {text:?}, skip {skip}");
        }
    });
}

const BYTES: [&str; 14] = [
    "<0xE5>", "<0x8F>", "<0xAB>", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<0x61>", "<0xFF>", "<0xc3>", "▁a", "b", "▁",
    "<s>",
];
const SPM: &str = r#"{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},
    {"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}"#;

#[test]
fn streamed_pieces_equal_decoded_text() {
    let byte_level = ["Ġ", "a", "Ã", "©", "ð", "Ł", "ĺ", "Ģ", "ÿ", "Ċ", "Ġb", "é!", "日", "<s>"];
    let words = ["a", "##b", "c", ".", "'", "##s", "n't", "do not", "<s>", "##", "!"];
    let cases: [(&[&str], &str); 8] = [
        (&BYTES, SPM),
        (&BYTES, r#"{"type":"ByteFallback"}"#),
        (&byte_level, r#"{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}"#),
        (&words, r###"{"type":"WordPiece","prefix":"##","cleanup":true}"###),
        (&words, r###"{"type":"WordPiece","prefix":"##","cleanup":false}"###),
        (&BYTES, r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}"#),
        (&BYTES, r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"never","split":true}"#),
        (&["a</w>", "b", "</w>", "c</w>d", "<s>"], r#"{"type":"BPEDecoder","suffix":"</w>"}"#),
    ];
    for (vocab, decoder) in cases {
        let tokenizer = tokenizer(vocab, decoder, "<s>");
        let ids: Vec<u32> = (0..vocab.len() as u32 + 2).collect();
        assert_streams_like_decode(&tokenizer, &ids, 400);
    }
    assert_streams_like_decode(&tokenizer(&words, "null", "<s>"), &[0, 1, 2, 3, 8, 99], 100);
}

/// Continuing a prompt outputs what follows it: the space between words, and the rest of a
/// character.
#[test]
fn detokenizer_continues_a_prompt() {
    let words = ["a", "##b", "c", "<s>"];
    let suffixes = ["a</w>", "b", "</w>", "<s>"];
    let byte_level = ["Ġ", "a", "Ã", "©", "Ġb", "<s>"];
    let metaspace = r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}"#;
    let alphabet = r#"{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}"#;
    type Continued<'a> = (&'a [u32], &'a [u32], &'a str, &'a str);
    let cases: [(&[&str], &str, &[Continued<'_>]); 5] = [
        (
            &BYTES,
            SPM,
            &[
                (&[13, 10, 11], &[10, 11], "ab", " ab"),
                // A complete run of bytes belongs to the prompt; the answer completes an incomplete
                // one.
                (&[10, 0, 1, 2], &[11], "a叫", "b"),
                (&[10, 0, 1], &[2, 11], "a", "叫b"),
                (&[0, 1, 2, 0], &[1, 2], "叫", "叫"),
                // The prompt has no text.
                (&[13], &[10], "", "a"),
            ],
        ),
        (&BYTES, metaspace, &[(&[10], &[10], "a", " a"), (&[10, 11], &[11], "ab", "b")]),
        (&words, r###"{"type":"WordPiece","prefix":"##","cleanup":false}"###, &[(&[0], &[1, 2], "a", "b c")]),
        (
            &suffixes,
            r#"{"type":"BPEDecoder","suffix":"</w>"}"#,
            &[(&[0, 0], &[1, 0], "a a", " ba"), (&[0, 1], &[0], "a b", "a"), (&[0], &[], "a", "")],
        ),
        (&byte_level, alphabet, &[(&[1], &[4], "a", " b"), (&[1, 2], &[3, 1], "a", "éa")]),
    ];
    for (vocab, decoder, texts) in cases {
        let tokenizer = tokenizer(vocab, decoder, "<s>");
        for (before, after, prompt, answer) in texts {
            let mut detok = Detokenizer::new(tokenizer.clone().into(), true);
            assert_eq!(detok.continue_from(before).unwrap(), *prompt, "{decoder} {before:?}");
            let mut text: String = after.iter().filter_map(|id| detok.push(*id)).collect();
            text += &detok.finish().unwrap();
            assert_eq!(text, *answer, "{decoder} {before:?} {after:?}");
        }
    }
    let decoder = r#"{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Replace","pattern":{"String":"▁"},"content":" "},
        {"type":"Strip","content":" ","start":1,"stop":0}]}"#;
    let mut detok = Detokenizer::new(tokenizer(&["▁a", "b"], decoder, "").into(), true);
    assert_eq!((detok.continue_from(&[0, 1]).unwrap().as_str(), detok.push(0), detok.streams()), ("ab", None, false));
    assert_eq!(detok.finish().unwrap(), " a");
}

/// A decoder of whole texts changes the end of a prompt's text when more tokens follow. `finish`
/// returns what differs, from the first character that does, and not the prompt again.
#[test]
fn answer_begins_where_it_differs_from_the_prompt() {
    // The first bytes of `é` and `è` are the same.
    for (content, last, answer) in [("è", 2, "è"), ("è", 3, "c"), ("é", 2, ""), ("", 2, "")] {
        let decoder = format!(
            r#"{{"type":"Sequence","decoders":[{{"type":"Fuse"}},
                {{"type":"Replace","pattern":{{"String":"éb"}},"content":"{content}"}}]}}"#
        );
        let mut detok = Detokenizer::new(tokenizer(&["a", "é", "b", "c"], &decoder, "").into(), true);
        assert_eq!(detok.continue_from(&[0, 1]).unwrap(), "aé");
        assert_eq!((detok.push(last), detok.streams()), (None, false));
        assert_eq!(detok.finish().unwrap(), answer, "`éb` becomes `{content}`, then token {last}");
    }
}

#[test]
fn incomplete_characters_are_held_back() {
    let tokenizer = tokenizer(
        &["ð", "Ł", "ĺ", "Ģ", "a", "Ã"],
        r#"{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}"#,
        "",
    );
    let mut detok = Detokenizer::new(tokenizer.clone().into(), true);
    let pieces: Vec<Option<String>> = [4, 0, 1, 2, 3, 4, 5].into_iter().map(|id| detok.push(id)).collect();
    let text = |t: &str| Some(t.to_string());
    assert_eq!(pieces, [text("a"), None, None, None, text("😀"), text("a"), None]);
    assert_eq!(detok.finish().unwrap(), "\u{fffd}");
}

#[test]
fn trailing_strip_matches_the_library() {
    let decoder =
        r#"{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Strip","content":"_","start":1,"stop":2}]}"#;
    let tokenizer = tokenizer(&["_", "a", "_b", "c___"], decoder, "");
    check(300, &vec(0..4u32, 0..9), |mut ids| {
        // The library counts below zero on texts shorter than what it strips.
        ids.extend([1, 0, 0, 0]);
        let mut detok = Detokenizer::new(tokenizer.clone().into(), false);
        let mut whole: String = ids.iter().filter_map(|id| detok.push(*id)).collect();
        whole += &detok.finish().unwrap();
        assert_eq!(whole, tokenizer.decode(&ids, false).unwrap(), "{ids:?}");
    });
}

#[test]
fn long_byte_runs_are_streamed() {
    let tokenizer = tokenizer(&BYTES, SPM, "<s>");
    let mut detok = Detokenizer::new(tokenizer.clone().into(), true);
    let mut output_bytes = 0;
    for i in 0..3000 {
        output_bytes += detok.push(i % 3).map_or(0, |t| t.len());
        assert!(i as usize + 1 - output_bytes <= super::detokenizer::LONGEST_BYTE_RUN + 3);
    }
    assert_eq!(output_bytes + detok.finish().unwrap().len(), 3000);
}

#[test]
fn unstreamable_decoder_outputs_text_at_finish() {
    let decoder = r#"{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Replace","pattern":{"String":"ab"},"content":"x"}]}"#;
    let tokenizer = tokenizer(&["a", "b"], decoder, "");
    let mut detok = Detokenizer::new(tokenizer.clone().into(), true);
    assert!(!detok.streams());
    assert_eq!((detok.push(0), detok.push(1)), (None, None));
    assert_eq!(detok.finish().unwrap(), "x");
}

#[test]
fn token_bytes_cover_spm_and_byte_level() {
    let spm = token_bytes(&tokenizer(&BYTES, SPM, "<s>")).unwrap();
    assert_eq!(spm[0], TokenBytes::Text(vec![0xe5]));
    assert_eq!(spm[10], TokenBytes::Text(b" a".to_vec()));
    assert_eq!(spm[13], TokenBytes::Special("<s>".into()));
    let decoder = r#"{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}"#;
    // Every byte has a character in the byte alphabet.
    let letters: Vec<String> = (0..=0x143)
        .filter_map(char::from_u32)
        .filter(|c| !matches!(*c as u32, 0..=0x20 | 0x7f..=0xa0 | 0xad))
        .map(String::from)
        .collect();
    let all: Vec<&str> = letters.iter().map(String::as_str).collect();
    let mut bytes: Vec<u8> = token_bytes(&tokenizer(&all, decoder, ""))
        .unwrap()
        .into_iter()
        .flat_map(|t| match t {
            TokenBytes::Text(b) => b,
            _ => vec![],
        })
        .collect();
    bytes.sort_unstable();
    assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
}

/// Slow reference: where does the first stop string end, and how much is safe to output?
fn slow_first_stop(stops: &[&str], text: &str, include: bool) -> (String, Option<usize>) {
    for end in 1..=text.len() {
        let mut ending: Vec<usize> =
            (0..stops.len()).filter(|i| text.as_bytes()[..end].ends_with(stops[*i].as_bytes())).collect();
        ending.sort_by_key(|i| (std::cmp::Reverse(stops[*i].len()), *i));
        if let Some(which) = ending.first() {
            let output_bytes = if include { end } else { end - stops[*which].len() };
            return (text[..output_bytes].into(), Some(*which));
        }
    }
    (text.into(), None)
}

#[test]
fn stop_strings_match_slow_reference() {
    let word = |most: usize| vec(select(&["a", "b", "é", "日", "ab"]), 1..=most).prop_map(|parts| parts.concat());
    let inputs = (vec(word(4), 0..4), vec(word(3), 0..8), any::<bool>());
    check(4000, &inputs, |(stops, pieces, include)| {
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let (want, which) = slow_first_stop(&stops, &pieces.concat(), include);
        let mut machine = Stops::new(&stops, include).unwrap();
        let (mut got, mut read, mut stopped) = (String::new(), String::new(), None);
        for piece in &pieces {
            read += piece;
            match machine.push(piece) {
                Step::Text(text) => got += &text,
                Step::Stopped { text, stop } => {
                    got += &text;
                    stopped = stopped.or(Some(stop));
                }
            }
            // Output is never taken back, and as much as possible is output.
            let open = stops.iter().flat_map(|s| (1..s.len()).map(move |n| &s.as_bytes()[..n]));
            let held = open.filter(|begin| read.as_bytes().ends_with(begin)).map(<[u8]>::len).max().unwrap_or(0);
            if stopped.is_none() {
                assert_eq!(got.len(), read.len() - held, "{stops:?} {pieces:?}");
            }
        }
        if stopped.is_none() {
            got += &machine.finish();
        }
        assert_eq!((got, stopped), (want, which), "{stops:?} {pieces:?}");
    });
}

#[test]
fn stop_string_search_is_linear() {
    let stop = "a".repeat(30_000) + "b";
    let mut machine = Stops::new(&[&stop, &("a".repeat(20_000) + "c")], false).unwrap();
    let began = std::time::Instant::now();
    let mut output_bytes = 0;
    for _ in 0..2000 {
        let Step::Text(text) = machine.push(&("a".repeat(999) + "d")) else { panic!("no stop string came") };
        output_bytes += text.len();
    }
    assert_eq!(output_bytes, 2_000_000);
    assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
    assert!(Stops::new(&[""], false).is_err());
}
