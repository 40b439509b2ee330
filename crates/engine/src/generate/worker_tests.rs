use super::*;
use crate::Caller;
use crate::generate::{Event, Wish, plan};
use sconce_hub::Options;
use sconce_ops::Device;
use sconce_testkit::materialize;
use std::sync::Arc;
use tokenizers::Tokenizer;

/// A job, and its events.
type Asked = (Job, Receiver<Result<Event>>);

fn job(tokenizer: &Tokenizer, tokens: &[u32], most: usize) -> Asked {
    let (events, inbox) = channel();
    let sink = Box::new(move |event| drop(events.send(event)));
    let job = Job {
        tokens: tokens.to_vec(),
        params: Arc::new(Params { temperature: 0.0, ..Params::default() }),
        ends: Ends { tokens: Arc::default(), stop: Arc::default(), most },
        detok: Detok::new(tokenizer.clone().into(), true),
        stops: Stops::default(),
        forms: Vec::new(),
        scored: false,
        listener: Arc::new(Listener::new(Caller::default(), Device::Cpu, 1, None, sink)),
    };
    (job, inbox)
}

fn tokens(inbox: Receiver<Result<Event>>) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    for event in inbox {
        if let Event::Text { picks, .. } = event? {
            all.extend(picks.iter().map(|pick| pick.id));
        }
    }
    Ok(all)
}

#[test]
fn what_fails_in_a_step_fails_alone() {
    let dir = materialize("task-embed-llama");
    let tokenizer = Tokenizer::from_file(dir.path().join("tokenizer.json")).expect("words");
    let options = LoadOptions::new(Options::from_env().expect("caches"));
    let wish = Wish { context: None, cache_tokens: None, cache_format: None, sequences: 8 };
    let planned = plan(dir.path(), Device::Cpu, &options, wish).expect("a plan");
    let worker = Worker::start(&planned, &options, Arc::default()).expect("a model");
    // The second has a token that the model does not: nobody who asks by the front door can.
    let prompts: [&[u32]; 4] = [&[5, 6, 7], &[5, 6, 9999], &[8; 40], &[5, 6, 7]];
    let run = |prompts: &[&[u32]]| {
        let all: Vec<Asked> = prompts.iter().map(|prompt| job(&tokenizer, prompt, 12)).collect();
        let (jobs, waiting): (Vec<Job>, Vec<_>) = all.into_iter().unzip();
        // All are there before the thread looks.
        jobs.iter().for_each(|_| worker.board.handed_over());
        jobs.into_iter().for_each(|job| worker.jobs.lock().expect("a sender").send(job).expect("a thread"));
        worker.owner.post(|running| running.borrow_mut().drive()).expect("a thread");
        waiting.into_iter().map(tokens).collect::<Vec<_>>()
    };
    let together = run(&prompts);
    assert!(together[1].as_ref().is_err_and(|e| !matches!(e, Error::Input(_))), "{:?}", together[1]);
    for i in [0, 2, 3] {
        let alone = run(&prompts[i..i + 1]).remove(0).expect("an answer");
        assert_eq!((alone.len(), together[i].as_ref().expect("an answer")), (12, &alone), "{i}");
    }
}
