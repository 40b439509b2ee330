//! Steps that can be checked by hand; `decode_simulation.rs` has random ones.

use super::*;
use std::ops::Range;

const A: SeqId = SeqId(1);
const B: SeqId = SeqId(2);
const C: SeqId = SeqId(3);

fn request(sequence: SeqId, tokens: &[u32], limit: usize) -> Request {
    Request { sequence, tokens: tokens.to_vec(), limit, n: 1, scored: false }
}

fn all(step: &Step, token: u32) -> Vec<Sampled> {
    let wanted = step.chunks.iter().filter(|p| p.sample);
    wanted.map(|p| Sampled { sequence: p.sequence, next: Advance::Token(token), forks: vec![] }).collect()
}

fn chunks(step: &Step) -> Vec<(SeqId, Range<usize>, bool)> {
    step.chunks.iter().map(|p| (p.sequence, p.range.clone(), p.sample)).collect()
}

#[test]
fn decode_tokens_come_before_prompt_chunks() {
    let mut blocks = Blocks::new(100, 4).unwrap();
    let mut scheduler = Scheduler::default();
    let budget = Budget { tokens: 9, sequences: 8 };
    scheduler.submit(request(A, &[1, 2], 5), &blocks).unwrap();
    let step = scheduler.step(&mut blocks, budget);
    assert_eq!(chunks(&step), [(A, 0..2, true)]);
    assert!(scheduler.commit(&mut blocks, all(&step, 3)).is_empty());
    scheduler.submit(request(B, &[7; 100], 101), &blocks).unwrap();
    scheduler.submit(request(C, &[8; 5], 7), &blocks).unwrap();
    // One token for A; of the other eight, half for B, which is older, and half for C.
    let step = scheduler.step(&mut blocks, budget);
    assert_eq!(chunks(&step), [(A, 2..3, true), (B, 0..4, false), (C, 0..4, false)]);
    scheduler.commit(&mut blocks, all(&step, 4));
    // C needs one more; B gets the rest.
    let step = scheduler.step(&mut blocks, budget);
    assert_eq!(chunks(&step), [(A, 3..4, true), (C, 4..5, true), (B, 4..11, false)]);
    // A reaches its limit of five.
    assert_eq!(scheduler.commit(&mut blocks, all(&step, 5)), [A]);
    assert_eq!(scheduler.tokens(A), None);
    assert_eq!(scheduler.tokens(C), Some(&[8, 8, 8, 8, 8, 5][..]));
    // A stop ends a sequence at once, and so does a missing sample.
    let step = scheduler.step(&mut blocks, budget);
    assert_eq!(chunks(&step), [(C, 5..6, true), (B, 11..19, false)]);
    assert_eq!(scheduler.commit(&mut blocks, vec![]), [C]);
    assert_eq!((scheduler.running(), scheduler.waiting()), (1, 0));
}

#[test]
fn oldest_prompt_gets_half_the_budget_shortest_prompts_the_rest() {
    let mut blocks = Blocks::new(100, 4).unwrap();
    let mut scheduler = Scheduler::default();
    for (i, long) in [50, 40, 3, 20].into_iter().enumerate() {
        scheduler.submit(request(SeqId(i as u64), &vec![i as u32; long], 60), &blocks).unwrap();
    }
    let step = scheduler.step(&mut blocks, Budget { tokens: 20, sequences: 8 });
    assert_eq!(chunks(&step), [(SeqId(0), 0..10, false), (SeqId(2), 0..3, true), (SeqId(3), 0..7, false)]);
}

#[test]
fn newer_sequences_are_preempted_before_an_older_prompt() {
    // A needs 20 blocks, B one and then more, C, if present, 30. Each grows by a token per step,
    // and there are just enough blocks to begin.
    for (order, count) in [([A, B, C], 53), ([A, B, C], 54), ([A, B, B], 22)] {
        let mut blocks = Blocks::new(count, 2).unwrap();
        let mut scheduler = Scheduler::default();
        let (prompts, limits) = ([vec![1; 40], vec![2; 2], vec![3; 60]], [41, 44, 61]);
        for id in order {
            let i = id.0 as usize - 1;
            let _ = scheduler.submit(request(id, &prompts[i], limits[i]), &blocks);
        }
        let sequences = scheduler.waiting();
        let mut preempted = Vec::new();
        while scheduler.tokens(A).is_some() {
            let step = scheduler.step(&mut blocks, Budget { tokens: sequences, sequences });
            assert!(step.chunks.iter().any(|p| p.sequence == A), "{order:?} {count}: {step:?}");
            preempted.extend(step.preempted.iter().copied());
            scheduler.commit(&mut blocks, all(&step, 7));
        }
        assert_eq!(preempted.first(), Some(&order[2]), "{order:?} {count}");
    }
}

#[test]
fn newest_sequence_is_preempted_and_resumes_with_its_tokens() {
    let mut blocks = Blocks::new(5, 2).unwrap();
    let mut scheduler = Scheduler::default();
    let budget = Budget { tokens: 50, sequences: 8 };
    scheduler.submit(request(A, &[1, 2], 9), &blocks).unwrap();
    scheduler.submit(request(B, &[3, 4], 9), &blocks).unwrap();
    let mut preempted = Vec::new();
    let mut ended = Vec::new();
    let mut computed = Vec::new();
    for i in 0.. {
        let step = scheduler.step(&mut blocks, budget);
        preempted.extend(step.preempted.iter().map(|s| (i, *s)));
        computed.extend(step.chunks.iter().filter(|p| p.sequence == B).map(|p| p.range.clone()));
        ended.extend(scheduler.commit(&mut blocks, all(&step, 10 + i)));
        if scheduler.is_idle() {
            break;
        }
    }
    assert_eq!(ended, [A, B]);
    // Five blocks: A and B have two each after the second step, A takes the fifth, and none is left
    // for B's fifth token.
    assert_eq!(preempted, [(3, B)]);
    // Its first block was still in the prefix cache when it resumed.
    assert_eq!(computed, [0..2, 2..3, 3..4, 2..5, 5..6, 6..7, 7..8]);
    assert_eq!(blocks.free_blocks(), 5);
}

#[test]
fn requests_that_cannot_fit_are_refused_with_block_counts() {
    let blocks = Blocks::new(4, 16).unwrap();
    let mut scheduler = Scheduler::default();
    let refused = scheduler.submit(request(A, &[1; 10], 66), &blocks).unwrap_err();
    assert_eq!(refused, SubmitError::TooLong { tokens: 10, limit: 66, need: 5, blocks: 4, size: 16 });
    assert!(refused.to_string().contains("needs 5 blocks of 16 tokens, the cache has 4 (64 tokens)"), "{refused}");
    assert_eq!(scheduler.submit(request(A, &[], 9), &blocks), Err(SubmitError::Empty));
    let full = scheduler.submit(request(A, &[1; 9], 9), &blocks);
    assert_eq!(full, Err(SubmitError::Full { tokens: 9, limit: 9 }));
    scheduler.submit(request(A, &[1; 10], 65), &blocks).unwrap();
    assert_eq!(scheduler.submit(request(A, &[1], 9), &blocks), Err(SubmitError::Duplicate(A)));
}

#[test]
fn parallel_answers_share_prompt_blocks() {
    let mut blocks = Blocks::new(10, 4).unwrap();
    let mut scheduler = Scheduler::default();
    let budget = Budget { tokens: 50, sequences: 3 };
    scheduler.submit(Request { n: 3, ..request(A, &[1, 2, 3, 4, 5], 8) }, &blocks).unwrap();
    scheduler.submit(request(SeqId(9), &[6], 8), &blocks).unwrap();
    let step = scheduler.step(&mut blocks, budget);
    // Capacity for the two forks is reserved.
    assert_eq!(chunks(&step), [(A, 0..5, true)]);
    let forks = vec![(B, Advance::Token(11)), (C, Advance::Token(12))];
    scheduler.commit(&mut blocks, vec![Sampled { sequence: A, next: Advance::Token(10), forks }]);
    assert_eq!(blocks.free_blocks(), 8);
    let step = scheduler.step(&mut blocks, budget);
    assert_eq!(chunks(&step), [(A, 5..6, true), (B, 5..6, true), (C, 5..6, true)]);
    assert_eq!(step.copies, [(1, 2), (1, 3)]);
    // One stops, and the waiting sequence takes its place.
    let stop = |s: &Sampled| Sampled { next: if s.sequence == B { Advance::Stop } else { s.next }, ..s.clone() };
    let ended = scheduler.commit(&mut blocks, all(&step, 20).iter().map(stop).collect());
    assert_eq!(ended, [B]);
    let step = scheduler.step(&mut blocks, budget);
    assert_eq!(chunks(&step), [(A, 6..7, true), (C, 6..7, true), (SeqId(9), 0..1, true)]);
}

#[test]
fn failed_step_is_rolled_back() {
    let mut blocks = Blocks::new(10, 4).unwrap();
    let mut scheduler = Scheduler::default();
    let budget = Budget { tokens: 50, sequences: 3 };
    scheduler.submit(request(A, &[1, 2, 3, 4, 5], 8), &blocks).unwrap();
    scheduler.submit(request(B, &[1, 2, 3, 4, 5], 8), &blocks).unwrap();
    scheduler.step(&mut blocks, budget);
    scheduler.release(&mut blocks, B);
    let step = scheduler.step(&mut blocks, budget);
    assert_eq!(step.preempted, [A]);
    // Nothing of the failed step is in the prefix cache.
    assert_eq!(chunks(&step), [(A, 0..5, true)]);
    assert_eq!(blocks.free_blocks(), 8);
}

#[test]
fn failed_chunk_leaves_nothing_in_the_prefix_cache() {
    let mut blocks = Blocks::new(10, 4).unwrap();
    let mut scheduler = Scheduler::default();
    let budget = Budget { tokens: 50, sequences: 3 };
    scheduler.submit(request(A, &[9, 9, 9, 9, 9], 8), &blocks).unwrap();
    scheduler.submit(request(B, &[1, 2, 3, 4, 5], 8), &blocks).unwrap();
    let step = scheduler.step(&mut blocks, budget);
    scheduler.release(&mut blocks, B);
    assert_eq!(scheduler.commit(&mut blocks, all(&step, 7)), []);
    assert_eq!((scheduler.tokens(A).unwrap().len(), scheduler.tokens(B)), (6, None));
    // The same text is computed from its beginning.
    scheduler.submit(request(C, &[1, 2, 3, 4, 5], 8), &blocks).unwrap();
    let step = scheduler.step(&mut blocks, budget);
    assert_eq!(chunks(&step), [(A, 5..6, true), (C, 0..5, true)]);
    scheduler.commit(&mut blocks, vec![]);
    assert!(scheduler.is_idle());
    assert_eq!(blocks.free_blocks(), 10);
}

#[test]
fn short_and_long_prompts_do_not_starve_each_other() {
    let mut blocks = Blocks::new(4000, 16).unwrap();
    let mut scheduler = Scheduler::default();
    let budget = Budget { tokens: 100, sequences: 16 };
    scheduler.submit(request(SeqId(0), &vec![1; 5000], 5001), &blocks).unwrap();
    let mut waits: HashMap<SeqId, usize> = HashMap::new();
    for turn in 0..1000 {
        // A short prompt arrives in every step.
        let short = SeqId(turn as u64 + 1);
        scheduler.submit(request(short, &[2 + turn as u32; 40], 41), &blocks).unwrap();
        waits.insert(short, turn);
        let step = scheduler.step(&mut blocks, budget);
        let ended = scheduler.commit(&mut blocks, all(&step, 0));
        for id in &ended {
            if let Some(arrived) = waits.get(id) {
                assert!(turn - arrived <= 1, "{id:?} waited {} steps", turn - arrived);
            }
        }
        if ended.contains(&SeqId(0)) {
            // It had at least half of every step.
            assert!(turn <= 100, "the long prompt took {turn} steps");
            return;
        }
    }
    panic!("the long prompt starves");
}
