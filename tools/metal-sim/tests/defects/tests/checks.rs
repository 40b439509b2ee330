//! What the checked mode must report, and what it must not: memory errors, races, and lanes of a
//! SIMD-group that diverge.

use metal_sim_tests::{Buffer, Library, Mode, Order};

const ORDERS: [Order; 5] = [Order::Forward, Order::Backward, Order::Shuffled(0), Order::Shuffled(7), Order::InTurns];

fn checked(name: &str) -> Library {
    Library::load_as(name, Mode::Checked).unwrap()
}

#[test]
fn races_are_reported_in_every_order_and_nothing_else_is() {
    let library = checked("races");
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
            let said = run(&format!("{kernel}_race"));
            let races = said.contains(&format!("{kernel}_race: data race at byte")) && said.contains(subject);
            // `tile_race` may also report unwritten memory, if the reader runs first.
            assert!(races, "{kernel}, {order:?}: {said:?}");
            assert_eq!(run(kernel), "", "{order:?}");
        }
    }
}

#[test]
fn a_race_is_told_with_both_threads_and_the_place() {
    let library = checked("races");
    let y = library.buffer(&[0f32; 64]);
    let said = library.dispatch("neighbours_race", [1, 64], &[&y], Order::Forward).unwrap();
    let race = said.lines().find(|line| line.contains("data race")).unwrap();
    assert_eq!(
        race,
        "neighbours_race: data race at byte 128 of shared: thread 32 of threadgroup (0,0,0) writes what thread 31 of \
         threadgroup (0,0,0) read with no barrier between"
    );
    let y = library.buffer(&[0u16; 256]);
    let said = library.dispatch("parts_race", [2, 64], &[&y], Order::Forward).unwrap();
    assert_eq!(
        said,
        "parts_race: data race at byte 126 of buffer 0: thread 0 of threadgroup (1,0,0) writes what thread 63 of \
         threadgroup (0,0,0) wrote in the same dispatch\n"
    );
}

#[test]
fn commands_that_no_barrier_orders_are_reported() {
    let library = checked("races");
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
fn bytes_side_by_side_do_not_race() {
    let library = checked("races");
    let y = library.buffer(&[0u8; 128]);
    assert_eq!(library.dispatch("bytes", [2, 64], &[&y], Order::Forward).unwrap(), "");
}

fn out_of_bounds(library: &Library, kernel: &str, buffers: &[&Buffer<'_>]) -> String {
    let error = library.dispatch(kernel, [1, 32], buffers, Order::Forward).unwrap_err();
    let before = format!("{kernel}: out of bounds: ");
    assert!(error.starts_with(&before), "{error}");
    error[before.len()..].replace(" of threadgroup (0,0,0)", "")
}

#[test]
fn one_element_out_of_bounds_ends_the_dispatch() {
    let library = checked("memory");
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
fn what_is_not_bound_may_not_be_read() {
    let library = checked("memory");
    let (y, x) = (library.buffer(&[0f32; 32]), library.buffer(&[0f32; 32]));
    let said = out_of_bounds(&library, "reads_absent", &[&y, &x]);
    assert_eq!(said, "thread 0 reads 4 bytes of an argument that its function constant turns off");
    let said = out_of_bounds(&library, "reads_unbound", &[&y, &x]);
    assert_eq!(said, "thread 0 reads 4 bytes of a buffer that is not bound");
}

#[test]
fn reads_of_what_no_one_wrote_are_reported() {
    let library = checked("memory");
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
        let said = run(kernel, &fresh);
        assert!(said.contains("reads byte 0 of buffer 0, which no one has written"), "{kernel}: {said:?}");
        assert_eq!(run(kernel, &y), "", "the host has written it");
    }
    let fresh = library.fresh(128);
    assert_eq!(run("sets", &fresh), "");
    assert_eq!(run("adds_f32", &fresh), "", "a kernel has written it");
}

#[test]
fn lanes_that_do_not_keep_together_are_reported() {
    const DIFFERENT: &str = "lanes of one SIMD-group wait at different SIMD operations";
    const UNREACHED: &str = "a SIMD operation that some lanes do not reach: they wait at threadgroup_barrier";
    for mode in [Mode::Plain, Mode::Checked] {
        let library = Library::load_as("simd", mode).unwrap();
        for (kernel, what) in
            [("half_of_the_lanes", UNREACHED), ("two_operations", DIFFERENT), ("uneven_loop", DIFFERENT)]
        {
            for order in ORDERS {
                let y = library.buffer(&[0f32; 32]);
                let said = library.dispatch(kernel, [1, 32], &[&y], order).unwrap();
                assert_eq!(said, format!("{kernel}: {what}\n"), "{order:?}");
            }
        }
        let y = library.buffer(&[0f32; 32]);
        assert_eq!(library.dispatch("some_have_returned", [1, 32], &[&y], Order::Forward).unwrap(), "");
        assert_eq!(y.read::<f32>()[..16], [16f32; 16]);
    }
}

#[test]
fn orders_differ_and_a_seed_gives_one_order() {
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
        assert!(all[..i].iter().all(|other| *other != all[i]), "{order:?} is another's");
        let mut came = all[i].clone();
        came.sort_unstable();
        assert!(came.into_iter().eq(0..(2 * groups * threads) as u32), "{order:?}");
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
fn bytes_are_counted_as_asked_for_and_once() {
    let library = checked("memory");
    let (y, x) = (library.buffer(&[0f32; 32]), library.buffer(&[0f32; 32]));
    assert_eq!(library.traffic("reads", [1, 32], &[&y, &x]), [128, 128, 128, 128]);
    // Every thread reads the same bytes.
    assert_eq!(library.traffic("reads_first", [1, 32], &[&y, &x]), [128, 128, 4, 128]);
}
