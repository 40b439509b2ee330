//! Random workloads against a fake model whose KV cache reveals any wrong slot: a slot holds a
//! digest of the text up to its position, which the model computes from the digest in the slot
//! before it.

use super::*;

fn mix(x: u64, y: u64) -> u64 {
    let mut z = (x ^ y.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(1);
        (mix(self.0, 7) % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
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
    rng: Rng,
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
    fn new(seed: u64) -> Simulation {
        let mut rng = Rng(seed << 20);
        let (count, size) = (6 + rng.below(30) as u32, 1 + rng.below(6) as u32);
        let sequences = 1 + rng.below(8);
        Simulation {
            blocks: Blocks::new(count, size).unwrap(),
            scheduler: Scheduler::default(),
            // Half of the budgets are tight, so that prompts take many steps.
            budget: Budget {
                tokens: sequences + 1 + if rng.one_in(2) { rng.below(3) } else { rng.below(20) },
                sequences,
            },
            cache: vec![0; (count * size) as usize],
            rng,
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

    fn submit(&mut self) {
        let slots = self.blocks.count() * self.blocks.size();
        let limit = 2 + self.rng.below(slots.min(60));
        let long = 1 + self.rng.below(limit - 1);
        // A small vocabulary, so that prefixes are often equal.
        let constant = self.rng.one_in(2);
        let tokens: Vec<u32> = (0..long).map(|_| if constant { 1 } else { self.rng.below(2) as u32 }).collect();
        let n = if self.rng.one_in(4) { 1 + self.rng.below(4) } else { 1 };
        let sequence = self.new_id();
        let scored = self.rng.one_in(3);
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

    fn run_step(&mut self) {
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
        // Sometimes the model fails, or a request is cancelled while it runs.
        if self.rng.one_in(40) {
            step.chunks.iter().for_each(|p| self.live.get_mut(&p.sequence).unwrap().1 = 0);
            return;
        }
        if self.rng.one_in(10) {
            self.cancel();
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
                assert!(written.insert(slots[p]), "two write to one slot");
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

    fn cancel(&mut self) {
        let mut all: Vec<SeqId> = self.live.keys().copied().collect();
        all.sort_unstable();
        if !all.is_empty() {
            let id = all[self.rng.below(all.len())];
            self.scheduler.release(&mut self.blocks, id);
            self.blocks.check();
            self.live.remove(&id);
            self.cancelled.insert(id);
        }
    }
}

#[test]
fn random_workloads_lose_mix_and_starve_nothing() {
    let runs = if cfg!(debug_assertions) { 1_000 } else { 10_000 };
    let (mut preemptions, mut hits, mut copies, mut steps) = (0, 0, 0, 0);
    for seed in 0..runs {
        let mut simulation = Simulation::new(seed);
        let requests = 1 + simulation.rng.below(8);
        let mut came = 0;
        for turn in 0.. {
            while came < requests && (simulation.rng.one_in(3) || simulation.scheduler.is_idle()) {
                simulation.submit();
                came += 1;
            }
            if simulation.rng.one_in(25) {
                simulation.cancel();
            }
            simulation.run_step();
            steps += 1;
            if came == requests && simulation.live.is_empty() {
                break;
            }
            assert!(turn < 20_000, "run {seed} does not end");
        }
        simulation.scheduler.step(&mut simulation.blocks, simulation.budget);
        assert!(simulation.scheduler.is_idle(), "run {seed}");
        assert_eq!(simulation.blocks.free_blocks(), simulation.blocks.count(), "run {seed}");
        preemptions += simulation.preemptions;
        hits += simulation.hits;
        copies += simulation.copies;
    }
    println!("{runs} runs, {steps} steps, {preemptions} preemptions, {hits} tokens hit, {copies} copies");
    // The workloads exercise preemption, the prefix cache and copies.
    assert!(preemptions > runs as usize / 2 && hits > 10 * runs && copies > runs as usize / 10);
}
