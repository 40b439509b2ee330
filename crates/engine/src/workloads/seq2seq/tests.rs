use super::*;
use crate::error::ErrorClass;
use crate::generation::StopCriteria;
use crate::options::Seq2SeqLimits;
use crate::runtime::{Executor, RequestContext};
use crate::sampling::GenerationParams;
use sconce_hub::Options;
use sconce_testkit::materialize;
use sconce_text::stream::{Detokenizer, Stops};
use std::sync::mpsc::{Receiver, channel};
use tokenizers::Tokenizer;

type Events = Receiver<Result<Event>>;

fn request(tokenizer: &Tokenizer, ids: &[u32]) -> (Seq2SeqRequest, Arc<Reply<Event>>, Events) {
    let (events, inbox) = channel();
    let sink = Box::new(move |event| drop(events.send(event)));
    let generate = crate::generation::GenerateRequest {
        tokens: vec![0],
        params: Arc::new(GenerationParams { temperature: 0.0, ..GenerationParams::default() }),
        stop: StopCriteria { tokens: Arc::default(), texts: Arc::default(), most: 6 },
        detok: Detokenizer::new(tokenizer.clone().into(), true),
        stops: Stops::default(),
        constraints: Vec::new(),
        thought: None,
        scored: false,
        echo: None,
    };
    let search = SearchRequest::Sample(Box::new(generate));
    let reply = Reply::new(RequestContext::default(), Device::Cpu, sink);
    (Seq2SeqRequest { ids: ids.to_vec(), most: 6, search }, Arc::new(reply), inbox)
}

fn tokens(inbox: Events) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    for event in inbox {
        if let Event::Text { sampled, .. } = event? {
            all.extend(sampled.iter().map(|pick| pick.id));
        }
    }
    Ok(all)
}

/// A failing input fails alone, with its own error, and waiting inputs are counted.
#[test]
fn failing_input_fails_alone_and_waiting_inputs_are_counted() {
    let dir = materialize("t5-seq2seq");
    // Any tokenizer works, because tokens are compared.
    let words = materialize("task-embed-llama");
    let tokenizer = Tokenizer::from_file(words.path().join("tokenizer.json")).expect("words");
    let mut options = LoadOptions::new(Options::from_env().expect("caches"));
    options.seq2seq = Seq2SeqLimits { input: Some(48), output: 16, sequences: 8, cache_format: None };
    let spec = Seq2SeqSpec { root: dir.path().to_path_buf(), start: 0 };
    let planned = Seq2SeqWorkload::plan(&spec, Device::Cpu, &options).expect("a plan");
    let make = move || Seq2SeqWorkload::load(&spec, &planned, &LoadContext::unobserved(Place::open(Device::Cpu)?));
    let executor = Executor::start(Device::Cpu, Arc::default(), make).expect("a model");
    // The second input has a token outside of the vocabulary, which the public API would refuse.
    let inputs: [&[u32]; 3] = [&[5, 6, 7], &[5, 999_999], &[8; 20]];
    let run = |inputs: &[&[u32]]| {
        let ((go, wait), (began, begun)) = (channel::<()>(), channel());
        std::thread::scope(|scope| {
            let hold = move |_: &_| {
                let _ = began.send(());
                let _ = wait.recv();
                Ok(())
            };
            let held = scope.spawn(|| executor.call(hold));
            begun.recv().expect("a thread");
            let waiting: Vec<Events> = inputs
                .iter()
                .map(|ids| {
                    let (request, reply, inbox) = request(&tokenizer, ids);
                    executor.submit(request, &reply).expect("a thread");
                    inbox
                })
                .collect();
            let queue = executor.queue_watch()();
            let all: usize = inputs.iter().map(|ids| ids.len()).sum();
            assert_eq!((queue.requests, queue.tokens), (inputs.len(), all));
            drop(go);
            held.join().expect("no panic").expect("a thread");
            waiting.into_iter().map(tokens).collect::<Vec<_>>()
        })
    };
    let together = run(&inputs);
    let error = together[1].as_ref().expect_err("a token beyond the table");
    assert!(error.class() != ErrorClass::Bug && error.to_string().contains("999999"), "{error}");
    for i in [0, 2] {
        let alone = run(&inputs[i..i + 1]).remove(0).expect("an answer");
        assert_eq!((alone.len(), together[i].as_ref().expect("an answer")), (6, &alone), "{i}");
    }
}
