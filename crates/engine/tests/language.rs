//! Requests to a tiny language model with random weights.

use sconce_engine::hub::{Options, Reference};
use sconce_engine::{
    Answer, DeviceChoice, GenerationParams, Llm, LlmOptions, LoadOptions, Loaded, Request, Start, Token,
};
use sconce_ops::Device;
use sconce_testkit::materialize;
use std::path::Path;
use tempfile::TempDir;

/// A Llama with a SentencePiece vocabulary and a context of 128 tokens, without its embedder files.
fn folder() -> TempDir {
    let dir = materialize("task-embed-llama");
    for name in ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"] {
        std::fs::remove_file(dir.path().join(name)).expect("a file");
    }
    dir
}

fn options() -> LoadOptions {
    let source = Options::from_env().expect("a home for caches");
    LoadOptions::new(source).with_device(DeviceChoice::Only(Device::Cpu))
}

fn reference(dir: &Path) -> Reference {
    dir.to_str().expect("a path").parse().expect("a reference")
}

fn load(dir: &Path, llm: &LlmOptions) -> sconce_engine::Result<Llm> {
    Llm::load(&reference(dir), &options().with_llm(*llm), &())
}

/// A request that is answered by `id` again and again.
fn force_token(start: Start, id: u32, most: usize) -> Request {
    let params = GenerationParams::default().with_temperature(0.0).with_logit_bias([(id, 100.0)].into());
    Request { start, params: Some(params), max_tokens: Some(most), ignore_end: true, ..Request::default() }
}

fn answer(llm: &Llm, request: &Request) -> Answer {
    llm.stream(request).expect("a stream").wait().expect("an answer").answers.remove(0)
}

#[test]
fn answer_text_continues_the_prompt() {
    let dir = folder();
    let llm = load(dir.path(), &LlmOptions::default()).expect("a model");
    // `▁query,`, and the third byte of 叫 after the first two.
    let (word, byte) = (350, 174);
    let text = |start: Start, id| answer(&llm, &force_token(start, id, 1)).text;
    assert_eq!(text(Start::Text("the cat".into()), word), " query,");
    assert_eq!(text(Start::Rendered("the cat".into()), word), "query,");
    let open = llm.encode(&Start::Text("the 叫".into())).expect("tokens");
    let open = Start::Tokens(open[..open.len() - 1].to_vec());
    assert_eq!(text(open.clone(), byte), "叫");
    // The echo is the user's text, without the token that begins every text.
    let echoed = |start: Start, id| answer(&llm, &Request { echo: true, ..force_token(start, id, 1) }).text;
    assert_eq!(echoed(Start::Text("the cat".into()), word), "the cat query,");
    assert_eq!(echoed(open, byte), "the 叫");
    let stopped = Request { stop: vec![" query".into()], ..force_token(Start::Text("the cat".into()), word, 9) };
    assert_eq!(answer(&llm, &stopped).text, "");
}

#[test]
fn kv_cache_size_follows_context_and_sequences() {
    let dir = folder();
    let with =
        |cache_tokens, sequences| LlmOptions::default().with_cache_tokens(cache_tokens).with_sequences(sequences);
    let tokens = |llm: LlmOptions| load(dir.path(), &llm).map(|llm| llm.plan().cache_tokens);
    assert_eq!(tokens(with(None, 64)).expect("a model"), 64 * 128);
    assert_eq!(tokens(with(None, 1)).expect("a model"), 128);
    assert_eq!(tokens(with(Some(200), 64)).expect("a model"), 208, "whole pages");
    let small = tokens(with(Some(127), 64)).unwrap_err().to_string();
    assert!(small.contains("127 tokens") && small.contains("128"), "{small}");
    // At most a quarter of the memory that the weights leave of the limit.
    let whole = load(dir.path(), &LlmOptions::default()).expect("a model");
    let (weights, row) = (whole.plan().weights, whole.plan().cache / (64 * 128));
    let limited = options().with_memory(Some(weights + 4 * 1000 * row));
    let limited = Llm::load(&reference(dir.path()), &limited, &()).expect("a model");
    assert_eq!(limited.plan().cache_tokens, 1008, "whole pages");
}

#[test]
fn streams_finish_after_the_model_is_dropped() {
    let dir = folder();
    let llm = load(dir.path(), &LlmOptions::default()).expect("a model");
    let open_stream = || llm.stream(&force_token(Start::Text("the cat".into()), 350, 100)).expect("a stream");
    let streams = [open_stream(), open_stream()];
    drop(open_stream());
    drop(llm);
    for stream in streams {
        assert_eq!(stream.wait().expect("an answer").answers[0].sampled.len(), 100);
    }
}

#[test]
fn invalid_requests_are_refused_at_once() {
    let dir = folder();
    let llm = load(dir.path(), &LlmOptions::default()).expect("a model");
    let request = force_token(Start::Text("the cat".into()), 350, 4);
    let refused = |request: Request| llm.stream(&request).err().map_or_else(String::new, |e| e.to_string());
    assert!(refused(Request { stop: vec!["a".into(), String::new()], ..request.clone() }).contains("empty"));
    assert!(refused(Request { stop: vec!["a".repeat(70_000)], ..request.clone() }).contains("65536 bytes"));
    assert!(refused(Request { max_tokens: Some(0), ..request.clone() }).contains("allows 1 to"));
    assert_eq!(refused(request), "");
}

#[test]
fn tokens_have_text_and_bytes() {
    let dir = folder();
    let llm = load(dir.path(), &LlmOptions::default()).expect("a model");
    let token = |id| llm.token(id).expect("a token");
    let text = |text: &str, bytes: &[u8]| Token { text: text.into(), bytes: Some(bytes.to_vec()) };
    assert_eq!(token(350), text(" query,", b" query,"));
    assert_eq!(token(232), text("\u{fffd}", &[0xe5]));
    assert_eq!(token(2), Token { text: "</s>".into(), bytes: None });
    assert_eq!(token(100_000), Token { text: String::new(), bytes: None });
}

#[test]
fn timing_starts_at_the_request_and_ignores_the_echo() {
    let dir = folder();
    let llm = load(dir.path(), &LlmOptions::default()).expect("a model");
    let request = Request { echo: true, ..force_token(Start::Text("the cat".into()), 350, 4) };
    let stream = llm.stream(&request).expect("a stream");
    let pause = std::time::Duration::from_millis(50);
    // The pause is what is measured.
    std::thread::sleep(pause);
    let generation = stream.wait().expect("an answer");
    assert!(generation.took >= pause && generation.first.is_some_and(|first| first >= pause), "{generation:?}");
    // A model that ends at once gives nothing but the prompt.
    let ended =
        Request { ignore_end: false, ..Request { echo: true, ..force_token(Start::Text("the cat".into()), 2, 4) } };
    let generation = llm.stream(&ended).expect("a stream").wait().expect("an answer");
    assert_eq!((generation.answers[0].text.as_str(), generation.first), ("the cat", None));
}

/// Prompt logprobs equal those of the same tokens when they were generated: whatever is in the
/// prefix cache, in chunks of few rows, batched, and for every answer.
#[test]
fn prompt_logprobs_equal_generated_logprobs() {
    let dir = folder();
    let few = LlmOptions::default().with_sequences(4);
    let llm = load(dir.path(), &few).expect("a model");
    let start = llm.encode(&Start::Text("the cat".into())).expect("tokens");
    let params = GenerationParams::default().with_temperature(1.0).with_seed(5).with_logprobs(Some(3));
    let generate = Request {
        start: Start::Tokens(start.clone()),
        params: Some(params.clone()),
        max_tokens: Some(60),
        ignore_end: true,
        ..Request::default()
    };
    let generated = answer(&llm, &generate).sampled;
    assert_eq!(generated.len(), 60);
    let all: Vec<u32> = start.iter().copied().chain(generated.iter().map(|pick| pick.id)).collect();
    let echo = Request { start: Start::Tokens(all.clone()), max_tokens: Some(0), echo: true, ..generate.clone() };
    let two_answers = Request { params: Some(params.with_n(2)), max_tokens: Some(2), ..echo.clone() };
    for (request, new) in [(&echo, 0), (&two_answers, 2)] {
        let mut generations = llm.generate(&[generate.clone(), request.clone(), generate.clone()]);
        let generation = generations.remove(1).expect("an answer");
        for answer in &generation.answers {
            let ids: Vec<u32> = answer.sampled.iter().map(|pick| pick.id).collect();
            assert_eq!((&ids[..all.len()], ids.len()), (&all[..], all.len() + new));
            assert_eq!(answer.sampled[0].logprobs, None, "the first token has no logprobs");
            assert!(answer.text.starts_with("the cat"), "{}", answer.text);
            for (pick, before) in answer.sampled[start.len()..].iter().zip(&generated) {
                let (now, before) =
                    (pick.logprobs.as_ref().expect("logprobs"), before.logprobs.as_ref().expect("logprobs"));
                // f32, summed in another order.
                assert!((now.chosen - before.chosen).abs() < 1e-4, "{now:?} {before:?}");
                assert_eq!(now.top.len(), 3);
                assert!(now.top.iter().zip(&before.top).all(|(a, b)| (a.1 - b.1).abs() < 1e-4), "{now:?} {before:?}");
            }
        }
    }
}

/// Sixteen answers at once have sixteen rows of logits, on the device and again where they are
/// sampled.
#[test]
fn plan_includes_logits_of_all_sequences() {
    let dir = folder();
    let llm = load(dir.path(), &LlmOptions::default().with_sequences(16)).expect("a model");
    let plan = llm.plan();
    assert!(plan.workspace >= 2 * 16 * plan.vocabulary as u64 * 4, "{}", plan.workspace);
    let requests: Vec<Request> = (0..40).map(|i| force_token(Start::Tokens(vec![5 + i; 90]), 350, 30)).collect();
    assert!(llm.generate(&requests).iter().all(Result::is_ok));
    assert!(llm.peak_bytes() <= plan.weights + plan.cache + plan.workspace);
}
