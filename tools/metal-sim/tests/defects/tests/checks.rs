//! What the checked mode must report, and what it must not: memory errors, races, and lanes of a
//! SIMD-group that diverge.

use metal_sim_tests::{Buffer, Library, Mode, Order};

const ORDERS: [Order; 5] = [Order::Forward, Order::Backward, Order::Shuffled(0), Order::Shuffled(7), Order::InTurns];

fn load_checked(name: &str) -> Library {
    Library::load_as(name, Mode::Checked).unwrap()
}

#[test]
fn races_are_reported_in_every_order_without_false_reports() {
    let library = load_checked("races");
    for (kernel, subject, groups) in [
        ("neighbours", "shared", 1),
        ("lanes", "shared", 1),
        ("overwrites", "shared", 1),
        ("through_device", "buffer 1", 1),
        ("parts", "buffer 0", 2),
        ("groups", "buffer 0", 2),
        ("counts", "buffer 0", 2),
        ("starts", "buffer 0", 1),
        ("tile", "shared", 1),
    ] {
        for order in ORDERS {
            let run = |kernel: &str| {
                let (y, x) = (library.buffer(&[0f32; 256]), library.buffer(&[0f32; 256]));
                library.dispatch(kernel, [groups, 64], &[&y, &x], order).unwrap()
            };
            let report = run(&format!("{kernel}_race"));
            let races = report.contains(&format!("{kernel}_race: data race at byte")) && report.contains(subject);
            // `tile_race` may also report unwritten memory, if the reader runs first.
            assert!(races, "{kernel}, {order:?}: {report:?}");
            assert_eq!(run(kernel), "", "{order:?}");
        }
    }
}

#[test]
fn race_report_names_both_threads_and_the_byte() {
    let library = load_checked("races");
    let y = library.buffer(&[0f32; 64]);
    let report = library.dispatch("neighbours_race", [1, 64], &[&y], Order::Forward).unwrap();
    let race = report.lines().find(|line| line.contains("data race")).unwrap();
    assert_eq!(
        race,
        "neighbours_race: data race at byte 128 of shared: thread 32 of threadgroup (0,0,0) writes what thread 31 of \
         threadgroup (0,0,0) read with no barrier between"
    );
    let y = library.buffer(&[0u16; 256]);
    let report = library.dispatch("parts_race", [2, 64], &[&y], Order::Forward).unwrap();
    assert_eq!(
        report,
        "parts_race: data race at byte 126 of buffer 0: thread 0 of threadgroup (1,0,0) writes what thread 63 of \
         threadgroup (0,0,0) wrote in the same dispatch\n"
    );
}

#[test]
fn conflicting_commands_without_a_barrier_are_reported() {
    let library = load_checked("races");
    let run = |kernels: &[&str]| {
        let (y, x) = (library.buffer(&[0f32; 64]), library.buffer(&[0f32; 64]));
        library.dispatch_together(kernels, [1, 64], &[&y, &x], Order::Forward).unwrap()
    };
    assert_eq!(run(&["neighbours"]), "");
    assert_eq!(
        run(&["neighbours", "through_device"]),
        "through_device: data race at byte 0 of buffer 0: thread 0 of threadgroup (0,0,0) writes what another command \
         wrote with no barrier between the commands\n"
    );
}

#[test]
fn adjacent_bytes_do_not_race() {
    let library = load_checked("races");
    let y = library.buffer(&[0u8; 128]);
    assert_eq!(library.dispatch("bytes", [2, 64], &[&y], Order::Forward).unwrap(), "");
}

fn out_of_bounds(library: &Library, kernel: &str, buffers: &[&Buffer<'_>]) -> String {
    let error = library.dispatch(kernel, [1, 32], buffers, Order::Forward).unwrap_err();
    let prefix = format!("{kernel}: out of bounds: ");
    assert!(error.starts_with(&prefix), "{error}");
    error[prefix.len()..].replace(" of threadgroup (0,0,0)", "")
}

#[test]
fn access_one_element_out_of_bounds_ends_the_dispatch() {
    let library = load_checked("memory");
    let (y, x) = (library.buffer(&[0f32; 32]), library.buffer(&[0f32; 32]));
    let all: &[&Buffer<'_>] = &[&y, &x];
    for kernel in ["reads", "shares"] {
        assert_eq!(library.dispatch(kernel, [1, 32], all, Order::Forward).unwrap(), "");
    }
    let past = "thread 31 reads 4 bytes at byte 128 of buffer 1, which has 128";
    assert_eq!(out_of_bounds(&library, "reads_one_past", all), past);
    let astray = "thread 0 reads 16 bytes at an address that is no multiple of 8";
    assert_eq!(out_of_bounds(&library, "reads_vector_astray", all), astray);
    let before = "thread 0 reads 4 bytes at byte -4 of buffer 1, which has 128";
    assert_eq!(out_of_bounds(&library, "reads_one_before", all), before);
    let offset = library.buffer(&[0f32; 64]).at(128);
    assert_eq!(library.dispatch("reads", [1, 32], &[&y, &offset], Order::Forward).unwrap(), "");
    let before = "thread 0 reads 4 bytes at byte 124 of buffer 1, which has 256 and is bound at 128";
    assert_eq!(out_of_bounds(&library, "reads_one_before", &[&y, &offset]), before);
    let halves = library.buffer(&[0u16; 32]);
    let past = "thread 31 writes 2 bytes at byte 64 of buffer 0, which has 64";
    assert_eq!(out_of_bounds(&library, "writes_one_past", &[&halves]), past);
    let past = "thread 31 reads 4 bytes at byte 128 of threadgroup memory shared, which has 128";
    assert_eq!(out_of_bounds(&library, "shares_one_past", all), past);
    let before = "thread 0 reads 4 bytes at byte -4 of threadgroup memory shared, which has 128";
    assert_eq!(out_of_bounds(&library, "shares_one_before", all), before);
    let short = library.buffer(&[0f32; 30]);
    assert!(out_of_bounds(&library, "reads_vector_past", &[&y, &short]).contains("of buffer 1, which has 120"));
}

#[test]
fn reads_of_unbound_arguments_are_errors() {
    let library = load_checked("memory");
    let (y, x) = (library.buffer(&[0f32; 32]), library.buffer(&[0f32; 32]));
    let error = out_of_bounds(&library, "reads_absent", &[&y, &x]);
    assert_eq!(error, "thread 0 reads 4 bytes of an argument that its function constant turns off");
    let error = out_of_bounds(&library, "reads_unbound", &[&y, &x]);
    assert_eq!(error, "thread 0 reads 4 bytes of a buffer that is not bound");
}

#[test]
fn uninitialised_reads_are_reported() {
    let library = load_checked("memory");
    let y = library.buffer(&[0f32; 32]);
    let run = |kernel: &str, y: &Buffer<'_>| library.dispatch(kernel, [1, 32], &[y], Order::Forward).unwrap();
    assert_eq!(run("fills", &y), "");
    assert_eq!(
        run("fills_too_few", &y),
        "fills_too_few: thread 0 of threadgroup (0,0,0) reads byte 124 of threadgroup memory shared, which its \
         threadgroup has not written\n"
    );
    for kernel in ["adds_f32", "adds_f16", "adds_u8"] {
        let fresh = library.fresh(128);
        let report = run(kernel, &fresh);
        assert!(report.contains("reads byte 0 of buffer 0, which no one has written"), "{kernel}: {report:?}");
        assert_eq!(run(kernel, &y), "", "the host has written it");
    }
    let fresh = library.fresh(128);
    assert_eq!(run("sets", &fresh), "");
    assert_eq!(run("adds_f32", &fresh), "", "a kernel has written it");
}

#[test]
fn diverging_simd_lanes_are_reported() {
    const DIFFERENT: &str = "lanes of one SIMD-group wait at different SIMD operations";
    const UNREACHED: &str = "a SIMD operation that some lanes do not reach: they wait at threadgroup_barrier";
    for mode in [Mode::Plain, Mode::Checked] {
        let library = Library::load_as("simd", mode).unwrap();
        for (kernel, what) in
            [("half_of_the_lanes", UNREACHED), ("two_operations", DIFFERENT), ("uneven_loop", DIFFERENT)]
        {
            for order in ORDERS {
                let y = library.buffer(&[0f32; 32]);
                let report = library.dispatch(kernel, [1, 32], &[&y], order).unwrap();
                assert_eq!(report, format!("{kernel}: {what}\n"), "{order:?}");
            }
        }
        let y = library.buffer(&[0f32; 32]);
        assert_eq!(library.dispatch("some_have_returned", [1, 32], &[&y], Order::Forward).unwrap(), "");
        assert_eq!(y.read::<f32>()[..16], [16f32; 16]);
    }
}

#[test]
fn thread_orders_differ_and_seeds_are_deterministic() {
    let library = Library::load("simd").unwrap();
    let (groups, threads) = (3, 64);
    let places = |order| {
        let (y, count) = (library.buffer(&vec![0u32; 2 * groups * threads]), library.buffer(&[0u32]));
        library.dispatch("places", [groups as u32, threads as u32], &[&y, &count], order).unwrap();
        y.read::<u32>()
    };
    let all: Vec<Vec<u32>> = ORDERS.iter().map(|order| places(*order)).collect();
    for (i, order) in ORDERS.iter().enumerate() {
        assert_eq!(all[i], places(*order), "{order:?}");
        assert!(all[..i].iter().all(|other| *other != all[i]), "{order:?} equals another order");
        let mut sorted = all[i].clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..(2 * groups * threads) as u32), "{order:?}");
    }
    let [forward, backward, _, _, in_turns] = &all[..] else { unreachable!() };
    let second = groups * threads; // index of the first place after the SIMD operation
    // Forward, a SIMD-group runs until it must wait; interleaved, it waits for the others at
    // every SIMD operation.
    assert_eq!((forward[0], forward[1], forward[second], forward[32]), (0, 1, 32, 64));
    assert_eq!((in_turns[0], in_turns[1], in_turns[33], in_turns[second + 1]), (16, 0, 32, 64));
    assert_eq!((backward[second - 1], backward[second - 64]), (0, 95));
}

#[test]
fn traffic_counts_requested_and_distinct_bytes() {
    let library = load_checked("memory");
    let (y, x) = (library.buffer(&[0f32; 32]), library.buffer(&[0f32; 32]));
    assert_eq!(library.traffic("reads", [1, 32], &[&y, &x]), [128, 128, 128, 128]);
    // Every thread reads the same bytes.
    assert_eq!(library.traffic("reads_first", [1, 32], &[&y, &x]), [128, 128, 4, 128]);
}
