//! The encoder workload in its executor, with a fake model that can block and fail.

use super::session::PartStream;
use super::*;
use crate::config::InputSpec;
use crate::runtime::{Executor, RequestContext};
use sconce_models::{Limits, Positions};
use sconce_testkit::wait_until;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

const HOLD: u32 = 1;
const FAIL: u32 = 2;
const PANIC: u32 = 3;

/// Returns the sum of a sequence's ids. It reports every batch, and blocks on one that contains
/// [`HOLD`].
struct Sums {
    seen: Sender<Vec<u32>>,
    go: Mutex<Receiver<()>>,
}

impl Pipeline for Sums {
    type Spec = InputSpec;

    fn input_spec(spec: &InputSpec) -> &InputSpec {
        spec
    }
    fn load(_: &Parts, _: &InputSpec) -> Result<Sums> {
        Err(Error::Input("made by hand".into()))
    }
    fn limits(&self) -> Limits {
        Limits { vocabulary: 1000, positions: 1000, types: None, counting: Positions::FromZero }
    }
    fn width(&self) -> usize {
        1
    }
    fn forward(&self, batch: &Batch, _: &[usize]) -> Result<Vec<Tensor>> {
        let ids = batch.observe_ids();
        let _ = self.seen.send(ids.to_vec());
        if ids.contains(&HOLD) {
            let _ = self.go.lock().unwrap().recv();
        }
        assert!(!ids.contains(&PANIC), "terrible");
        if ids.contains(&FAIL) {
            return Err(Error::Input("bad".into()));
        }
        let sum = |i: usize| ids[batch.segments.observe().range(i)].iter().sum::<u32>() as f32;
        let sums: Vec<f32> = (0..batch.segments.count()).map(sum).collect();
        Ok(vec![Tensor::from_f32(&sums, &[sums.len(), 1], DType::F32, &Place::open(Device::Cpu)?)?])
    }
}

struct Fixture {
    /// Declared before the executor, whose drop joins its thread: a failing test unblocks the model
    /// first.
    go: Sender<()>,
    executor: Executor<Encode<Sums>>,
    seen: Receiver<Vec<u32>>,
}

/// Batches of 10 tokens.
fn fixture() -> Fixture {
    let ((report, seen), (go, wait)) = (channel(), channel());
    let budget = Budget { tokens: 10, sequences: 100 };
    let make = move || {
        let place = Place::open(Device::Cpu)?;
        Ok(Encode {
            pipeline: Sums { seen: report, go: Mutex::new(wait) },
            passes: GraphCache::new(&place, 0)?,
            place,
            dtype: DType::F32,
            budget,
            longest: 1000,
            queue: EncodeQueue::new(budget),
            pending: BTreeMap::new(),
            last: (0, 0),
            graph: None,
        })
    };
    Fixture { executor: Executor::start(Device::Cpu, Arc::default(), make).unwrap(), seen, go }
}

impl Fixture {
    fn submit(&self, texts: &[&[u32]], context: &RequestContext) -> PartStream {
        let item =
            |ids: &&[u32]| EncodeItem { sequence: Sequence { ids: ids.to_vec(), ..Sequence::default() }, skip: 0 };
        let items = texts.iter().map(item).collect();
        PartStream::submit(&self.executor, Device::Cpu, context, items, PassKind::default()).unwrap()
    }

    fn batch(&self) -> Vec<u32> {
        self.seen.recv_timeout(Duration::from_secs(60)).expect("a batch")
    }
}

fn sums(part: &Part) -> Vec<(usize, f32)> {
    part.items.iter().map(|(item, place)| (*item, part.results.of(*place)[0][0])).collect()
}

/// The whole result, in the order of the texts.
fn all(mut stream: PartStream) -> Result<Vec<f32>> {
    let mut sums_of_items = Vec::new();
    while let Some(part) = stream.next() {
        sums_of_items.extend(sums(&part?));
    }
    sums_of_items.sort_by_key(|(item, _)| *item);
    Ok(sums_of_items.into_iter().map(|(_, sum)| sum).collect())
}

#[test]
fn requests_during_a_batch_share_the_next_batch() {
    let fixture = fixture();
    let context = RequestContext::default();
    let blocking = fixture.submit(&[&[HOLD]], &context);
    assert_eq!(fixture.batch(), [HOLD]);
    let streams: Vec<_> = (0..4).map(|i| fixture.submit(&[&[10 + i]], &RequestContext::default())).collect();
    let two = fixture.submit(&[&[20, 21], &[30]], &RequestContext::default());
    let waiting = fixture.executor.queue_watch()();
    assert_eq!((waiting.requests, waiting.tokens, waiting.batch_sequences, waiting.batch_tokens), (5, 7, 1, 1));
    assert_eq!((context.times().inference, context.times().queue > Duration::ZERO), (Duration::ZERO, true));
    fixture.go.send(()).unwrap();
    let mut together = fixture.batch();
    together.sort_unstable();
    assert_eq!(together, [10, 11, 12, 13, 20, 21, 30], "all waiting requests are in one batch");
    assert_eq!(all(blocking).unwrap(), [1.0]);
    for (i, stream) in streams.into_iter().enumerate() {
        assert_eq!(all(stream).unwrap(), [10.0 + i as f32]);
    }
    assert_eq!(all(two).unwrap(), [41.0, 30.0], "each request gets its own results, in order");
    assert_eq!((fixture.executor.queue_watch()().requests, fixture.executor.queue_watch()().batch_tokens), (0, 7));
    assert!(context.times().inference > Duration::ZERO);
}

#[test]
fn failing_text_fails_alone_in_its_batch() {
    let fixture = fixture();
    let blocking = fixture.submit(&[&[HOLD]], &RequestContext::default());
    fixture.batch();
    let texts: [&[u32]; 4] = [&[10], &[FAIL], &[11], &[PANIC]];
    let streams: Vec<_> = texts.iter().map(|ids| fixture.submit(&[ids], &RequestContext::default())).collect();
    fixture.go.send(()).unwrap();
    all(blocking).unwrap();
    let answers: Vec<_> = streams.into_iter().map(all).collect();
    assert_eq!((answers[0].as_ref().unwrap()[0], answers[2].as_ref().unwrap()[0]), (10.0, 11.0));
    assert!(matches!(&answers[1], Err(Error::Input(why)) if why == "bad"), "{:?}", answers[1]);
    assert!(matches!(&answers[3], Err(Error::Panicked { why, .. }) if why == "terrible"), "{:?}", answers[3]);
    assert_eq!(
        all(fixture.submit(&[&[12]], &RequestContext::default())).unwrap(),
        [12.0],
        "the device thread continues"
    );
}

#[test]
fn cancelled_late_and_dropped_requests_never_run() {
    let fixture = fixture();
    let blocking = fixture.submit(&[&[HOLD]], &RequestContext::default());
    fixture.batch();
    let deadline = Instant::now() + Duration::from_millis(1);
    let (cancelled, late) = (RequestContext::default(), RequestContext::new(Some(deadline)));
    let streams = [fixture.submit(&[&[50]], &cancelled), fixture.submit(&[&[51], &[52]], &late)];
    drop(fixture.submit(&[&[53]], &RequestContext::default()));
    let other = fixture.submit(&[&[10]], &RequestContext::default());
    cancelled.cancel();
    wait_until("the deadline has passed", || Instant::now() > deadline);
    fixture.go.send(()).unwrap();
    all(blocking).unwrap();
    assert_eq!(all(other).unwrap(), [10.0]);
    assert_eq!(fixture.batch(), [10], "only the request that is neither cancelled, late nor dropped runs");
    let [first, second] = streams.map(all);
    assert!(matches!(first, Err(Error::Cancelled)));
    assert!(matches!(second, Err(Error::DeadlineExceeded { .. })));
    assert!(late.times().queue > Duration::ZERO && late.times().inference == Duration::ZERO);
    // In the middle of a long request, too.
    let context = RequestContext::default();
    let mut long = fixture.submit(&[&[HOLD; 10], &[60; 9], &[61; 8]], &context);
    fixture.batch();
    context.cancel();
    (0..10).for_each(|_| fixture.go.send(()).unwrap());
    assert!(matches!(long.next(), Some(Ok(_))));
    assert!(matches!(long.next(), Some(Err(Error::Cancelled))));
    assert!(long.next().is_none() && fixture.seen.try_recv().is_err());
    assert_eq!(fixture.executor.queue_watch()().requests, 0);
}

#[test]
fn requests_with_unread_results_wait_until_read() {
    let fixture = fixture();
    let text: &[u32] = &[7; 10];
    let mut slow = fixture.submit(&[text; 5], &RequestContext::default());
    assert_eq!((fixture.batch().len(), fixture.batch().len()), (10, 10));
    assert_eq!(all(fixture.submit(&[&[40]], &RequestContext::default())).unwrap(), [40.0]);
    assert_eq!(fixture.batch(), [40], "no third part while two are unread");
    assert_eq!(fixture.executor.queue_watch()().tokens, 30);
    let mut received = 0;
    while let Some(part) = slow.next() {
        received += sums(&part.unwrap()).len();
        if slow.mark_read() {
            fixture.executor.wake().unwrap();
        }
    }
    assert_eq!(received, 5);
}
