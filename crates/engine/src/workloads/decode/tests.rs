use super::*;
use crate::generation::StopCriteria;
use crate::runtime::{Executor, RequestContext};
use crate::sampling::GenerationParams;
use sconce_hub::Options;
use sconce_ops::Ladder;
use sconce_testkit::materialize;
use sconce_text::stream::{Detokenizer, Stops};
use std::sync::mpsc::{Receiver, channel};
use tokenizers::Tokenizer;

type Events = Receiver<Result<Event>>;

fn request(tokenizer: &Tokenizer, tokens: &[u32], most: usize) -> (GenerateRequest, Arc<Reply<Event>>, Events) {
    let (events, inbox) = channel();
    let sink = Box::new(move |event| drop(events.send(event)));
    let request = GenerateRequest {
        tokens: tokens.to_vec(),
        params: Arc::new(GenerationParams { temperature: 0.0, ..GenerationParams::default() }),
        stop: StopCriteria { tokens: Arc::default(), texts: Arc::default(), most },
        detok: Detokenizer::new(tokenizer.clone().into(), true),
        stops: Stops::default(),
        constraints: Vec::new(),
        thought: None,
        scored: false,
        echo: None,
    };
    (request, Arc::new(Reply::new(RequestContext::default(), Device::Cpu, sink)), inbox)
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

#[test]
fn failing_prompt_fails_alone_in_its_batch() {
    let dir = materialize("task-embed-llama");
    let tokenizer = Tokenizer::from_file(dir.path().join("tokenizer.json")).expect("words");
    let mut options = LoadOptions::new(Options::from_env().expect("caches"));
    options.llm.sequences = 8;
    let root = dir.path().to_path_buf();
    let planned = Decode::plan(&root, Device::Cpu, &options).expect("a plan");
    let make = move || Decode::load(&root, &planned, &LoadContext::unobserved(Place::open(Device::Cpu)?));
    let executor = Executor::start(Device::Cpu, Arc::<Ladder>::default(), make).expect("a model");
    // The second prompt has a token outside of the vocabulary, which the public API would refuse.
    let prompts: [&[u32]; 4] = [&[5, 6, 7], &[5, 6, 9999], &[8; 40], &[5, 6, 7]];
    let run = |prompts: &[&[u32]]| {
        // All requests are queued before the thread schedules.
        let ((go, wait), (began, begun)) = (channel::<()>(), channel());
        std::thread::scope(|scope| {
            let hold = move |_: &_| {
                let _ = began.send(());
                let _ = wait.recv();
                Ok(())
            };
            let held = scope.spawn(|| executor.call(hold));
            begun.recv().expect("a thread");
            let waiting: Vec<Events> = prompts
                .iter()
                .map(|prompt| {
                    let (request, reply, inbox) = request(&tokenizer, prompt, 12);
                    executor.submit(request, &reply).expect("a thread");
                    inbox
                })
                .collect();
            drop(go);
            held.join().expect("no panic").expect("a thread");
            waiting.into_iter().map(tokens).collect::<Vec<_>>()
        })
    };
    let together = run(&prompts);
    assert!(together[1].as_ref().is_err_and(|e| !matches!(e, Error::Input(_))), "{:?}", together[1]);
    for i in [0, 2, 3] {
        let alone = run(&prompts[i..i + 1]).remove(0).expect("an answer");
        assert_eq!((alone.len(), together[i].as_ref().expect("an answer")), (12, &alone), "{i}");
    }
}
