use super::{Constraint, Format, FormatError, TokenMask, Vocab};
use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use sconce_testkit::{check, mix};
use sconce_text::stream::TokenBytes;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn ids(mask: &TokenMask) -> Vec<u32> {
    mask.0.iter().collect()
}

fn allows(mask: &TokenMask, id: u32) -> bool {
    mask.words().get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
}

/// The choices of a test case, and pseudo-random ones after them, so that every text ends.
#[derive(Clone, Debug)]
struct Choices {
    given: Vec<u32>,
    made: usize,
}

impl Choices {
    fn below(&mut self, n: usize) -> usize {
        let i = self.made;
        self.made += 1;
        self.given.get(i).map_or_else(|| mix(i as u64, 5) as usize, |choice| *choice as usize) % n
    }
}

fn choices() -> impl Strategy<Value = Choices> {
    vec(any::<u32>(), 0..250).prop_map(|given| Choices { given, made: 0 })
}

/// Every byte, some longer tokens, a special token, and two end tokens.
fn tokens() -> (Vec<TokenBytes>, [u32; 2]) {
    let mut all: Vec<TokenBytes> = (0..=255u8).map(|b| TokenBytes::Text(vec![b])).collect();
    let longer =
        ["{\"", "\":", "\", \"", "true", "null", "name", "age", " \"", "}}", "12", "é", "日本", "abc", "red", "\"}"];
    all.extend(longer.iter().map(|t| TokenBytes::Text(t.as_bytes().to_vec())));
    all.extend(["<|tool|>", "<|end|>", "<|eot|>"].map(|t| TokenBytes::Special(t.into())));
    all.push(TokenBytes::None);
    let eos = [all.len() as u32 - 3, all.len() as u32 - 2];
    (all, eos)
}

fn vocab() -> Vocab {
    let (tokens, eos) = tokens();
    Vocab::new(&tokens, &eos).unwrap()
}

/// A text of random allowed tokens, with a preference for closing brackets.
fn sample(format: &Format, vocab: &Vocab, mut choices: Choices) -> String {
    let (tokens, eos) = tokens();
    let mut constraint = Constraint::new(format.clone(), vocab).unwrap();
    let mut text = Vec::new();
    for step in 0..2000 {
        let mask = constraint.mask().unwrap();
        let allowed: Vec<u32> = ids(&mask);
        assert!(!allowed.is_empty(), "nothing may follow {:?}", String::from_utf8_lossy(&text));
        assert_eq!(allowed.len(), mask.0.num_set());
        let ends = allowed.iter().any(|id| eos.contains(id));
        assert_eq!(ends, constraint.can_stop(), "{:?}", String::from_utf8_lossy(&text));
        let closing = b"\"}],:".iter().map(|b| u32::from(*b)).filter(|id| allows(&mask, *id)).collect::<Vec<_>>();
        let id = match choices.below(3) {
            _ if ends && (step > 60 || choices.below(4) == 0) => eos[choices.below(2)],
            0 if !closing.is_empty() => closing[choices.below(closing.len())],
            _ if step > 60 && !closing.is_empty() => closing[choices.below(closing.len())],
            _ => allowed[choices.below(allowed.len())],
        };
        assert!(allows(&mask, id));
        constraint.commit(id).unwrap();
        if eos.contains(&id) {
            assert!(constraint.is_done());
            return String::from_utf8(text).unwrap();
        }
        let TokenBytes::Text(bytes) = &tokens[id as usize] else { panic!("{id} is not text") };
        text.extend(bytes);
        if constraint.is_done() {
            assert!(constraint.can_stop());
            assert!(ids(&constraint.mask().unwrap()).iter().all(|id| eos.contains(id)));
            return String::from_utf8(text).unwrap();
        }
    }
    panic!("no end: {:?}", String::from_utf8_lossy(&text));
}

#[test]
fn samples_satisfy_the_schema() {
    let vocab = vocab();
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "age", "colour"],
        "properties": {
            "name": {"type": "string", "minLength": 2, "maxLength": 6},
            "age": {"type": "integer", "minimum": 3, "maximum": 120},
            "colour": {"enum": ["red", "gr\u{fc}n", null]},
            "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
            "inner": {"$ref": "#/$defs/inner"},
        },
        "$defs": {"inner": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"],
            "additionalProperties": false}},
    });
    check(60, &choices(), |choices| {
        let text = sample(&Format::JsonSchema(schema.clone()), &vocab, choices);
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text:?}: {e}"));
        let map = value.as_object().unwrap();
        assert!(map.keys().all(|k| ["name", "age", "colour", "tags", "inner"].contains(&k.as_str())), "{text}");
        assert!((2..=6).contains(&map["name"].as_str().unwrap().chars().count()), "{text}");
        assert!((3..=120).contains(&map["age"].as_i64().unwrap()), "{text}");
        assert!([json!("red"), json!("gr\u{fc}n"), json!(null)].contains(&map["colour"]), "{text}");
        if let Some(tags) = map.get("tags") {
            let tags = tags.as_array().unwrap();
            assert!((1..=3).contains(&tags.len()) && tags.iter().all(Value::is_boolean), "{text}");
        }
        if let Some(inner) = map.get("inner") {
            assert!(inner["x"].is_number() && inner.as_object().unwrap().len() == 1, "{text}");
        }
    });
}

#[test]
fn samples_satisfy_json_object_regex_and_grammar() {
    let vocab = vocab();
    check(30, &(choices(), choices(), choices()), |(object, date, sum)| {
        let text = sample(&Format::JsonObject, &vocab, object);
        assert!(serde_json::from_str::<Value>(&text).unwrap().is_object(), "{text}");
        let date = sample(&Format::Regex(r"20[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]".into()), &vocab, date);
        assert!(date.len() == 10 && date.starts_with("20"), "{date}");
        let sum = sample(&Format::Grammar("start: term (\"+\" term)*\nterm: /[0-9]{1,3}/".into()), &vocab, sum);
        assert!(sum.split('+').all(|t| (1..=3).contains(&t.len()) && t.bytes().all(|b| b.is_ascii_digit())), "{sum}");
    });
}

#[test]
fn samples_satisfy_gbnf() {
    let vocab = vocab();
    let json = r#"
root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4})){0,8} "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,5}) ("." [0-9]{1,3})? ws
ws ::= | " " | "\n" [ \t]{0,3}
"#;
    check(30, &(choices(), choices()), |(object, list)| {
        let text = sample(&Format::Gbnf(json.into()), &vocab, object);
        assert!(serde_json::from_str::<Value>(&text).unwrap_or_else(|e| panic!("{text:?}: {e}")).is_object());
        let list = sample(&Format::Gbnf("root ::= (\"- \" [a-c]+ \"\\n\"){1,4}".into()), &vocab, list);
        assert!(
            list.lines().all(|l| l.strip_prefix("- ").is_some_and(|rest| rest.bytes().all(|b| b"abc".contains(&b))))
        );
    });
    let five = Format::Gbnf("root ::= \"a\"{5,5}".into());
    assert_eq!(sample(&five, &vocab, Choices { given: Vec::new(), made: 0 }), "aaaaa");
    let fault = Constraint::new(Format::Gbnf("root ::= (\"a\"".into()), &vocab).unwrap_err();
    assert!(fault.to_string().contains("the grammar cannot be used: line 1, column 14"), "{fault}");
    assert_eq!(Format::grammar("root ::= \"a\""), Format::Gbnf("root ::= \"a\"".into()));
    assert_eq!(Format::grammar("start: \"a\""), Format::Grammar("start: \"a\"".into()));
}

#[test]
fn disallowed_token_is_refused_and_keeps_the_state() {
    let vocab = vocab();
    let mut constraint = Constraint::new(Format::Regex("ab".into()), &vocab).unwrap();
    assert_eq!(constraint.commit(u32::from(b'b')), Err(FormatError::Token(u32::from(b'b'))));
    constraint.commit(u32::from(b'a')).unwrap();
    assert!(!constraint.can_stop() && !constraint.is_done());
    constraint.commit(u32::from(b'b')).unwrap();
    assert!(constraint.can_stop() && constraint.is_done());
    assert_eq!(ids(&constraint.mask().unwrap()), tokens().1);
}

#[test]
fn special_tokens_do_not_match_text_patterns() {
    let vocab = vocab();
    let mut constraint = Constraint::new(Format::Regex("(.|\n)*".into()), &vocab).unwrap();
    let mask = constraint.mask().unwrap();
    let special = tokens().1[0] - 1;
    assert!(allows(&mask, u32::from(b'<')) && !allows(&mask, special) && !allows(&mask, u32::MAX));
    assert!(allows(&mask, tokens().1[0]) && allows(&mask, tokens().1[1]));
}

/// Impossible, invalid or too costly formats fail at once.
#[test]
fn hostile_formats_are_refused_or_end_soon() {
    let vocab = vocab();
    let deep = (0..400).fold(json!({"type": "string"}), |inner, _| json!({"type": "array", "items": inner}));
    let wide: Value =
        (0..20_000).map(|i| (format!("k{i}"), json!({"type": "string"}))).collect::<serde_json::Map<_, _>>().into();
    let must_fail = [
        Format::JsonSchema(json!({"type": "integer", "minimum": 5, "maximum": 3})),
        Format::JsonSchema(json!({"type": "string", "minLength": 5, "maxLength": 3})),
        Format::JsonSchema(json!(false)),
        Format::JsonSchema(json!("string")),
        Format::JsonSchema(json!({"$ref": "https://example.com/schema.json"})),
        Format::JsonSchema(json!({"$ref": "#/$defs/none"})),
        Format::JsonSchema(json!({"type": "nonsense"})),
        Format::JsonSchema(deep),
        Format::JsonSchema(json!({"properties": wide})),
        Format::Regex("(".into()),
        Format::Regex("(".repeat(100_000)),
        Format::Regex("a".repeat(1 << 20)),
        Format::Regex("(?=a)b".into()),
        Format::Grammar("start: nothing".into()),
        Format::Grammar("".into()),
        Format::Grammar("start: ".to_string() + &"(".repeat(10_000)),
        Format::Regex("[^a]*".repeat(5_000)),
        Format::JsonSchema(json!({"type": "string", "pattern": "[^a]*".repeat(5_000)})),
        chain(20_000, ""),
        chain(1_000, &"(".repeat(100)),
    ];
    let why = |source: &str| Constraint::new(Format::Regex(source.into()), &vocab).unwrap_err().to_string();
    assert!(why("(").contains("unclosed group"), "{}", why("("));
    for (i, format) in must_fail.into_iter().enumerate() {
        let began = Instant::now();
        let compiled = Constraint::new(format, &vocab);
        println!("must fail {i}: {:?} {:?}", began.elapsed(), compiled.as_ref().err().map(ToString::to_string));
        assert!(compiled.is_err(), "{i} was accepted");
        assert!(began.elapsed() < Duration::from_secs(30), "{i} took {:?}", began.elapsed());
    }
    // These may compile or not, but neither they nor their masks may take long.
    let may_fail = [
        Format::JsonSchema(json!({"type": "string", "pattern": "(((((a{1,99}){1,99}){1,99}){1,99}){1,99}){1,99}"})),
        Format::Regex("a{1000000000}".into()),
        Format::Regex("(((((a{1,99}){1,99}){1,99}){1,99}){1,99}){1,99}".into()),
        Format::Grammar("start: start".into()),
        // Compiling these is recursive; neither may end the process.
        chain(7_000, ""),
        chain(7_000, "(\"y\" | "),
        Format::Regex("(?i)(a|b|ab)*(c|d|cd)*".repeat(200)),
        Format::Regex("[a-z]{0,100000}[b-y]{0,100000}z".into()),
        Format::Regex(r"(\w+\s?){1,1000}\.".into()),
        Format::Regex(format!("({})", (0..20_000).map(|i| format!("w{i}")).collect::<Vec<_>>().join("|"))),
        Format::Regex("(a|a)*(a|a)*(a|a)*(a|a)*b".into()),
        Format::Regex("(.*a){20}".into()),
        Format::Regex("(a?){500}a{500}".into()),
        Format::Regex(".*(a|b).{25}".into()),
        Format::Grammar("start: s\ns: s s | \"a\" | \"\"".into()),
        Format::Grammar("start: a a a a a a a a\na: \"x\"* | a a".into()),
        Format::JsonSchema(
            json!({"anyOf": (0..500).map(|i| json!({"type": "object", "properties": {format!("p{i}"): {"type": "string"}}})).collect::<Vec<_>>()}),
        ),
        Format::JsonSchema(json!({"type": "string", "maxLength": 1_000_000_000u64})),
        Format::JsonSchema(json!({"type": "array", "minItems": 1_000_000, "maxItems": 10_000_000})),
        Format::JsonSchema(json!({"enum": (0..5000).map(|i| format!("value {i}")).collect::<Vec<_>>()})),
        Format::JsonSchema(json!({"$ref": "#"})),
        Format::JsonSchema(
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        ),
        Format::JsonSchema(
            json!({"allOf": (0..30).map(|i| json!({"anyOf": [{"minLength": i}, {"maxLength": 100 + i}, {"pattern": format!("a{i}")}]})).collect::<Vec<_>>()}),
        ),
    ];
    for (i, format) in may_fail.into_iter().enumerate() {
        let began = Instant::now();
        let compiled = Constraint::new(format, &vocab);
        println!("may fail {i}: {:?} {:?}", began.elapsed(), compiled.as_ref().err().map(ToString::to_string));
        if let Ok(mut constraint) = compiled {
            for _ in 0..50 {
                let Ok(mask) = constraint.mask() else { break };
                let id = if allows(&mask, u32::from(b'a')) { u32::from(b'a') } else { ids(&mask)[0] };
                if constraint.commit(id).is_err() || constraint.is_done() {
                    break;
                }
            }
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{i} took {:?}", began.elapsed());
        println!("  with its masks {:?}", began.elapsed());
    }
}

/// A grammar of so many rules, each of which refers to the next within these brackets.
fn chain(rules: usize, brackets: &str) -> Format {
    let closing = ")".repeat(brackets.matches('(').count());
    let each = (0..rules).map(|i| format!("a{i}: {brackets}a{}{closing} \"x\"\n", i + 1));
    Format::Grammar(format!("start: a0\n{}a{rules}: \"x\"\n", each.collect::<String>()))
}

#[test]
fn vocabularies_need_valid_end_tokens() {
    let (tokens, _) = tokens();
    assert!(Vocab::new(&tokens, &[]).is_err());
    assert!(Vocab::new(&tokens, &[9999]).is_err());
    let long = [vec![TokenBytes::Text(vec![b'a'; 1 << 20])], tokens].concat();
    assert!(Vocab::new(&long, &[5]).is_ok());
}
