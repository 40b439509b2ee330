//! Every case of every op on the simulated Metal device, on every rung.

use metal_sim_sconce::warnings;
use sconce_ops::case::{Variant, check, variants};
use sconce_ops::{Device, Place, Rung, cases};

const METAL: Device = Device::Metal(0);

fn metal() -> Place {
    Place::open(METAL).expect("the simulated Metal device")
}

/// `METAL_SIM_OPS="linear softmax"` runs the cases of these ops only, and `METAL_SIM_RUNGS=fused` these rungs.
fn is_wanted(variable: &str, name: &str) -> bool {
    std::env::var(variable).map_or(true, |wanted| wanted.split(' ').any(|w| w == name))
}

#[test]
fn every_case_holds_on_every_rung() {
    let place = metal();
    let (mut fused, mut run, mut failures) = (0, 0, Vec::new());
    let host = Variant { rung: Rung::Host, isa: None };
    for case in cases().into_iter().filter(|case| is_wanted("METAL_SIM_OPS", case.op)) {
        for variant in variants(METAL).into_iter().chain([host]) {
            if !is_wanted("METAL_SIM_RUNGS", &variant.rung.to_string()) {
                continue;
            }
            let Some(outcome) = check(&case, &place, variant) else { continue };
            run += 1;
            fused += u32::from(variant.rung == Rung::Fused);
            if let Some(failure) = outcome.failure {
                failures.push(format!("{} {} {} {variant}: {failure}", case.op, case.name, case.dtype));
            }
        }
    }
    println!("{fused} fused, {run} in all");
    assert!(failures.is_empty(), "{} of {run} do not hold:\n{}", failures.len(), failures.join("\n"));
    assert!(fused > 0 && run > 0, "{fused} fused, {run} in all");
    // Of our kernels nothing may even be suspected; Candle's are its own affair.
    let ours: Vec<String> = warnings().lines().filter(|l| is_ours(l)).map(String::from).collect();
    assert!(ours.is_empty(), "{}", ours.join("\n"));
}

/// Whether a warning is of a kernel of an op's folder, or of that of the block formats, which its name begins with.
fn is_ours(warning: &str) -> bool {
    warning.starts_with("quant_") || cases().iter().any(|case| warning.starts_with(&format!("{}_", case.op)))
}
