//! Every case of every op, on every rung and instruction set of this machine, against the f64
//! reference.

use sconce_ops::case::{check, is_rung_wanted, support_md, variants, wanted};
use sconce_ops::{DType, Device, Isa, Ladder, Place, Policy, Rung};

#[test]
fn every_case_holds_on_every_variant_of_the_cpu() {
    let place = Place::cpu();
    let (mut run, mut failures) = (0, Vec::new());
    for case in wanted(Device::Cpu) {
        for variant in variants(Device::Cpu).into_iter().filter(|variant| is_rung_wanted(variant.rung)) {
            let outcome = check(&case, &place, variant).unwrap_or_else(|| panic!("{} refuses {variant}", case.op));
            run += 1;
            if let Some(failure) = outcome.failure {
                failures.push(format!("{} {} {} {variant}: {failure}", case.op, case.name, case.dtype));
            }
        }
    }
    assert!(run > 300 || wanted(Device::Cpu).len() < sconce_ops::cases().len(), "only {run} cases ran");
    assert!(failures.is_empty(), "{} of {run} do not hold:\n{}", failures.len(), failures.join("\n"));
}

/// On every GPU of this machine our kernels take every case, and every rung is right.
#[test]
fn every_case_holds_on_every_gpu() {
    for info in Device::all().into_iter().filter(|info| info.device.is_gpu()) {
        let place = Place::open(info.device).expect("the device opens");
        let mut failures = Vec::new();
        for case in wanted(info.device) {
            for variant in variants(info.device).into_iter().filter(|variant| is_rung_wanted(variant.rung)) {
                let failure = match check(&case, &place, variant) {
                    Some(outcome) => outcome.failure,
                    None => (variant.rung == Rung::Fused).then(|| "no kernel of ours takes it".into()),
                };
                failures.extend(failure.map(|f| format!("{} {} {} {variant}: {f}", case.op, case.name, case.dtype)));
            }
        }
        assert!(failures.is_empty(), "{}: {} do not hold:\n{}", info.device, failures.len(), failures.join("\n"));
    }
}

#[test]
fn a_wrong_answer_fails_its_case() {
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
        assert!(outcome.failure.is_some(), "{} {} {} does not notice", case.op, case.name, case.dtype);
    }
}

/// Six bf16 products of f32 split into three bf16 leave out only what f32 could not keep: with many
/// rows, f32 is as exact in AMX tiles as in SIMD lanes.
#[test]
fn f32_in_tiles_is_as_exact_as_in_lanes() {
    if !Isa::Amx.available() {
        return;
    }
    let place = Place::cpu();
    let mut compared = 0;
    for case in sconce_ops::cases().iter().filter(|case| case.op == "linear" && case.dtype == DType::F32) {
        let errors = [Isa::Avx512, Isa::Amx].map(|isa| {
            let policy = Policy { isa: Some(isa), ..Policy::default() };
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

#[test]
fn phantoms_have_the_shapes_and_choices_of_the_real_call() {
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

#[test]
fn support_md_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/SUPPORT.md");
    let want = support_md();
    if std::env::var_os("SCONCE_BLESS").is_some() {
        std::fs::write(path, &want).expect("SUPPORT.md is writable");
    }
    let have = std::fs::read_to_string(path).unwrap_or_default();
    assert!(have == want, "SUPPORT.md is out of date: run `SCONCE_BLESS=1 cargo test -p sconce-ops support_md`");
}
