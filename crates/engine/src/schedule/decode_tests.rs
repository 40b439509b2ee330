use super::*;
use std::ops::Range;

const A: SeqId = SeqId(1);
const B: SeqId = SeqId(2);
const C: SeqId = SeqId(3);

fn request(sequence: SeqId, tokens: &[u32], limit: usize) -> Request {
    Request { sequence, tokens: tokens.to_vec(), limit, n: 1, scored: false }
}

fn all(step: &Step, token: u32) -> Vec<Sampled> {
    let wanted = step.pieces.iter().filter(|p| p.sample);
    wanted.map(|p| Sampled { sequence: p.sequence, next: Next::Token(token), forks: vec![] }).collect()
}

fn pieces(step: &Step) -> Vec<(SeqId, Range<usize>, bool)> {
    step.pieces.iter().map(|p| (p.sequence, p.range.clone(), p.sample)).collect()
}

#[test]
fn decodes_come_first_and_prompts_share_the_rest() {
    let mut blocks = Blocks::new(100, 4).unwrap();
    let mut scheduler = Scheduler::default();
    let budget = Budget { tokens: 9, sequences: 8 };
    scheduler.submit(request(A, &[1, 2], 5), &blocks).unwrap();
    let step = scheduler.step(&mut blocks, budget);
    assert_eq!(pieces(&step), [(A, 0..2, true)]);
    assert!(scheduler.commit(&mut blocks, all(&step, 3)).is_empty());
    scheduler.submit(request(B, &[7; 100], 101), &blocks).unwrap();
    scheduler.submit(request(C, &[8; 5], 7), &blocks).unwrap();
    // One of A; of the other eight, half for B, which is the older, and half for C.
    let step = scheduler.step(&mut blocks, budget);
    assert_eq!(pieces(&step), [(A, 2..3, true), (B, 0..4, false), (C, 0..4, false)]);
    scheduler.commit(&mut blocks, all(&step, 4));
    // C needs one more; what it does not need is B's.
    let step = scheduler.step(&mut blocks, budget);
    assert_eq!(pieces(&step), [(A, 3..4, true), (C, 4..5, true), (B, 4..11, false)]);
    // A comes to its limit of five.
    assert_eq!(scheduler.commit(&mut blocks, all(&step, 5)), [A]);
    assert_eq!(scheduler.tokens(A), None);
    assert_eq!(scheduler.tokens(C), Some(&[8, 8, 8, 8, 8, 5][..]));
    // A stop ends at once, and so does silence.
    let step = scheduler.step(&mut blocks, budget);
    assert_eq!(pieces(&step), [(C, 5..6, true), (B, 11..19, false)]);
    assert_eq!(scheduler.commit(&mut blocks, vec![]), [C]);
    assert_eq!((scheduler.running(), scheduler.waiting()), (1, 0));
}

#[test]
fn the_oldest_prompt_has_half_and_the_shortest_others_the_rest() {
    let mut blocks = Blocks::new(100, 4).unwrap();
    let mut scheduler = Scheduler::default();
    for (i, long) in [50, 40, 3, 20].into_iter().enumerate() {
        scheduler.submit(request(SeqId(i as u64), &vec![i as u32; long], 60), &blocks).unwrap();
    }
    let step = scheduler.step(&mut blocks, Budget { tokens: 20, sequences: 8 });
    assert_eq!(pieces(&step), [(SeqId(0), 0..10, false), (SeqId(2), 0..3, true), (SeqId(3), 0..7, false)]);
}

#[test]
fn an_older_prompts_blocks_are_its_own() {
    // A needs 20 blocks; B one and then more and more; C, if there is one, 30. Each grows by a token a step, and blocks are
    // just enough to begin.
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
            assert!(step.pieces.iter().any(|p| p.sequence == A), "{order:?} {count}: {step:?}");
            preempted.extend(step.preempted.iter().copied());
            scheduler.commit(&mut blocks, all(&step, 7));
        }
        assert_eq!(preempted.first(), Some(&order[2]), "{order:?} {count}");
    }
}

#[test]
fn the_newest_gives_way_and_comes_back_with_all_its_tokens() {
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
        computed.extend(step.pieces.iter().filter(|p| p.sequence == B).map(|p| p.range.clone()));
        ended.extend(scheduler.commit(&mut blocks, all(&step, 10 + i)));
        if scheduler.is_idle() {
            break;
        }
    }
    assert_eq!(ended, [A, B]);
    // Five blocks: A and B have two each after the second step, A takes the fifth, and B's fifth token finds none.
    assert_eq!(preempted, [(3, B)]);
    // Its first block was still there when it came back.
    assert_eq!(computed, [0..2, 2..3, 3..4, 2..5, 5..6, 6..7, 7..8]);
    assert_eq!(blocks.free_blocks(), 5);
}

#[test]
fn what_can_never_fit_is_refused_with_numbers() {
    let blocks = Blocks::new(4, 16).unwrap();
    let mut scheduler = Scheduler::default();
    let refused = scheduler.submit(request(A, &[1; 10], 66), &blocks).unwrap_err();
    assert_eq!(refused, Refused::TooLong { tokens: 10, limit: 66, need: 5, blocks: 4, size: 16 });
    assert!(refused.to_string().contains("needs 5 blocks of 16 tokens, the cache has 4 (64 tokens)"), "{refused}");
    assert_eq!(scheduler.submit(request(A, &[], 9), &blocks), Err(Refused::Empty));
    let full = scheduler.submit(request(A, &[1; 9], 9), &blocks);
    assert_eq!(full, Err(Refused::Full { tokens: 9, limit: 9 }));
    scheduler.submit(request(A, &[1; 10], 65), &blocks).unwrap();
    assert_eq!(scheduler.submit(request(A, &[1], 9), &blocks), Err(Refused::Duplicate(A)));
}

#[test]
fn answers_of_one_prompt_share_it() {
    let mut blocks = Blocks::new(10, 4).unwrap();
    let mut scheduler = Scheduler::default();
    let budget = Budget { tokens: 50, sequences: 3 };
    scheduler.submit(Request { n: 3, ..request(A, &[1, 2, 3, 4, 5], 8) }, &blocks).unwrap();
    scheduler.submit(request(SeqId(9), &[6], 8), &blocks).unwrap();
    let step = scheduler.step(&mut blocks, budget);
    // The seats of the two to come are kept.
    assert_eq!(pieces(&step), [(A, 0..5, true)]);
    let forks = vec![(B, Next::Token(11)), (C, Next::Token(12))];
    scheduler.commit(&mut blocks, vec![Sampled { sequence: A, next: Next::Token(10), forks }]);
    assert_eq!(blocks.free_blocks(), 8);
    let step = scheduler.step(&mut blocks, budget);
    assert_eq!(pieces(&step), [(A, 5..6, true), (B, 5..6, true), (C, 5..6, true)]);
    assert_eq!(step.copies, [(1, 2), (1, 3)]);
    // One stops, and its seat is the next one's.
    let stop = |s: &Sampled| Sampled { next: if s.sequence == B { Next::Stop } else { s.next }, ..s.clone() };
    let ended = scheduler.commit(&mut blocks, all(&step, 20).iter().map(stop).collect());
    assert_eq!(ended, [B]);
    let step = scheduler.step(&mut blocks, budget);
    assert_eq!(pieces(&step), [(A, 6..7, true), (C, 6..7, true), (SeqId(9), 0..1, true)]);
}

#[test]
fn a_step_that_failed_is_taken_back() {
    let mut blocks = Blocks::new(10, 4).unwrap();
    let mut scheduler = Scheduler::default();
    let budget = Budget { tokens: 50, sequences: 3 };
    scheduler.submit(request(A, &[1, 2, 3, 4, 5], 8), &blocks).unwrap();
    scheduler.submit(request(B, &[1, 2, 3, 4, 5], 8), &blocks).unwrap();
    scheduler.step(&mut blocks, budget);
    scheduler.cancel(B);
    let step = scheduler.step(&mut blocks, budget);
    assert_eq!(step.preempted, [B, A]);
    // Nothing of the failed step is taken for known.
    assert_eq!(pieces(&step), [(A, 0..5, true)]);
    assert_eq!(blocks.free_blocks(), 8);
}

#[test]
fn a_piece_that_failed_leaves_nothing_behind() {
    let mut blocks = Blocks::new(10, 4).unwrap();
    let mut scheduler = Scheduler::default();
    let budget = Budget { tokens: 50, sequences: 3 };
    scheduler.submit(request(A, &[9, 9, 9, 9, 9], 8), &blocks).unwrap();
    scheduler.submit(request(B, &[1, 2, 3, 4, 5], 8), &blocks).unwrap();
    let step = scheduler.step(&mut blocks, budget);
    scheduler.abandon(&mut blocks, B);
    assert_eq!(scheduler.commit(&mut blocks, all(&step, 7)), []);
    assert_eq!((scheduler.tokens(A).unwrap().len(), scheduler.tokens(B)), (6, None));
    // The same text is computed from its beginning.
    scheduler.submit(request(C, &[1, 2, 3, 4, 5], 8), &blocks).unwrap();
    let step = scheduler.step(&mut blocks, budget);
    assert_eq!(pieces(&step), [(A, 5..6, true), (C, 0..5, true)]);
    scheduler.commit(&mut blocks, vec![]);
    assert!(scheduler.is_idle());
    assert_eq!(blocks.free_blocks(), 10);
}

// Random workloads against a model whose cache is real enough to notice any wrong slot: a slot holds a digest of the whole
// text up to its position, which the model makes from the digest in the slot before it.

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

/// What the "model" says after `digest` for the sequence: a token, or the end.
fn says(digest: u64, sequence: SeqId) -> Next {
    let z = mix(digest, sequence.0 + 1000);
    if z.is_multiple_of(31) { Next::Stop } else { Next::Token((z >> 32) as u32 % 3) }
}

/// What a sequence must come to, alone and undisturbed.
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
    /// Of every living sequence: its tokens, how far it was computed, its limit, forks it will have.
    living: HashMap<SeqId, (Vec<u32>, usize, usize, Vec<SeqId>)>,
    expected: HashMap<SeqId, Vec<u32>>,
    /// In the order they came.
    age: Vec<SeqId>,
    cancelled: HashSet<SeqId>,
    /// Whose prompts are still to be scored.
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
            // Half of them tight, so that prompts take long.
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
        // Few tokens, so that beginnings are often alike.
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
        // The cancelled are gone with their blocks.
        for id in self.cancelled.drain() {
            assert_eq!(self.blocks.len(id), None);
            assert_eq!(self.scheduler.tokens(id), None);
        }
        self.age.retain(|id| self.living.contains_key(id));
        self.judge(&step);
        self.run(&step);
        let sampled = self.answers(&step);
        // Now and then the model fails, or someone leaves while it runs.
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
        assert!(step.pieces.iter().map(Piece::rows).sum::<usize>() <= self.budget.sequences);
        assert!(step.pieces.iter().map(|p| p.range.len()).sum::<usize>() <= self.budget.tokens);
        let once: HashSet<SeqId> = step.pieces.iter().map(|p| p.sequence).collect();
        assert_eq!(once.len(), step.pieces.len());
        // The oldest moves in every step: nobody waits for ever.
        if let Some(oldest) = self.age.first() {
            assert!(once.contains(oldest), "{oldest:?} is the oldest and not in {step:?}");
        }
        // Copies do not depend on each other.
        let to: HashSet<u32> = step.copies.iter().map(|c| c.1).collect();
        assert_eq!(to.len(), step.copies.len());
        assert!(step.copies.iter().all(|c| !to.contains(&c.0)));
    }

    /// Copies, then writes; and every write goes where no other sequence reads or writes.
    fn run(&mut self, step: &Step) {
        let size = self.blocks.size();
        for (from, to) in &step.copies {
            let from = *from as usize * size;
            self.cache.copy_within(from..from + size, *to as usize * size);
        }
        let mut written = HashSet::new();
        for piece in &step.pieces {
            let (tokens, seen, ..) = &self.living[&piece.sequence];
            // Every position once: what was not seen before, or was in the cache when it began.
            let fresh = *seen == 0 && piece.range.start.is_multiple_of(size);
            assert!(fresh || piece.range.start == *seen, "{piece:?} after {seen}");
            assert!(!piece.range.is_empty());
            assert_eq!(piece.sample, piece.range.end == tokens.len());
            // All of a prompt that is to be scored is computed, whatever of it is in the cache.
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
        // After all writes, all that is read is still what it should be.
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
            let cancelled = self.cancelled.contains(&answer.sequence);
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
                    self.cancelled.remove(&id);
                    continue;
                }
                assert!(!ended.contains(&id));
                self.living.insert(id, (tokens, seen, limit, vec![]));
                if id != answer.sequence {
                    at += 1;
                    self.age.insert(at, id);
                }
                if cancelled {
                    self.cancelled.insert(id);
                }
            }
        }
        self.forget();
    }

    fn cancel(&mut self) {
        let mut all: Vec<SeqId> = self.living.keys().copied().collect();
        all.sort_unstable();
        if !all.is_empty() {
            let id = all[self.dice.below(all.len())];
            self.scheduler.cancel(id);
            self.cancelled.insert(id);
        }
    }

    fn forget(&mut self) {
        self.living.retain(|id, _| !self.cancelled.contains(id));
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
                world.forget();
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
    // The workloads do what they are for.
    assert!(preemptions > runs as usize / 2 && hits > 10 * runs && copies > runs as usize / 10);
}

#[test]
fn a_short_prompt_does_not_wait_for_a_long_one_nor_the_other_way_round() {
    let mut blocks = Blocks::new(4000, 16).unwrap();
    let mut scheduler = Scheduler::default();
    let budget = Budget { tokens: 100, sequences: 16 };
    scheduler.submit(request(SeqId(0), &vec![1; 5000], 5001), &blocks).unwrap();
    let mut waits: HashMap<SeqId, usize> = HashMap::new();
    for turn in 0..1000 {
        // A short one in every step, for ever.
        let short = SeqId(turn as u64 + 1);
        scheduler.submit(request(short, &[2 + turn as u32; 40], 41), &blocks).unwrap();
        waits.insert(short, turn);
        let step = scheduler.step(&mut blocks, budget);
        let ended = scheduler.commit(&mut blocks, all(&step, 0));
        for id in &ended {
            if let Some(came) = waits.get(id) {
                assert!(turn - came <= 1, "{id:?} waited {} steps", turn - came);
            }
        }
        if ended.contains(&SeqId(0)) {
            // At least half of every step was its own.
            assert!(turn <= 100, "the long prompt took {turn} steps");
            return;
        }
    }
    panic!("the long prompt starves");
}
