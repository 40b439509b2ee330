//! One correct kernel that must pass in every order of threads, and planted defects that must each
//! be caught.

use std::env;
use std::process::Command;

use metal_sim_tests::{Library, Mode, Order, compile};

const EPS: f32 = 1e-5;
const ORDERS: [Order; 5] = [Order::Forward, Order::Backward, Order::Shuffled(1), Order::Shuffled(2), Order::InTurns];

fn samples(count: usize) -> Vec<f32> {
    let mut state = 12345u32;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

fn reference(x: &[f32], length: usize) -> Vec<f64> {
    x.chunks(length)
        .flat_map(|row| {
            let n = length as f64;
            let mean = row.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
            let variance = row.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
            row.iter().map(move |&v| (f64::from(v) - mean) / (variance + f64::from(EPS)).sqrt())
        })
        .collect()
}

/// Largest difference from the reference; NaN if any difference is NaN.
fn worst(got: &[f32], want: &[f64]) -> f64 {
    let differences = got.iter().zip(want).map(|(&g, &w)| (f64::from(g) - w).abs());
    differences.fold(0.0, |worst, d| if d.is_nan() || d > worst { d } else { worst })
}

fn row_norm(
    library: &Library,
    kernel: &str,
    x: &[f32],
    [length, threads]: [usize; 2],
    order: Order,
) -> (Vec<f32>, String) {
    let (input, output) = (library.buffer(x), library.buffer(&vec![0f32; x.len()]));
    let (n, eps) = (library.buffer(&[length as u32]), library.buffer(&[EPS]));
    let grid = [(x.len() / length) as u32, threads as u32];
    let warnings = library.dispatch(kernel, grid, &[&input, &output, &n, &eps], order).unwrap();
    (output.read(), warnings)
}

#[test]
fn a_correct_kernel_passes_in_every_order() {
    let library = Library::load("row_norm").unwrap();
    for length in [1, 31, 64, 257, 1000] {
        let x = samples(3 * length);
        for threads in [32, 64, 256, 1024] {
            for order in ORDERS {
                let (y, warnings) = row_norm(&library, "row_norm_f32", &x, [length, threads], order);
                // f32 sums of at most 1000 values in [-1, 1], scaled by at most 1/sqrt(eps)
                let error = worst(&y, &reference(&x, length));
                assert!(error < 1e-5, "length {length}, {threads} threads, {order:?}: {error}");
                assert_eq!(warnings, "");
            }
        }
    }
}

#[test]
fn half_precision_is_computed_in_its_own_format() {
    let library = Library::load("row_norm").unwrap();
    // 0.5, -0.5, 1.0, -1.0 in both formats. The exact result is known, and each format rounds it
    // differently.
    let (f16, bf16) = ([0x3800u16, 0xb800, 0x3c00, 0xbc00], [0x3f00u16, 0xbf00, 0x3f80, 0xbf80]);
    for (kernel, x, want) in [
        ("row_norm_f16", f16, [0x390fu16, 0xb90f, 0x3d0f, 0xbd0f]), // ±0.6325, ±1.2649
        ("row_norm_bf16", bf16, [0x3f22u16, 0xbf22, 0x3fa2, 0xbfa2]),
    ] {
        let (input, output) = (library.buffer(&x), library.buffer(&[0u16; 4]));
        let (n, eps) = (library.buffer(&[4u32]), library.buffer(&[EPS]));
        library.dispatch(kernel, [1, 32], &[&input, &output, &n, &eps], Order::Forward).unwrap();
        assert_eq!(output.read::<u16>(), want, "{kernel}");
    }
}

#[test]
fn a_missing_barrier_gives_wrong_numbers_in_some_order() {
    let library = Library::load("row_norm").unwrap();
    let (length, threads) = (257, 256);
    let x = samples(3 * length);
    let wrong = |order: &Order| {
        let (y, _) = row_norm(&library, "row_norm_missing_barrier", &x, [length, threads], *order);
        let error = worst(&y, &reference(&x, length));
        error.is_nan() || error > 1e-3
    };
    assert!(ORDERS.iter().any(wrong), "the defect went undetected in every order");
}

#[test]
fn a_barrier_that_some_threads_skip_is_reported() {
    let library = Library::load("row_norm").unwrap();
    let y = library.buffer(&[0f32; 64]);
    let warnings = library.dispatch("divergent_barrier", [1, 64], &[&y], Order::Forward).unwrap();
    assert_eq!(warnings, "divergent_barrier: threadgroup_barrier not reached by every thread (some had returned)\n");
}

#[test]
fn threads_at_different_barriers_are_reported() {
    let library = Library::load("row_norm").unwrap();
    let y = library.buffer(&[0f32; 64]);
    let warnings = library.dispatch("split_barrier", [1, 64], &[&y], Order::Forward).unwrap();
    assert_eq!(warnings, "split_barrier: threads of one threadgroup wait at different barriers\n");
}

#[test]
fn too_much_threadgroup_memory_is_refused() {
    let library = Library::load("row_norm").unwrap();
    let y = library.buffer(&[0f32; 64]);
    let error = library.dispatch("too_much_threadgroup_memory", [1, 64], &[&y], Order::Forward).unwrap_err();
    assert_eq!(error, "too_much_threadgroup_memory: threadgroup memory over 32 KiB");
}

#[test]
fn an_unknown_kernel_is_refused() {
    let library = Library::load("row_norm").unwrap();
    let error = library.dispatch("absent", [1, 32], &[], Order::Forward).unwrap_err();
    assert_eq!(error, "no kernel named absent");
}

/// The read traps and ends the process. So it runs in a child process: this same test, with an
/// environment variable set.
#[test]
fn a_read_past_the_end_of_a_buffer_traps() {
    const CHILD: &str = "METAL_SIM_TEST_READS_PAST_END";
    if env::var_os(CHILD).is_some() {
        let library = Library::load("row_norm").unwrap();
        let x = samples(256);
        row_norm(&library, "row_norm_reads_past_row", &x, [256, 64], Order::Forward);
        unreachable!("the read past the end went undetected");
    }
    let output = Command::new(env::current_exe().unwrap())
        .args(["a_read_past_the_end_of_a_buffer_traps", "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(139), "{stderr}");
    assert!(stderr.contains("out-of-bounds access") && stderr.contains("thread_position_in_grid (0,0,0)"), "{stderr}");
}

#[test]
fn a_pointer_into_the_wrong_address_space_does_not_compile() {
    compile("right_spaces", Mode::Plain).expect("the correct twin compiles");
    let error = compile("wrong_pointer_space", Mode::Plain).unwrap_err();
    assert!(error.contains("no matching function for call to 'first'") && error.contains("address space"), "{error}");
    let error = compile("wrong_thread_space", Mode::Plain).unwrap_err();
    assert!(error.contains("no matching function for call to 'increment'"), "{error}");
}
