//! The thread count and pinning that `threads::set` requests take effect. A process of its own,
//! because they are fixed once per process.
#![cfg(target_os = "linux")]

use sconce_ops::{DType, Place, Tensor, softmax, threads};
use sconce_testkit::wait_for;

/// Cores that the calling thread may use.
fn allowed_cores() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_string()
}

/// Names and allowed cores of this process's threads.
fn tasks() -> Vec<(String, String)> {
    let read = |task: std::fs::DirEntry| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some((name.trim().to_string(), cores.trim().to_string()))
    };
    std::fs::read_dir("/proc/self/task").unwrap().flatten().filter_map(read).collect()
}

#[test]
fn set_fixes_the_thread_count_and_pins_each_to_a_core() {
    let (cores, all_cores) = (std::thread::available_parallelism().map_or(1, usize::from), allowed_cores());
    threads::set(Some(cores), true).unwrap();
    assert_eq!(threads::count(), cores);
    threads::set(Some(cores), true).expect("the same again is no change");
    let refusal = threads::set(Some(cores + 1), false).unwrap_err().to_string();
    assert!(refusal.contains("already"), "{refusal}");
    let refusal = threads::set(Some(cores), false).unwrap_err().to_string();
    assert!(refusal.contains("each bound to a core"), "{refusal}");
    for (count, pin, why) in [(0, false, "from 1 to"), (4000, true, "cannot be bound")] {
        let refusal = threads::set(Some(count), pin).unwrap_err().to_string();
        assert!(refusal.contains(why), "{refusal}");
    }
    assert_eq!(threads::count(), cores, "a refused call changes nothing");

    // On a separate thread, which stays pinned to a core.
    std::thread::spawn(move || {
        threads::lead();
        let x = Tensor::from_f32(&vec![0.5; 64 * 4096], &[64, 4096], DType::F32, &Place::cpu()).unwrap();
        softmax(&x).unwrap();
        let allowed_cores = allowed_cores();
        // A worker takes its name and its core when it first runs, which may be a moment after an
        // op that ended without it.
        wait_for("one core each", || {
            let all = tasks();
            let mut team: Vec<String> =
                all.iter().filter(|(name, _)| name.starts_with("sconce-cpu-")).map(|task| task.1.clone()).collect();
            team.push(allowed_cores.clone());
            let count = team.len();
            team.sort();
            team.dedup();
            // As many threads as cores, each pinned to one core that no other has.
            let is_pinned = team.iter().all(|cores| cores.parse::<usize>().is_ok());
            if (count, team.len()) == (cores, cores) && is_pinned { Ok(()) } else { Err(format!("{all:?}")) }
        });
    })
    .join()
    .unwrap();
    // Neither a second leading thread nor a thread that does not lead is pinned.
    let second = std::thread::spawn(|| {
        threads::lead();
        allowed_cores()
    });
    assert_eq!((second.join().unwrap(), allowed_cores()), (all_cores.clone(), all_cores));
}
