//! A caller may cancel, miss a deadline, or fail to listen: that ends only its own answer, within a
//! step.

use sconce_engine::hub::{Options, Reference};
use sconce_engine::{
    DeviceChoice, Error, Event, Finish, GenerationParams, Llm, LlmOptions, LoadOptions, Request, RequestContext,
    Result, Start,
};
use sconce_ops::Device;
use sconce_testkit::{materialize, wait_for, wait_until};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A Llama with a context of 128 tokens, in pages of 16.
fn load(sequences: usize) -> Llm {
    let dir = materialize("task-embed-llama");
    for name in ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"] {
        std::fs::remove_file(dir.path().join(name)).expect("a file");
    }
    let source = Options::from_env().expect("a home for caches");
    let options = LoadOptions::new(source).with_device(DeviceChoice::Only(Device::Cpu));
    let reference: Reference = dir.path().to_str().expect("a path").parse().expect("a reference");
    Llm::load(&reference, &options.with_llm(LlmOptions::default().with_sequences(sequences)), &()).expect("a model")
}

fn request(prompt: usize, most: usize, n: u32) -> Request {
    let params = GenerationParams::default().with_temperature(0.0).with_n(n).with_logit_bias([(350, 100.0)].into());
    let start = Start::Tokens((0..prompt as u32).map(|i| i % 50 + 5).collect());
    Request { start, params: Some(params), max_tokens: Some(most), ignore_end: true, ..Request::default() }
}

fn start(llm: &Llm, request: &Request, caller: &RequestContext) -> Receiver<Result<Event>> {
    let (events, inbox) = channel();
    llm.start(request, caller, move |event| drop(events.send(event))).expect("a start");
    inbox
}

/// Waits until nothing runs.
fn wait_until_idle(llm: &Llm) -> sconce_engine::Activity {
    wait_for("nothing runs", || {
        let now = llm.activity();
        if (now.running, now.waiting) == (0, 0) { Ok(now) } else { Err(format!("{now:?}")) }
    })
}

#[test]
fn sink_gets_one_begin_event_and_every_answers_end() {
    let llm = load(8);
    let caller = RequestContext::default();
    let (events, inbox) = channel();
    let request = Request { echo: true, ..request(40, 10, 3) };
    let started = llm.start(&request, &caller, move |event| drop(events.send(event))).expect("a start");
    assert_eq!((started.prompt_tokens, started.answers), (40, 3));
    let all: Vec<Event> = inbox.iter().map(|event| event.expect("an event")).collect();
    assert!(matches!(all[0], Event::Begun { cached_tokens: 0 }), "{:?}", all[0]);
    assert_eq!(all.iter().filter(|event| matches!(event, Event::Begun { .. })).count(), 1);
    for (i, event) in all[1..4].iter().enumerate() {
        assert!(
            matches!(event, Event::Text { answer, sampled, .. } if *answer == i && sampled.is_empty()),
            "{event:?}"
        );
    }
    assert_eq!(all.iter().filter(|e| matches!(e, Event::End { finish: Finish::Length, .. })).count(), 3);
    let sampled = all.iter().map(|e| if let Event::Text { sampled, .. } = e { sampled.len() } else { 0 });
    assert_eq!(sampled.sum::<usize>(), 30);
    let times = caller.times();
    assert!(times.inference > Duration::ZERO && times.queue > Duration::ZERO, "{times:?}");
    // Once more: two whole pages of the prompt are in the prefix cache.
    let again = start(&llm, &Request { echo: false, ..request }, &caller);
    assert_eq!(again.recv().expect("an event").expect("a beginning"), Event::Begun { cached_tokens: 32 });
    again.iter().for_each(|event| drop(event.expect("an event")));
    let now = wait_until_idle(&llm);
    assert_eq!((now.prompt_tokens, now.generated_tokens), (80, 60), "{now:?}");
    assert_eq!((now.prefix_queries, now.prefix_hits, now.cache_used), (80, 32, 0.0), "{now:?}");
}

#[test]
fn cancelled_and_late_requests_get_an_error_and_free_capacity() {
    let llm = load(1);
    let (first, second) = (RequestContext::default(), RequestContext::default());
    // One runs, one waits for a free sequence; the sink of the first blocks, so that both are still
    // active when we cancel.
    let (go, wait) = channel::<()>();
    let (events, running) = channel();
    let slow = move |event| {
        let _ = wait.recv();
        drop(events.send(event));
    };
    llm.start(&request(20, 100, 1), &first, slow).expect("a start");
    let waiting = start(&llm, &request(20, 100, 1), &second);
    let deadline = Instant::now() + Duration::from_millis(20);
    let late = start(&llm, &request(20, 100, 1), &RequestContext::new(Some(deadline)));
    go.send(()).expect("a sink");
    assert!(matches!(running.recv(), Ok(Ok(Event::Begun { .. }))));
    second.cancel();
    wait_until("the deadline has passed", || Instant::now() > deadline);
    (0..3).for_each(|_| go.send(()).expect("a sink"));
    assert!(matches!(waiting.recv(), Ok(Err(Error::Cancelled))), "the second request must not begin");
    assert!(waiting.recv().is_err(), "the sink is dropped after the error");
    let error = late.recv().expect("an event").unwrap_err();
    assert!(matches!(error, Error::DeadlineExceeded { .. }) && error.to_string().contains("0.0 s"), "{error}");
    first.cancel();
    drop(go);
    let rest: Vec<Result<Event>> = running.iter().collect();
    assert!(matches!(rest.last(), Some(Err(Error::Cancelled))), "{:?}", rest.last());
    assert!(rest.len() < 20, "{} events after the cancellation", rest.len());
    let now = wait_until_idle(&llm);
    assert_eq!(now.cache_used, 0.0);
    assert!(now.generated_tokens < 20, "{now:?}");
    // A request that is cancelled from the start is not even tokenized.
    let mut received = 0;
    let result = llm.start(&request(20, 100, 1), &first, move |_| {
        received += 1;
        panic!("event {received} of a cancelled request");
    });
    assert!(matches!(result, Err(Error::Cancelled)));
    assert_eq!(start(&llm, &request(20, 5, 1), &RequestContext::default()).iter().filter(Result::is_err).count(), 0);
}

#[test]
fn panicking_sink_ends_only_its_own_answer() {
    let llm = load(4);
    let other = start(&llm, &request(30, 60, 1), &RequestContext::default());
    let (dropped, seen) = channel::<()>();
    let mut received = 0;
    let poisoned = move |_: Result<Event>| {
        let _alive = &dropped;
        received += 1;
        assert!(received < 3, "this sink panics at its third event");
    };
    llm.start(&request(30, 90, 2), &RequestContext::default(), poisoned).expect("a start");
    assert!(seen.recv_timeout(Duration::from_secs(60)).is_err(), "the sink is dropped after its panic");
    let events: Vec<Result<Event>> = other.iter().collect();
    assert!(matches!(events.last(), Some(Ok(Event::End { .. }))), "{:?}", events.last());
    assert_eq!(wait_until_idle(&llm).cache_used, 0.0);
}

#[test]
fn sink_may_hold_the_last_handle_of_the_model() {
    let llm = std::sync::Arc::new(load(4));
    let (events, inbox) = channel();
    let held = llm.clone();
    let sink = move |event| {
        let _held = &held;
        drop(events.send(event));
    };
    llm.start(&request(30, 60, 1), &RequestContext::default(), sink).expect("a start");
    drop(llm);
    let begun = Instant::now();
    while let Ok(event) = inbox.recv_timeout(Duration::from_secs(60)) {
        event.expect("an event");
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "the sink is dropped with its last event");
}
