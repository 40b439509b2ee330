//! Random workloads against a fake model whose KV cache reveals any wrong slot: a slot holds a
//! digest of the text up to its position, which the model computes from the digest in the slot
//! before it.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use sconce_testkit::{check, mix};
use std::cell::Cell;

/// What happens in one run, from the outside.
#[derive(Clone, Debug)]
struct Workload {
    blocks: u32,
    block_size: u32,
    sequences: usize,
    /// Tokens of the budget beyond one for each sequence.
    spare_tokens: usize,
    arrivals: Vec<Arrival>,
    /// Each with the number of steps since the one before it.
    interruptions: Vec<(usize, Interruption)>,
}

#[derive(Clone, Debug)]
struct Arrival {
    /// Steps since the arrival before it.
    wait: usize,
    limit: Index,
    prompt: Index,
    /// The prompt's tokens: a small vocabulary, so that prefixes are often equal.
    bits: u64,
    answers: usize,
    scored: bool,
}

#[derive(Clone, Copy, Debug)]
enum Interruption {
    Cancel(Index),
    CancelDuringStep(Index),
    ModelFails,
}

fn workloads() -> impl Strategy<Value = Workload> {
    let wait = prop_oneof![2 => Just(0), 3 => 1..6usize];
    let bits = prop_oneof![Just(u64::MAX), any::<u64>()];
    let answers = prop_oneof![3 => Just(1), 1 => 1..5usize];
    let arrival = (wait, any::<Index>(), any::<Index>(), bits, answers, prop::bool::weighted(0.3)).prop_map(
        |(wait, limit, prompt, bits, answers, scored)| Arrival { wait, limit, prompt, bits, answers, scored },
    );
    let interruption = prop_oneof![
        8 => any::<Index>().prop_map(Interruption::CancelDuringStep),
        3 => any::<Index>().prop_map(Interruption::Cancel),
        2 => Just(Interruption::ModelFails),
    ];
    // Half of the budgets are tight, so that prompts take many steps.
    let spare_tokens = prop_oneof![0..3usize, 0..20usize];
    let lists = (vec(arrival, 1..=8), vec((0..13usize, interruption), 0..12));
    (6..36u32, 1..7u32, 1..9usize, spare_tokens, lists).prop_map(
        |(blocks, block_size, sequences, spare_tokens, (arrivals, interruptions))| Workload {
            blocks,
            block_size,
            sequences,
            spare_tokens,
            arrivals,
            interruptions,
        },
    )
}

fn digest(tokens: &[u32]) -> u64 {
    tokens.iter().fold(1, |d, t| mix(d, u64::from(*t) + 1))
}

/// What the fake model generates after `digest` for the sequence: a token, or the end.
fn fake_output(digest: u64, sequence: SeqId) -> Advance {
    let z = mix(digest, sequence.0 + 1000);
    if z.is_multiple_of(31) { Advance::Stop } else { Advance::Token((z >> 32) as u32 % 3) }
}

/// What a sequence must generate when it runs alone.
fn expected_alone(mut tokens: Vec<u32>, limit: usize, sequence: SeqId) -> Vec<u32> {
    while tokens.len() < limit {
        match fake_output(digest(&tokens), sequence) {
            Advance::Token(t) => tokens.push(t),
            Advance::Stop => break,
        }
    }
    tokens
}

struct Simulation {
    blocks: Blocks,
    scheduler: Scheduler,
    budget: Budget,
    cache: Vec<u64>,
    /// Of every live sequence: its tokens, how many are computed, its limit, the forks it will
    /// have.
    live: HashMap<SeqId, (Vec<u32>, usize, usize, Vec<SeqId>)>,
    expected: HashMap<SeqId, Vec<u32>>,
    /// In order of arrival.
    age: Vec<SeqId>,
    cancelled: HashSet<SeqId>,
    /// Sequences whose prompt logits are still wanted.
    unscored: HashSet<SeqId>,
    last_id: u64,
    preemptions: usize,
    hits: u64,
    copies: usize,
}

impl Simulation {
    fn new(workload: &Workload) -> Simulation {
        let Workload { blocks, block_size, sequences, spare_tokens, .. } = *workload;
        Simulation {
            blocks: Blocks::new(blocks, block_size).unwrap(),
            scheduler: Scheduler::default(),
            budget: Budget { tokens: sequences + 1 + spare_tokens, sequences },
            cache: vec![0; (blocks * block_size) as usize],
            live: HashMap::new(),
            expected: HashMap::new(),
            age: Vec::new(),
            cancelled: HashSet::new(),
            unscored: HashSet::new(),
            last_id: 0,
            preemptions: 0,
            hits: 0,
            copies: 0,
        }
    }

    fn new_id(&mut self) -> SeqId {
        self.last_id += 1;
        SeqId(self.last_id)
    }

    fn submit(&mut self, arrival: &Arrival) {
        let slots = self.blocks.count() * self.blocks.size();
        let limit = 2 + arrival.limit.index(slots.min(60));
        let tokens: Vec<u32> =
            (0..1 + arrival.prompt.index(limit - 1)).map(|i| (arrival.bits >> i) as u32 & 1).collect();
        let (n, scored) = (arrival.answers, arrival.scored);
        let sequence = self.new_id();
        let request = Request { sequence, tokens: tokens.clone(), limit, n, scored };
        match self.scheduler.submit(request, &self.blocks) {
            Ok(()) => {
                if scored {
                    self.unscored.insert(sequence);
                }
                let forks = (1..n).map(|_| self.new_id()).collect();
                self.live.insert(sequence, (tokens, 0, limit, forks));
                self.age.push(sequence);
            }
            Err(refused) => assert!(matches!(refused, SubmitError::TooLong { .. }) && limit - 1 > slots, "{refused}"),
        }
    }

    fn run_step(&mut self, interruptions: &[Interruption]) {
        let hit = self.blocks.stats().hit;
        let step = self.scheduler.step(&mut self.blocks, self.budget);
        self.hits += self.blocks.stats().hit - hit;
        self.blocks.check();
        // Cancelled sequences and their blocks are gone.
        for id in self.cancelled.drain() {
            assert_eq!(self.blocks.len(id), None);
            assert_eq!(self.scheduler.tokens(id), None);
        }
        self.age.retain(|id| self.live.contains_key(id));
        self.check_step(&step);
        self.run(&step);
        let sampled = self.answers(&step);
        if interruptions.iter().any(|i| matches!(i, Interruption::ModelFails)) {
            step.chunks.iter().for_each(|p| self.live.get_mut(&p.sequence).unwrap().1 = 0);
            return;
        }
        for interruption in interruptions {
            if let Interruption::CancelDuringStep(which) = interruption {
                self.cancel(which);
            }
        }
        let ended = self.scheduler.commit(&mut self.blocks, sampled.clone());
        self.blocks.check();
        self.record(&step, sampled, &ended);
    }

    fn check_step(&mut self, step: &Step) {
        self.preemptions += step.preempted.len();
        self.copies += step.copies.len();
        for id in &step.preempted {
            if let Some(s) = self.live.get_mut(id) {
                s.1 = 0;
            }
        }
        assert!(step.chunks.len() <= self.budget.sequences);
        assert!(step.chunks.iter().map(ScheduledChunk::rows).sum::<usize>() <= self.budget.sequences);
        assert!(step.chunks.iter().map(|p| p.range.len()).sum::<usize>() <= self.budget.tokens);
        let once: HashSet<SeqId> = step.chunks.iter().map(|p| p.sequence).collect();
        assert_eq!(once.len(), step.chunks.len());
        // The oldest advances in every step: no sequence starves.
        if let Some(oldest) = self.age.first() {
            assert!(once.contains(oldest), "{oldest:?} is the oldest and not in {step:?}");
        }
        // Copies do not depend on each other.
        let to: HashSet<u32> = step.copies.iter().map(|c| c.1).collect();
        assert_eq!(to.len(), step.copies.len());
        assert!(step.copies.iter().all(|c| !to.contains(&c.0)));
    }

    /// Copies, then writes; every write goes to a slot that no other sequence reads or writes.
    fn run(&mut self, step: &Step) {
        let size = self.blocks.size();
        for (from, to) in &step.copies {
            let from = *from as usize * size;
            self.cache.copy_within(from..from + size, *to as usize * size);
        }
        let mut written = HashSet::new();
        for chunk in &step.chunks {
            let (tokens, computed, ..) = &self.live[&chunk.sequence];
            // Every position is computed once, unless it was in the prefix cache when the sequence
            // began.
            let fresh = *computed == 0 && chunk.range.start.is_multiple_of(size);
            assert!(fresh || chunk.range.start == *computed, "{chunk:?} after {computed}");
            assert!(!chunk.range.is_empty());
            assert_eq!(chunk.sample, chunk.range.end == tokens.len());
            // A prompt whose logits are wanted is computed in full, whatever the prefix cache
            // holds.
            assert_eq!(chunk.scored, self.unscored.contains(&chunk.sequence));
            assert!(!chunk.scored || chunk.range.start == *computed);
            assert_eq!(self.scheduler.tokens(chunk.sequence), Some(tokens.as_slice()));
            let slots: Vec<u32> = self.blocks.slots(chunk.sequence, 0..chunk.range.end).collect();
            for p in chunk.range.clone() {
                let before = if p == 0 { 1 } else { self.cache[slots[p - 1] as usize] };
                self.cache[slots[p] as usize] = mix(before, u64::from(tokens[p]) + 1);
                assert!(written.insert(slots[p]), "two sequences write to one slot");
            }
        }
        // After all writes, every slot that is read still has the right digest.
        for chunk in &step.chunks {
            let tokens = &self.live[&chunk.sequence].0;
            let mut d = 1;
            for (p, slot) in self.blocks.slots(chunk.sequence, 0..chunk.range.end).enumerate() {
                d = mix(d, u64::from(tokens[p]) + 1);
                assert_eq!(self.cache[slot as usize], d, "position {p} of {:?}", chunk.sequence);
            }
        }
    }

    fn answers(&mut self, step: &Step) -> Vec<Sampled> {
        let mut answers = Vec::new();
        for chunk in step.chunks.iter().filter(|p| p.sample) {
            let sequence = chunk.sequence;
            let (tokens, _, limit, forks) = &self.live[&sequence];
            let slot = self.blocks.slots(sequence, chunk.range.end - 1..chunk.range.end).next().unwrap();
            let d = self.cache[slot as usize];
            for id in [&[sequence], forks.as_slice()].concat() {
                self.expected.entry(id).or_insert_with(|| expected_alone(tokens.clone(), *limit, id));
            }
            let forks = forks.iter().map(|id| (*id, fake_output(d, *id))).collect();
            answers.push(Sampled { sequence, next: fake_output(d, sequence), forks });
        }
        answers
    }

    fn record(&mut self, step: &Step, sampled: Vec<Sampled>, ended: &[SeqId]) {
        for chunk in &step.chunks {
            if let Some(s) = self.live.get_mut(&chunk.sequence) {
                s.1 = chunk.range.end;
            }
        }
        for answer in sampled {
            self.unscored.remove(&answer.sequence);
            let Some((tokens, computed, limit, _)) = self.live.get(&answer.sequence).cloned() else { continue };
            let mut at = self.age.iter().position(|id| *id == answer.sequence).unwrap();
            for (id, next) in [vec![(answer.sequence, answer.next)], answer.forks].concat() {
                let mut tokens = tokens.clone();
                if let Advance::Token(t) = next {
                    tokens.push(t);
                }
                if next == Advance::Stop || tokens.len() == limit {
                    assert!(ended.contains(&id), "{id:?} should have ended");
                    assert_eq!(tokens, self.expected[&id], "{id:?}");
                    assert_eq!(self.blocks.len(id), None);
                    self.live.remove(&id);
                    continue;
                }
                assert!(!ended.contains(&id));
                self.live.insert(id, (tokens, computed, limit, vec![]));
                if id != answer.sequence {
                    at += 1;
                    self.age.insert(at, id);
                }
            }
        }
    }

    fn cancel(&mut self, which: &Index) {
        let mut all: Vec<SeqId> = self.live.keys().copied().collect();
        all.sort_unstable();
        if !all.is_empty() {
            let id = *which.get(&all);
            self.scheduler.release(&mut self.blocks, id);
            self.blocks.check();
            self.live.remove(&id);
            self.cancelled.insert(id);
        }
    }
}

/// Runs a workload to its end.
fn simulate(workload: &Workload, steps: &mut usize) -> Simulation {
    let mut simulation = Simulation::new(workload);
    let mut arrivals = workload.arrivals.iter().peekable();
    let mut interruptions = workload.interruptions.iter().peekable();
    let (mut last_arrival, mut last_interruption) = (0, 0);
    for step in 0.. {
        while let Some(arrival) = arrivals.next_if(|a| last_arrival + a.wait <= step || simulation.scheduler.is_idle())
        {
            simulation.submit(arrival);
            last_arrival = step;
        }
        let mut now = Vec::new();
        while let Some((_, interruption)) = interruptions.next_if(|(wait, _)| last_interruption + wait <= step) {
            now.push(*interruption);
            last_interruption = step;
        }
        for interruption in &now {
            if let Interruption::Cancel(which) = interruption {
                simulation.cancel(which);
            }
        }
        simulation.run_step(&now);
        *steps += 1;
        if arrivals.peek().is_none() && simulation.live.is_empty() {
            break;
        }
        assert!(step < 20_000, "the run does not end");
    }
    simulation
}

#[test]
fn random_workloads_neither_lose_mix_nor_starve_sequences() {
    let runs = if cfg!(debug_assertions) { 1_000 } else { 10_000 };
    let totals = Cell::new((0, 0, 0, 0));
    check(runs, &workloads(), |workload| {
        let (mut preemptions, mut hits, mut copies, mut steps) = totals.get();
        let mut simulation = simulate(&workload, &mut steps);
        simulation.scheduler.step(&mut simulation.blocks, simulation.budget);
        assert!(simulation.scheduler.is_idle());
        assert_eq!(simulation.blocks.free_blocks(), simulation.blocks.count());
        preemptions += simulation.preemptions;
        hits += simulation.hits;
        copies += simulation.copies;
        totals.set((preemptions, hits, copies, steps));
    });
    let (preemptions, hits, copies, steps) = totals.get();
    println!("{runs} runs, {steps} steps, {preemptions} preemptions, {hits} tokens hit, {copies} copies");
    // The workloads exercise preemption, the prefix cache and copies.
    assert!(preemptions > runs as usize / 2 && hits > 10 * u64::from(runs) && copies > runs as usize / 10);
}
