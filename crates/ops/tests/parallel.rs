//! Parallel loops on the thread team for any caller, without deadlocks.

use rayon::prelude::*;
use sconce_ops::{Attention, DType, Ladder, Place, Policy, Rung, Segments, Tensor, attention, softmax, threads};
use sconce_testkit::wait_until;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

#[test]
fn map_results_are_in_order_with_concurrent_and_nested_callers() {
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for tasks in [0, 1, 2, 3, 17, 1000] {
                    let inner = |i: usize| threads::map(3, |j| i * j).into_iter().sum::<usize>();
                    assert_eq!(threads::map(tasks, inner), (0..tasks).map(|i| 3 * i).collect::<Vec<_>>());
                }
            });
        }
    });
}

#[test]
fn every_chunk_is_visited_once_with_its_index() {
    for (len, chunk) in [(0, 3), (1, 1), (10, 3), (9, 3), (4, 100)] {
        let mut values = vec![0; len];
        threads::for_each_chunk_mut(&mut values, chunk, |i, part| {
            assert!(part.len() == chunk || i == len / chunk);
            part.iter_mut().enumerate().for_each(|(j, v)| *v += i * chunk + j + 1);
        });
        assert_eq!(values, (1..=len).collect::<Vec<_>>());
    }
}

#[test]
fn panic_reaches_the_caller_and_no_worker_is_lost() {
    for bad in [0, 63] {
        let message = catch_unwind(|| threads::for_each(64, |i| assert!(i != bad, "task {bad}"))).unwrap_err();
        assert_eq!(message.downcast_ref::<String>(), Some(&format!("task {bad}")));
        // As many tasks at once as there are threads: each waits until all have started.
        let (count, started) = (threads::count(), AtomicUsize::new(0));
        threads::for_each(count, |_| {
            started.fetch_add(1, SeqCst);
            while started.load(SeqCst) < count {
                thread::yield_now();
            }
        });
    }
}

#[test]
fn ops_do_not_wait_for_background_jobs() {
    let (is_done, started) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        // Occupies every worker, and does not end before the op has.
        scope.spawn(|| {
            threads::for_each(4 * threads::count(), |_| {
                started.fetch_add(1, SeqCst);
                wait_until("the op is done", || is_done.load(SeqCst));
            });
        });
        wait_until("every worker is occupied", || started.load(SeqCst) == threads::count());
        let x = Tensor::from_f32(&vec![0.5; 64 * 4096], &[64, 4096], DType::F32, &Place::cpu()).unwrap();
        softmax(&x).unwrap();
        is_done.store(true, SeqCst);
    });
}

/// A thread that owns a device, and callers that block all threads of rayon's pool while they wait
/// for it.
#[test]
fn composed_ops_do_not_deadlock_with_rayon_callers() {
    let (calls, inbox) = channel::<std::sync::mpsc::Sender<f32>>();
    let device = thread::spawn(move || {
        let _here = Ladder::new(Policy::default().with_force(Some(Rung::Composed))).enter();
        let (tokens, heads, size) = (600, 4, 64);
        let x = vec![0.5; tokens * heads * size];
        let x = Tensor::from_f32(&x, &[tokens, heads, size], DType::F32, &Place::cpu()).unwrap();
        let options = Attention::full(&Segments::new(&[tokens]).unwrap(), 1.0);
        for answer in inbox {
            let _ = answer.send(attention(&x, &x, &x, &options).unwrap().to_f32().unwrap()[7]);
        }
    });
    let waited = AtomicBool::new(false);
    let call = |_| {
        let (answer, answered) = channel();
        calls.send(answer).unwrap();
        // After one call has timed out, the others need not wait.
        let timeout = Duration::from_secs(if waited.load(SeqCst) { 0 } else { 60 });
        let answer = answered.recv_timeout(timeout);
        waited.fetch_or(answer.is_err(), SeqCst);
        answer
    };
    let all: Vec<_> = (0..8 * rayon::current_num_threads()).into_par_iter().map(call).collect();
    assert!(all.iter().all(|y| y.is_ok_and(|y| (y - 0.5).abs() < 1e-5)), "callers and their op wait for each other");
    drop(calls);
    device.join().unwrap();
}
