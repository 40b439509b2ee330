//! Structured output of a tiny model with random weights: whatever it would prefer, the format
//! holds.

use sconce_engine::hub::{Options, Reference};
use sconce_engine::{
    DeviceChoice, Event, Finish, Format, Generation, GenerationParams, Llm, LlmOptions, LoadOptions, ReasoningSyntax,
    Request, Start, Thoughts,
};
use sconce_testkit::materialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// A Llama with a vocabulary of 559. Its tokenizer strips the first space of a text.
fn load(llm: &LlmOptions) -> Llm {
    let dir = materialize("task-embed-llama");
    for name in ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"] {
        std::fs::remove_file(dir.path().join(name)).expect("a file");
    }
    let options =
        LoadOptions::new(Options::from_env().expect("caches")).with_device(DeviceChoice::Only(sconce_ops::Device::Cpu));
    let reference: Reference = dir.path().to_str().expect("a path").parse().expect("a reference");
    Llm::load(&reference, &options.with_llm(*llm), &()).expect("a model")
}

fn schema() -> Value {
    json!({
        "type": "object", "additionalProperties": false, "required": ["name", "age", "tags"],
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 4},
            "age": {"type": "integer", "minimum": 3, "maximum": 120},
            "tags": {"type": "array", "items": {"enum": ["red", "gr\u{fc}n", null]}, "minItems": 1, "maxItems": 2},
        },
    })
}

fn assert_follows_schema(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{text:?}: {e}"));
    let map = value.as_object().expect("an object");
    assert_eq!(map.keys().map(String::as_str).collect::<BTreeSet<_>>(), ["age", "name", "tags"].into(), "{text}");
    assert!((1..=4).contains(&map["name"].as_str().expect("a name").chars().count()), "{text}");
    assert!((3..=120).contains(&map["age"].as_i64().expect("a number")), "{text}");
    let tags = map["tags"].as_array().expect("tags");
    let colours = [json!("red"), json!("gr\u{fc}n"), Value::Null];
    assert!((1..=2).contains(&tags.len()) && tags.iter().all(|tag| colours.contains(tag)), "{text}");
}

fn sampling(seed: u64) -> GenerationParams {
    GenerationParams::default().with_temperature(1.0).with_seed(seed)
}

fn request(format: Format, params: GenerationParams) -> Request {
    Request { start: Start::Text("the cat".into()), params: Some(params), format: Some(format), ..Request::default() }
}

fn run(llm: &Llm, request: &Request) -> Generation {
    llm.stream(request).expect("a stream").wait().expect("an answer")
}

/// The number of answers that reached their end: the context is short, and random weights repeat
/// whitespace.
fn count_complete(generation: &Generation) -> usize {
    generation.answers.iter().filter(|a| a.finish == Some(Finish::End)).count()
}

#[test]
fn sampled_answers_satisfy_the_schema() {
    let llm = load(&LlmOptions::default());
    let mut complete = 0;
    let mut texts = BTreeSet::new();
    let variants = [
        |seed| sampling(seed),
        |seed| sampling(seed).with_top_k(Some(8)).with_top_p(0.9),
        |seed| sampling(seed).with_repetition_penalty(1.3).with_frequency_penalty(0.5).with_presence_penalty(0.5),
        |seed| sampling(seed).with_n(3).with_min_p(0.05),
    ];
    let requests: Vec<Request> =
        (0..80).map(|seed| request(Format::JsonSchema(schema()), variants[seed as usize % 4](seed))).collect();
    for generation in llm.generate(&requests) {
        let generation = generation.expect("an answer");
        complete += count_complete(&generation);
        for answer in &generation.answers {
            match answer.finish {
                Some(Finish::End) => assert_follows_schema(&answer.text),
                _ => assert_eq!(answer.finish, Some(Finish::Length)),
            }
            texts.insert(answer.text.clone());
        }
        let own: BTreeSet<&str> = generation.answers.iter().map(|a| &*a.text).collect();
        assert_eq!(own.len(), generation.answers.len(), "the answers of one request differ");
    }
    assert!(complete >= 60 && texts.len() > 100, "{complete} complete, {} different", texts.len());
}

#[test]
fn answers_follow_regex_grammar_and_json_object() {
    let llm = load(&LlmOptions::default());
    for seed in 0..12 {
        let text = |format: Format| {
            let generation = run(&llm, &request(format, sampling(seed)));
            assert_eq!(generation.answers[0].finish, Some(Finish::End), "{:?}", generation.answers[0].text);
            generation.answers.into_iter().next().expect("an answer").text
        };
        let date = text(Format::Regex("20[0-9]{2}-(0[1-9]|1[0-2])".into()));
        assert!(date.len() == 7 && date.starts_with("20") && date.as_bytes()[4] == b'-', "{date}");
        // The leading space is not stripped.
        let spaced = text(Format::Regex(" (yes|no)".into()));
        assert!(spaced == " yes" || spaced == " no", "{spaced:?}");
        let sum = text(Format::Grammar("start: term (\"+\" term){1,3}\nterm: /[0-9]{1,3}/".into()));
        let terms: Vec<&str> = sum.split('+').collect();
        assert!((2..=4).contains(&terms.len()) && terms.iter().all(|t| t.parse::<u32>().is_ok()), "{sum}");
        let any = run(&llm, &request(Format::JsonObject, sampling(seed)));
        assert!(any.answers[0].text.starts_with('{'));
        if count_complete(&any) == 1 {
            assert!(serde_json::from_str::<Value>(&any.answers[0].text).expect("JSON").is_object());
        }
        // A text that may end or continue ends by the model's end token.
        let end = sampling(seed).with_logit_bias([(2, 100.0)].into());
        let least = run(&llm, &request(Format::Regex("[a-z]{3,40}".into()), end));
        let (text, sampled) = (&least.answers[0].text, &least.answers[0].sampled);
        let before: Vec<u32> = sampled[..sampled.len() - 1].iter().map(|p| p.id).collect();
        assert!(text.len() >= 3 && llm.decode(&before).expect("a text").trim().len() < 3, "{text}");
        assert_eq!(least.answers[0].finish, Some(Finish::End));
    }
    let greedy = GenerationParams::default().with_temperature(0.0);
    assert_eq!(run(&llm, &request(Format::Regex("abc".into()), greedy)).answers[0].text, "abc");
}

#[test]
fn limits_and_stop_strings_end_constrained_answers() {
    let llm = load(&LlmOptions::default());
    let cut = Request { max_tokens: Some(3), ..request(Format::JsonSchema(schema()), sampling(1)) };
    let answer = &run(&llm, &cut).answers[0];
    assert_eq!((answer.sampled.len(), &answer.finish), (3, &Some(Finish::Length)));
    // The last allowed token is the last needed one.
    let exact = Request { max_tokens: Some(1), ..request(Format::Regex("a".into()), sampling(1)) };
    assert_eq!(run(&llm, &exact).answers[0].finish, Some(Finish::End));
    let stop = Request { stop: vec!["b".into()], ..request(Format::Regex("aaabbb".into()), sampling(1)) };
    let answer = &run(&llm, &stop).answers[0];
    assert_eq!((&*answer.text, &answer.finish), ("aaa", &Some(Finish::Stop("b".into()))));
    let on = Request { ignore_end: true, ..request(Format::JsonObject, sampling(1)) };
    assert!(llm.stream(&on).err().expect("refused").to_string().contains("cannot ignore the model's end token"));
}

#[test]
fn format_and_stop_strings_begin_after_the_thought() {
    let llm = load(&LlmOptions::default());
    let thoughts = Thoughts { syntax: ReasoningSyntax::all()[0], budget: Some(8) };
    let request = |start: &str, seed| Request {
        start: Start::Rendered(start.into()),
        stop: vec!["a".into(), "e".into(), "t".into()],
        thoughts: Some(thoughts),
        // Tokens that have a marker, or the end of one: a random model would write them anywhere.
        ..request(
            Format::Regex("no".into()),
            sampling(seed)
                .with_n(2)
                .with_logit_bias([326, 362, 391, 392, 408, 426, 432, 435, 437].map(|id| (id, -100.0)).into()),
        )
    };
    let mut stops = 0;
    for seed in 0..8 {
        for answer in run(&llm, &request("the cat<think>\n", seed)).answers {
            let thought = answer.text.strip_suffix("</think>no").unwrap_or_else(|| panic!("{:?}", answer.text));
            // The marker has several tokens in this vocabulary.
            assert!(answer.finish == Some(Finish::End) && answer.sampled.len() > 4, "{answer:?}");
            stops += usize::from(thought.contains(['a', 'e', 't']));
        }
        // The prompt opens no thought, and a marker of several tokens does not begin one.
        for answer in run(&llm, &request("the cat", seed)).answers {
            assert_eq!((answer.text.as_str(), answer.finish), ("no", Some(Finish::End)));
        }
    }
    assert!(stops > 4, "{stops} thoughts have a stop string");
}

fn mixed_requests() -> Vec<Request> {
    let free = |seed, n| Request {
        start: Start::Text("on the mat".into()),
        params: Some(sampling(seed).with_n(n)),
        max_tokens: Some(90),
        ignore_end: true,
        ..Request::default()
    };
    let long = |seed, n| request(Format::Regex("([a-e]{2} ){40}".into()), sampling(seed).with_n(n));
    vec![free(1, 1), long(2, 1), request(Format::JsonSchema(schema()), sampling(3)), long(4, 3), free(5, 2), long(6, 1)]
}

fn ids(generation: &Generation) -> Vec<Vec<u32>> {
    generation.answers.iter().map(|a| a.sampled.iter().map(|p| p.id).collect()).collect()
}

#[test]
fn constrained_answers_equal_alone_batched_and_preempted() {
    let roomy = load(&LlmOptions::default().with_cache_tokens(Some(2048)));
    let alone: Vec<_> = mixed_requests().iter().map(|request| ids(&run(&roomy, request))).collect();
    // A KV cache of two sequences: of the nine that begin together most are preempted, some several
    // times.
    let tight = load(&LlmOptions::default().with_cache_tokens(Some(256)));
    for llm in [&roomy, &tight] {
        for (generation, alone) in llm.generate(&mixed_requests()).into_iter().zip(&alone) {
            assert_eq!(&ids(&generation.expect("an answer")), alone);
        }
    }
}

#[test]
fn invalid_formats_fail_only_their_own_request() {
    let llm = load(&LlmOptions::default());
    let free =
        Request { format: None, max_tokens: Some(100), ignore_end: true, ..request(Format::JsonObject, sampling(7)) };
    let want = run(&llm, &free);
    let mut other = llm.stream(&free).expect("a stream");
    assert!(matches!(other.next(), Some(Ok(Event::Begun { .. }))));
    assert!(matches!(other.next(), Some(Ok(Event::Text { .. }))));
    let bad = [
        (Format::JsonSchema(json!({"type": "integer", "minimum": 5, "maximum": 3})), "JSON schema"),
        (Format::JsonSchema(json!({"type": "nonsense"})), "JSON schema"),
        (Format::JsonSchema(json!([])), "a schema is an object"),
        (Format::Regex("(".into()), "unclosed group"),
        (Format::Regex("a".repeat(1 << 20)), "longer than"),
        (Format::Grammar("start: nothing".into()), "grammar"),
        (Format::Grammar(format!("start: {}", "(".repeat(10_000))), "brackets"),
    ];
    for (format, word) in bad {
        let started = Instant::now();
        let error = llm.stream(&request(format.clone(), sampling(0))).err().map(|e| e.to_string());
        assert!(error.as_ref().is_some_and(|error| error.contains(word)), "{word}: {error:?}");
        assert!(started.elapsed() < Duration::from_secs(20), "{word} took {:?}", started.elapsed());
    }
    // Formats that compile may still be costly during generation: they end soon in any case.
    for pattern in [
        "a{1000000000}",
        "((((((a{1,99}){1,99}){1,99}){1,99}){1,99}){1,99}){1,99}b",
        "[a-z]{0,100000}[b-y]{0,100000}z",
        ".*(a|b).{25}",
    ] {
        let started = Instant::now();
        let costly = llm.stream(&request(Format::Regex(pattern.into()), sampling(0)));
        let error = costly.and_then(sconce_engine::Stream::wait).err().map(|e| e.to_string());
        eprintln!("{pattern}: {error:?} in {:?}", started.elapsed());
        assert!(error.is_none_or(|error| error.contains("regular expression")), "{pattern}");
        assert!(started.elapsed() < Duration::from_secs(20), "{pattern} took {:?}", started.elapsed());
    }
    let mut text = String::new();
    let mut finish = None;
    for event in llm.stream(&free).expect("a stream") {
        match event.expect("an event") {
            Event::Begun { .. } | Event::Progress { .. } => {}
            Event::Text { text: new, .. } => text.push_str(&new),
            Event::End { finish: how, .. } => finish = Some(how),
        }
    }
    assert_eq!((&text, &finish), (&want.answers[0].text, &want.answers[0].finish));
    assert!(other.all(|event| event.is_ok()), "the other request continues");
}
