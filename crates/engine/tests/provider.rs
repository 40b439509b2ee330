//! The async provider, polled by hand: it needs no runtime.

use sconce_engine::hub::Options;
use sconce_engine::{
    AsyncEmbedder, BoxFuture, DeviceChoice, Embedder, EmbeddingProvider, InputType, LoadOptions, Prompt,
};
use sconce_ops::Device;
use sconce_testkit::golden;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }
}

fn block_on<T>(mut future: BoxFuture<'_, T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

fn embedder(name: &str) -> Embedder {
    let cache = std::env::temp_dir();
    let options = LoadOptions::new(Options::new(cache.clone(), cache)).with_device(DeviceChoice::Only(Device::Cpu));
    Embedder::load(&golden(name).to_str().unwrap().parse().unwrap(), &options, &()).unwrap()
}

#[test]
fn provider_embeds_with_the_models_prompts_and_counts() {
    let embedder = embedder("st-prompts");
    let names: Vec<String> = embedder.prompts().map(String::from).collect();
    let provider: Box<dyn EmbeddingProvider> = Box::new(AsyncEmbedder::new(embedder.clone()));
    let info = provider.info();
    assert_eq!((info.device.as_str(), info.dtype.as_str()), ("cpu", "f32"));
    let texts = vec!["A man is eating food.".to_owned(), "hello".to_owned()];
    let named = |name: &str| match names.iter().any(|n| n == name) {
        true => Prompt::Named(name.into()),
        false => Prompt::Default,
    };
    let mut tokens = 0;
    for (input, prompt) in [(InputType::Query, named("query")), (InputType::Document, named("document"))] {
        let got = block_on(provider.embed_batch(texts.clone(), input)).unwrap();
        assert_eq!(got.values, embedder.embed(&texts, &prompt).unwrap().values, "{input:?} in {names:?}");
        assert_eq!(got.dimension, info.dimension);
        tokens += got.tokens.iter().sum::<usize>() as u64;
    }
    block_on(provider.health()).unwrap();
    let usage = provider.usage();
    assert_eq!((usage.requests, usage.failures, usage.texts, usage.tokens), (2, 0, 4, tokens));
}

#[test]
fn many_requests_wait_and_a_dropped_one_is_cancelled() {
    let embedder = embedder("st-legacy");
    let provider = AsyncEmbedder::new(embedder.clone());
    let texts = |i: usize| vec![format!("text {i}"), "A girl.".repeat(i)];
    // More than there are threads.
    let mut futures: Vec<_> = (0..40).map(|i| provider.embed_batch(texts(i), InputType::Document)).collect();
    drop(futures.pop());
    for (i, future) in futures.into_iter().enumerate() {
        assert_eq!(block_on(future).unwrap().values, embedder.embed(&texts(i), &Prompt::Default).unwrap().values);
    }
    let usage = provider.usage();
    assert_eq!((usage.requests, usage.failures, usage.texts), (40, 1, 78));
}
