//! Simulations of several processes that are killed, paused and started again at random.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use sconce_testkit::check;

/// What happens to a simulated process at a moment.
#[derive(Clone, Copy, Debug)]
enum Event {
    Kill,
    Pause,
    Resume,
    Restart,
}

/// A simulated process.
struct Process {
    coordinator: Coordinator,
    claim: Option<Claim>,
    /// Steps until the claimed shard is computed.
    left: u32,
    is_alive: bool,
    is_paused: bool,
    /// Whether it was paused for long enough to lose its lease.
    paused_for: u32,
}

#[test]
fn every_shard_is_done_once_after_kills_and_pauses() {
    let event = prop_oneof![
        2 => Just(Event::Kill),
        3 => Just(Event::Pause),
        3 => Just(Event::Resume),
        2 => Just(Event::Restart)
    ];
    let clocks = vec(prop_oneof![Just(60u64), Just(100), Just(180)], 3);
    let events = vec((0u32..8, 0usize..3, event), 0..40);
    check(150, &(clocks, events, 1usize..9, 1u32..25), |(clocks, events, shards, effort)| {
        simulate(&clocks, &events, shards, effort);
    });
}

fn simulate(clocks: &[u64], events: &[(u32, usize, Event)], shards: usize, effort: u32) {
    let world = World::new(shards);
    let start = |i: usize| Process {
        coordinator: world.join(i as u64, clocks[i]),
        claim: None,
        left: 0,
        is_alive: true,
        is_paused: false,
        paused_for: 0,
    };
    let mut processes: Vec<Process> = (0..clocks.len()).map(start).collect();
    let (mut interruptions, mut events) = (0u32, events.iter().copied());
    let (mut next, mut until) = (events.next(), 0);
    for step in 0..4000u32 {
        while let Some((delay, who, event)) = next.filter(|(delay, ..)| step >= until + delay) {
            until += delay;
            let process = &mut processes[who];
            match event {
                Event::Kill if process.is_alive => {
                    interruptions += u32::from(process.claim.is_some());
                    process.is_alive = false;
                }
                Event::Pause if process.is_alive && !process.is_paused => {
                    interruptions += u32::from(process.claim.is_some());
                    process.is_paused = true;
                }
                Event::Resume => process.is_paused = false,
                Event::Restart if !process.is_alive => *process = start(who),
                _ => {}
            }
            next = events.next();
        }
        if next.is_none() {
            // In the end a process lives and none is paused.
            processes.iter_mut().for_each(|process| process.is_paused = false);
            if !processes[0].is_alive {
                processes[0] = start(0);
            }
        }
        world.pass(Duration::from_millis(100));
        let mut is_complete = false;
        for process in processes.iter_mut().filter(|process| process.is_alive) {
            if process.is_paused {
                process.paused_for += 1;
                continue;
            }
            is_complete |= run_step(process, effort);
        }
        if is_complete && next.is_none() {
            break;
        }
    }
    let attempts: u32 = (0..shards).map(|shard| world.done(shard).attempts).sum();
    assert!(attempts <= shards as u32 + interruptions, "{attempts} attempts, {interruptions} interruptions");
    for shard in 0..shards {
        let data = world.store.read(&world.manifest.output_names(shard).0).unwrap();
        assert_eq!(data, Some(content(shard)));
    }
    assert!(world.store.list(record::REFUSED).unwrap().is_empty());
}

/// One step of a process: work first, so that one that comes back commits before it knows that it
/// is late, and then a heartbeat. Returns whether the run is complete.
fn run_step(process: &mut Process, effort: u32) -> bool {
    let mut is_complete = false;
    match process.claim.take() {
        Some(claim) if process.left > 0 => {
            process.left -= 1;
            process.claim = Some(claim);
        }
        Some(claim) => {
            let finished = finish(&claim, &content(claim.shard));
            let committed = process.coordinator.commit(&claim, &finished).unwrap();
            let is_late = matches!(committed, Committed::Lost | Committed::AlreadyThere);
            assert!(!is_late || process.paused_for > 0, "a process that always beat lost a shard");
        }
        None => match process.coordinator.next().unwrap() {
            Next::Work(claim) => (process.claim, process.left) = (Some(claim), effort),
            Next::Wait => {}
            Next::Complete => is_complete = true,
        },
    }
    tick(&process.coordinator);
    let is_lost = process.claim.as_ref().is_some_and(|claim| process.coordinator.is_lost(claim.shard));
    assert!(!is_lost || process.paused_for > 0, "a process that always beat lost a shard");
    is_complete
}
