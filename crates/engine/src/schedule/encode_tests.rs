use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use sconce_testkit::check;
use std::collections::BTreeSet;

fn queue(tokens: usize, sequences: usize) -> EncodeQueue {
    EncodeQueue::new(Budget { tokens, sequences })
}

fn none_busy(_: u64) -> bool {
    false
}

/// All batches, if no other request arrives.
fn drain(queue: &mut EncodeQueue) -> Vec<Vec<(u64, usize)>> {
    std::iter::repeat_with(|| queue.next(none_busy)).take_while(|batch| !batch.is_empty()).collect()
}

/// The indices of request 0's texts, batch by batch.
fn alone(lengths: &[usize], tokens: usize, sequences: usize) -> Vec<Vec<usize>> {
    let mut queue = queue(tokens, sequences);
    queue.push(0, lengths);
    drain(&mut queue).into_iter().map(|batch| batch.into_iter().map(|(_, text)| text).collect()).collect()
}

#[test]
fn every_text_is_in_one_batch_within_budget() {
    let lengths: Vec<usize> = (0..1000).map(|i| (i * 7919) % 97 + 1).collect();
    let batches = alone(&lengths, 100, usize::MAX);
    let mut seen: Vec<usize> = batches.iter().flatten().copied().collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..1000).collect::<Vec<_>>());
    assert!(batches.iter().all(|b| b.iter().map(|i| lengths[*i]).sum::<usize>() <= 100));
    let total: usize = lengths.iter().sum();
    assert!(batches.len() < total / 100 * 2, "{} batches for {total} tokens", batches.len());
    let longest: Vec<usize> = batches.iter().map(|b| lengths[b[0]]).collect();
    assert!(longest.is_sorted_by(|a, b| a >= b), "similar lengths together, long ones first");
}

#[test]
fn text_over_budget_runs_alone_and_empty_requests_give_no_batch() {
    assert_eq!(alone(&[5, 500, 5], 100, 9), [vec![1], vec![0, 2]]);
    assert_eq!(alone(&[5, 5, 5], 100, 2), [vec![0, 1], vec![2]]);
    assert!(alone(&[], 100, 9).is_empty());
    let mut queue = queue(100, 9);
    assert_eq!(queue.next(none_busy), []);
    queue.push(0, &[]);
    assert_eq!((queue.requests(), queue.next(none_busy)), (0, vec![]), "an empty request leaves nothing in the queue");
}

#[test]
fn short_request_joins_the_next_batch_despite_a_large_one() {
    let mut queue = queue(1000, usize::MAX);
    queue.push(0, &vec![50; 10_000]);
    for _ in 0..100 {
        assert_eq!(queue.next(none_busy).len(), 20);
    }
    queue.push(1, &[7]);
    let batch = queue.next(none_busy);
    assert_eq!((batch[0], batch.len()), ((1, 0), 20), "nineteen texts of the large request fill the batch");
    // Of equal requests the older goes first, and both are in the batch.
    queue.push(2, &[50]);
    assert!(queue.next(none_busy).contains(&(2, 0)));
}

#[test]
fn large_request_progresses_despite_many_short_ones() {
    let mut queue = queue(1000, usize::MAX);
    queue.push(0, &vec![50; 10_000]);
    let mut big = 0;
    for turn in 0..100u64 {
        // The requests that arrive during one batch could fill the next.
        (0..100).for_each(|i| queue.push(1 + turn * 100 + i, &[10]));
        let batch = queue.next(none_busy);
        big += batch.iter().filter(|(id, _)| *id == 0).count();
    }
    // A hundred and one requests share a thousand tokens per step; the one with longer texts gets
    // no less than its share.
    assert!(big * 50 >= 100 * 1000 / 101 - 50, "{big} texts of 50 tokens");
}

#[test]
fn fitting_texts_fill_a_batch_and_deferred_texts_go_first() {
    let mut queue = queue(100, 9);
    queue.push(0, &[80]);
    queue.push(1, &[70]);
    queue.push(2, &[90]);
    queue.push(3, &[30]);
    assert_eq!(queue.next(none_busy), [(3, 0), (1, 0)]);
    assert_eq!(queue.next(none_busy), [(0, 0)]);
    assert_eq!(queue.next(none_busy), [(2, 0)]);
    // A request runs its long texts first: the 35 would fit with the 60, but waits for the 70.
    queue.push(4, &[60, 55]);
    queue.push(5, &[70, 35]);
    assert_eq!(queue.next(none_busy), [(4, 0)]);
    assert_eq!(queue.next(none_busy), [(5, 0)]);
    assert_eq!(queue.next(none_busy), [(5, 1), (4, 1)]);
    assert_eq!((queue.requests(), queue.tokens()), (0, 0));
}

#[test]
fn removed_requests_never_run_and_busy_requests_are_skipped() {
    let mut queue = queue(100, 9);
    (0..4).for_each(|id| queue.push(id, &[40, 10]));
    [0, 3].iter().for_each(|id| queue.remove(*id));
    assert_eq!(queue.next(|id| id == 1), [(2, 0), (2, 1)]);
    assert_eq!((queue.requests(), queue.tokens()), (1, 50));
    assert_eq!(queue.next(|_| true), []);
    queue.push(9, &[40]);
    assert_eq!(queue.next(none_busy), [(1, 0), (9, 0), (1, 1)]);
    queue.push(10, &[40]);
    queue.remove(10);
    assert_eq!((queue.next(none_busy), queue.tokens()), (vec![], 0));
}

#[test]
fn busy_requests_do_not_accumulate_credit() {
    let mut queue = queue(100, 100);
    queue.push(0, &[10; 1000]);
    queue.push(1, &[10; 1000]);
    for _ in 0..50 {
        let batch = queue.next(|id| id == 0);
        assert_eq!(batch.iter().filter(|(id, _)| *id == 1).count(), 10);
    }
    let batch = queue.next(none_busy);
    assert!(batch.iter().filter(|(id, _)| *id == 1).count() >= 4, "{batch:?}");
}

/// What happens before one batch.
#[derive(Clone, Debug)]
struct Turn {
    /// The lengths of each request's texts.
    arrivals: Vec<Vec<usize>>,
    removed: Option<Index>,
    busy: Index,
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let lengths = |most: usize| vec(1..=120usize, 0..most);
    let arrivals = vec(prop_oneof![4 => lengths(3), 1 => lengths(200)], 0..4);
    let removed = prop::option::weighted(1.0 / 6.0, any::<Index>());
    let turn =
        (arrivals, removed, any::<Index>()).prop_map(|(arrivals, removed, busy)| Turn { arrivals, removed, busy });
    vec(turn, 0..=60)
}

#[test]
fn random_requests_run_once_within_budget_or_are_removed() {
    check(200, &(1..=400usize, 1..=12usize, turns()), |(tokens, most, turns)| {
        let mut queue = queue(tokens, most);
        let (mut lengths, mut open, mut over) = (Vec::<Vec<usize>>::new(), BTreeSet::new(), BTreeSet::new());
        for number in 0.. {
            let turn = turns.get(number);
            for of in turn.map_or(&[][..], |turn| &turn.arrivals) {
                let id = lengths.len() as u64;
                queue.push(id, of);
                open.extend((0..of.len()).map(|i| (id, i)));
                lengths.push(of.clone());
            }
            if let Some(removed) = turn.and_then(|turn| turn.removed).filter(|_| !lengths.is_empty()) {
                over.insert(removed.index(lengths.len()) as u64);
            }
            // After the last turn, requests are busy in turns until all are served.
            let busy = turn.map_or(number % (lengths.len() + 1), |turn| turn.busy.index(lengths.len() + 1)) as u64;
            over.iter().for_each(|id| queue.remove(*id));
            let batch = queue.next(|id| id == busy);
            open.retain(|(id, _)| !over.contains(id));
            let sum: usize = batch.iter().map(|(id, i)| lengths[*id as usize][*i]).sum();
            assert!(batch.len() <= most && (sum <= tokens || batch.len() == 1), "{sum} of {tokens}");
            assert!(!batch.is_empty() || open.iter().all(|(id, _)| *id == busy), "no batch although texts wait");
            for work in &batch {
                assert!(work.0 != busy && open.remove(work), "{work:?} was not waiting");
            }
            let left: usize = open.iter().map(|(id, i)| lengths[*id as usize][*i]).sum();
            assert_eq!(queue.tokens(), left);
            if number > turns.len() && open.is_empty() {
                break;
            }
            assert!(number < 20_000, "the run does not end");
        }
        assert!(queue.order.len() <= lengths.len());
    });
}

#[test]
fn waiting_requests_get_equal_shares() {
    // Each request: the lengths of its texts, which repeat, and how many batches run before the
    // next request arrives. The budget limits texts, not tokens: where a long text does not fit, a
    // short one takes the rest of a batch, whatever its request has had already.
    let inputs = (1..=200usize).prop_flat_map(|longest| {
        let requests = vec((vec(1..=longest, 1..30), 0..3), 2..8);
        (Just(longest), 1..=20usize, requests)
    });
    check(100, &inputs, |(longest, sequences, requests)| {
        let n = requests.len();
        let mut queue = queue(usize::MAX, sequences);
        let lengths: Vec<Vec<usize>> =
            requests.iter().map(|(lengths, _)| lengths.iter().copied().cycle().take(3000).collect()).collect();
        let mut served_before = vec![0; n];
        let mut served = vec![0usize; n];
        for (id, (_, batches)) in requests.iter().enumerate() {
            // Requests arrive one after another; shares count from the arrival of the last.
            queue.push(id as u64, &lengths[id]);
            for _ in 0..*batches {
                queue
                    .next(none_busy)
                    .iter()
                    .for_each(|(id, i)| served_before[*id as usize] += lengths[*id as usize][*i]);
            }
        }
        for _ in 0..200 {
            for (id, i) in queue.next(none_busy) {
                served[id as usize] += lengths[id as usize][i];
            }
            if queue.requests() < n {
                break;
            }
            let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
            assert!(most - least <= 2 * longest, "{served:?} after {served_before:?}, texts of up to {longest}");
        }
    });
}
