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

struct Dice(u64);

impl Dice {
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
fn says(digest: u64, sequence: SeqId) -> Next {
    let z = mix(digest, sequence.0 + 1000);
    if z.is_multiple_of(31) { Next::Stop } else { Next::Token((z >> 32) as u32 % 3) }
}

/// What a sequence must generate when it runs alone.
fn alone(mut tokens: Vec<u32>, limit: usize, sequence: SeqId) -> Vec<u32> {
    while tokens.len() < limit {
        match says(digest(&tokens), sequence) {
            Next::Token(t) => tokens.push(t),
            Next::Stop => break,
        }
    }
    tokens
}

struct World {
    blocks: Blocks,
    scheduler: Scheduler,
    budget: Budget,
    cache: Vec<u64>,
    dice: Dice,
    /// Of every live sequence: its tokens, how many are computed, its limit, the forks it will
    /// have.
    living: HashMap<SeqId, (Vec<u32>, usize, usize, Vec<SeqId>)>,
    expected: HashMap<SeqId, Vec<u32>>,
    /// In order of arrival.
    age: Vec<SeqId>,
    cancelled: HashSet<SeqId>,
    /// Sequences whose prompt logits are still wanted.
    unscored: HashSet<SeqId>,
    names: u64,
    preemptions: usize,
    hits: u64,
    copies: usize,
}

impl World {
    fn new(seed: u64) -> World {
        let mut dice = Dice(seed << 20);
        let (count, size) = (6 + dice.below(30) as u32, 1 + dice.below(6) as u32);
        let sequences = 1 + dice.below(8);
        World {
            blocks: Blocks::new(count, size).unwrap(),
            scheduler: Scheduler::default(),
            // Half of the budgets are tight, so that prompts take many steps.
            budget: Budget {
                tokens: sequences + 1 + if dice.one_in(2) { dice.below(3) } else { dice.below(20) },
                sequences,
            },
            cache: vec![0; (count * size) as usize],
            dice,
            living: HashMap::new(),
            expected: HashMap::new(),
            age: Vec::new(),
            cancelled: HashSet::new(),
            unscored: HashSet::new(),
            names: 0,
            preemptions: 0,
            hits: 0,
            copies: 0,
        }
    }

    fn name(&mut self) -> SeqId {
        self.names += 1;
        SeqId(self.names)
    }

    fn submit(&mut self) {
        let slots = self.blocks.count() * self.blocks.size();
        let limit = 2 + self.dice.below(slots.min(60));
        let long = 1 + self.dice.below(limit - 1);
        // A small vocabulary, so that prefixes are often equal.
        let constant = self.dice.one_in(2);
        let tokens: Vec<u32> = (0..long).map(|_| if constant { 1 } else { self.dice.below(2) as u32 }).collect();
        let n = if self.dice.one_in(4) { 1 + self.dice.below(4) } else { 1 };
        let sequence = self.name();
        let scored = self.dice.one_in(3);
        let request = Request { sequence, tokens: tokens.clone(), limit, n, scored };
        match self.scheduler.submit(request, &self.blocks) {
            Ok(()) => {
                if scored {
                    self.unscored.insert(sequence);
                }
                let forks = (1..n).map(|_| self.name()).collect();
                self.living.insert(sequence, (tokens, 0, limit, forks));
                self.age.push(sequence);
            }
            Err(refused) => assert!(matches!(refused, Refused::TooLong { .. }) && limit - 1 > slots, "{refused}"),
        }
    }

    fn turn(&mut self) {
        let hit = self.blocks.stats().hit;
        let step = self.scheduler.step(&mut self.blocks, self.budget);
        self.hits += self.blocks.stats().hit - hit;
        self.blocks.check();
        // Cancelled sequences and their blocks are gone.
        for id in self.cancelled.drain() {
            assert_eq!(self.blocks.len(id), None);
            assert_eq!(self.scheduler.tokens(id), None);
        }
        self.age.retain(|id| self.living.contains_key(id));
        self.judge(&step);
        self.run(&step);
        let sampled = self.answers(&step);
        // Sometimes the model fails, or a request is cancelled while it runs.
        if self.dice.one_in(40) {
            step.pieces.iter().for_each(|p| self.living.get_mut(&p.sequence).unwrap().1 = 0);
            return;
        }
        if self.dice.one_in(10) {
            self.cancel();
        }
        let ended = self.scheduler.commit(&mut self.blocks, sampled.clone());
        self.blocks.check();
        self.record(&step, sampled, &ended);
    }

    fn judge(&mut self, step: &Step) {
        self.preemptions += step.preempted.len();
        self.copies += step.copies.len();
        for id in &step.preempted {
            if let Some(s) = self.living.get_mut(id) {
                s.1 = 0;
            }
        }
        assert!(step.pieces.len() <= self.budget.sequences);
        assert!(step.pieces.iter().map(ScheduledChunk::rows).sum::<usize>() <= self.budget.sequences);
        assert!(step.pieces.iter().map(|p| p.range.len()).sum::<usize>() <= self.budget.tokens);
        let once: HashSet<SeqId> = step.pieces.iter().map(|p| p.sequence).collect();
        assert_eq!(once.len(), step.pieces.len());
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
        for piece in &step.pieces {
            let (tokens, seen, ..) = &self.living[&piece.sequence];
            // Every position is computed once, unless it was in the prefix cache when the sequence
            // began.
            let fresh = *seen == 0 && piece.range.start.is_multiple_of(size);
            assert!(fresh || piece.range.start == *seen, "{piece:?} after {seen}");
            assert!(!piece.range.is_empty());
            assert_eq!(piece.sample, piece.range.end == tokens.len());
            // A prompt whose logits are wanted is computed in full, whatever the prefix cache
            // holds.
            assert_eq!(piece.scored, self.unscored.contains(&piece.sequence));
            assert!(!piece.scored || piece.range.start == *seen);
            assert_eq!(self.scheduler.tokens(piece.sequence), Some(tokens.as_slice()));
            let slots: Vec<u32> = self.blocks.slots(piece.sequence, 0..piece.range.end).collect();
            for p in piece.range.clone() {
                let before = if p == 0 { 1 } else { self.cache[slots[p - 1] as usize] };
                self.cache[slots[p] as usize] = mix(before, u64::from(tokens[p]) + 1);
                assert!(written.insert(slots[p]), "two write to one slot");
            }
        }
        // After all writes, every slot that is read still has the right digest.
        for piece in &step.pieces {
            let tokens = &self.living[&piece.sequence].0;
            let mut d = 1;
            for (p, slot) in self.blocks.slots(piece.sequence, 0..piece.range.end).enumerate() {
                d = mix(d, u64::from(tokens[p]) + 1);
                assert_eq!(self.cache[slot as usize], d, "position {p} of {:?}", piece.sequence);
            }
        }
    }

    fn answers(&mut self, step: &Step) -> Vec<Sampled> {
        let mut answers = Vec::new();
        for piece in step.pieces.iter().filter(|p| p.sample) {
            let sequence = piece.sequence;
            let (tokens, _, limit, forks) = &self.living[&sequence];
            let slot = self.blocks.slots(sequence, piece.range.end - 1..piece.range.end).next().unwrap();
            let d = self.cache[slot as usize];
            for id in [&[sequence], forks.as_slice()].concat() {
                self.expected.entry(id).or_insert_with(|| alone(tokens.clone(), *limit, id));
            }
            let forks = forks.iter().map(|id| (*id, says(d, *id))).collect();
            answers.push(Sampled { sequence, next: says(d, sequence), forks });
        }
        answers
    }

    fn record(&mut self, step: &Step, sampled: Vec<Sampled>, ended: &[SeqId]) {
        for piece in &step.pieces {
            if let Some(s) = self.living.get_mut(&piece.sequence) {
                s.1 = piece.range.end;
            }
        }
        for answer in sampled {
            self.unscored.remove(&answer.sequence);
            let Some((tokens, seen, limit, _)) = self.living.get(&answer.sequence).cloned() else { continue };
            let mut at = self.age.iter().position(|id| *id == answer.sequence).unwrap();
            for (id, next) in [vec![(answer.sequence, answer.next)], answer.forks].concat() {
                let mut tokens = tokens.clone();
                if let Next::Token(t) = next {
                    tokens.push(t);
                }
                if next == Next::Stop || tokens.len() == limit {
                    assert!(ended.contains(&id), "{id:?} should have ended");
                    assert_eq!(tokens, self.expected[&id], "{id:?}");
                    assert_eq!(self.blocks.len(id), None);
                    self.living.remove(&id);
                    continue;
                }
                assert!(!ended.contains(&id));
                self.living.insert(id, (tokens, seen, limit, vec![]));
                if id != answer.sequence {
                    at += 1;
                    self.age.insert(at, id);
                }
            }
        }
    }

    fn cancel(&mut self) {
        let mut all: Vec<SeqId> = self.living.keys().copied().collect();
        all.sort_unstable();
        if !all.is_empty() {
            let id = all[self.dice.below(all.len())];
            self.scheduler.release(&mut self.blocks, id);
            self.blocks.check();
            self.living.remove(&id);
            self.cancelled.insert(id);
        }
    }
}

#[test]
fn random_workloads_lose_mix_and_starve_nothing() {
    let runs = if cfg!(debug_assertions) { 1_000 } else { 10_000 };
    let (mut preemptions, mut hits, mut copies, mut steps) = (0, 0, 0, 0);
    for seed in 0..runs {
        let mut world = World::new(seed);
        let requests = 1 + world.dice.below(8);
        let mut came = 0;
        for turn in 0.. {
            while came < requests && (world.dice.one_in(3) || world.scheduler.is_idle()) {
                world.submit();
                came += 1;
            }
            if world.dice.one_in(25) {
                world.cancel();
            }
            world.turn();
            steps += 1;
            if came == requests && world.living.is_empty() {
                break;
            }
            assert!(turn < 20_000, "run {seed} does not end");
        }
        world.scheduler.step(&mut world.blocks, world.budget);
        assert!(world.scheduler.is_idle(), "run {seed}");
        assert_eq!(world.blocks.free_blocks(), world.blocks.count(), "run {seed}");
        preemptions += world.preemptions;
        hits += world.hits;
        copies += world.copies;
    }
    println!("{runs} runs, {steps} steps, {preemptions} preemptions, {hits} tokens hit, {copies} copies");
    // The workloads exercise preemption, the prefix cache and copies.
    assert!(preemptions > runs as usize / 2 && hits > 10 * runs && copies > runs as usize / 10);
}
