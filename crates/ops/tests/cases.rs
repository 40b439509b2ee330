//! Every case of every op, on every rung and instruction set of this machine, against the f64
//! reference.

use sconce_ops::case::{Variant, check, devices, is_rung_wanted, support_md, variants, wanted};
use sconce_ops::{DType, Device, Isa, Ladder, Place, Policy, Rung};
use sconce_testkit::Suite;

/// Every case on one device with these variants: our kernels take every case, and every rung is
/// right.
fn every_case_holds(device: Device, variants: &[Variant]) {
    let place = Place::open(device).expect("the device opens");
    let variants: Vec<_> = variants.iter().filter(|variant| is_rung_wanted(variant.rung)).collect();
    let (mut run, mut failures) = (0, Vec::new());
    for case in wanted(device) {
        for variant in &variants {
            let failure = match check(&case, &place, **variant) {
                Some(outcome) => outcome.failure,
                None => (!device.is_gpu() || variant.rung == Rung::Fused).then(|| "no kernel of ours takes it".into()),
            };
            run += 1;
            failures.extend(failure.map(|f| format!("{} {} {} {variant}: {f}", case.op, case.name, case.dtype)));
        }
    }
    assert!(
        run > 100 || wanted(device).len() < sconce_ops::cases().len() || variants.is_empty(),
        "only {run} cases ran"
    );
    assert!(failures.is_empty(), "{device}: {} of {run} do not hold:\n{}", failures.len(), failures.join("\n"));
}

fn every_case_holds_on_all(kind: &str) {
    for info in Device::all().into_iter().filter(|info| info.device.kind() == kind) {
        every_case_holds(info.device, &variants(info.device));
    }
}

fn wrong_result_fails_its_case() {
    let place = Place::cpu();
    for mut case in sconce_ops::cases() {
        let right = case.reference;
        // Changes the smallest element by a twentieth of the rms, which any tolerance must detect.
        case.reference = Box::new(move || {
            let mut wrong = right();
            let rms = (wrong.iter().map(|v| v * v).sum::<f64>() / wrong.len() as f64).sqrt();
            let smallest = wrong.iter_mut().min_by(|a, b| a.abs().total_cmp(&b.abs())).expect("an element");
            *smallest += 0.05 * rms.max(1e-3);
            wrong
        });
        let fused = variants(Device::Cpu)[0];
        let outcome = check(&case, &place, fused).expect("the CPU has every op");
        assert!(outcome.failure.is_some(), "{} {} {} does not detect a wrong element", case.op, case.name, case.dtype);
    }
}

/// Six bf16 products of f32 split into three bf16 leave out only what f32 could not keep: with many
/// rows, f32 is as exact in AMX tiles as in SIMD lanes.
fn f32_in_tiles_is_as_exact_as_in_lanes() {
    let place = Place::cpu();
    let mut compared = 0;
    for case in sconce_ops::cases().iter().filter(|case| case.op == "linear" && case.dtype == DType::F32) {
        let errors = [Isa::Avx512, Isa::Amx].map(|isa| {
            let policy = Policy::default().with_isa(Some(isa));
            let _here = Ladder::new(policy).enter();
            let y = (case.prepare)(&place).and_then(|call| call()).and_then(|y| y.to_f32()).expect("a result");
            let want = (case.reference)();
            y.iter().zip(&want).map(|(y, r)| (f64::from(*y) - r).abs()).sum::<f64>() / want.len() as f64
        });
        let [lanes, tiles] = errors;
        if lanes != tiles {
            assert!(tiles <= 1.1 * lanes, "{}: {tiles:.2e} in tiles, {lanes:.2e} in lanes", case.name);
            compared += 1;
        }
    }
    assert!(compared >= 2, "only {compared} cases went into tiles");
}

fn phantoms_have_the_shapes_and_rungs_of_real_calls() {
    for case in sconce_ops::cases() {
        let ladder = Ladder::new(Policy::default());
        let (phantom, steps) =
            ladder.trace(|| (case.prepare)(&Place::phantom(Device::Cpu)).and_then(|call| call()).expect("phantom"));
        let real = (case.prepare)(&Place::cpu()).and_then(|call| call()).expect("real");
        assert_eq!((phantom.dims(), phantom.dtype()), (real.dims(), real.dtype()), "{} {}", case.op, case.name);
        // A joint call that is one kernel elsewhere may be several ops on the CPU.
        assert!(steps.iter().any(|step| step.op == case.op), "{} {}", case.op, case.name);
        assert!(steps.iter().all(|step| step.rung == Ok(Rung::Fused)), "{} {}", case.op, case.name);
    }
}

fn support_md_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/SUPPORT.md");
    let want = support_md();
    if std::env::var_os("SCONCE_BLESS").is_some() {
        std::fs::write(path, &want).expect("SUPPORT.md is writable");
    }
    let have = std::fs::read_to_string(path).unwrap_or_default();
    assert!(have == want, "SUPPORT.md is out of date: run `SCONCE_BLESS=1 cargo test -p sconce-ops support_md`");
}

fn main() {
    // On the CPU once per instruction set, so that the list of tests shows which were tried.
    let sets =
        ["scalar", "neon", "neondot", "neoni8mm", "avx2", "avx2vnni", "avx512", "avx512vnni", "avx512bf16", "amx"];
    let with = |isa: &'static str| {
        let isa = isa.parse().expect("the name of an instruction set");
        move || every_case_holds(Device::Cpu, &[Variant { rung: Rung::Fused, isa: Some(isa) }])
    };
    let composed = || every_case_holds(Device::Cpu, &[Variant { rung: Rung::Composed, isa: None }]);
    let suite = Suite::new(devices()).test("every_composed_case_holds", composed);
    sets.into_iter()
        .fold(suite, |suite, isa| suite.on(isa, "every_case_holds", with(isa)))
        .on("cuda", "every_case_holds", || every_case_holds_on_all("cuda"))
        .on("metal", "every_case_holds", || every_case_holds_on_all("metal"))
        .on("amx", "f32_in_tiles_is_as_exact_as_in_lanes", f32_in_tiles_is_as_exact_as_in_lanes)
        .test("wrong_result_fails_its_case", wrong_result_fails_its_case)
        .test("phantoms_have_the_shapes_and_rungs_of_real_calls", phantoms_have_the_shapes_and_rungs_of_real_calls)
        .test("support_md_is_current", support_md_is_current)
        .run()
}
