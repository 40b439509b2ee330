//! What tests are asked to run, by variables of the environment. Where none is set, that is everything.

use super::Case;
use crate::{DType, Device, Place, Rung};
use std::str::FromStr;

/// The words of a variable, if it is set. One that means nothing must not end in a test that runs nothing and passes.
fn words<T: FromStr>(variable: &str) -> Option<Vec<T>> {
    let parsed = |word: &str| word.parse().unwrap_or_else(|_| panic!("{variable}: what is `{word}`?"));
    std::env::var(variable).ok().map(|all| all.split_whitespace().map(parsed).collect())
}

/// Where the tests of models run them, and on which rung: on the CPU with our kernels and with Candle's ops, on every GPU of this
/// machine with our kernels alone. `SCONCE_TEST_PLACES=metal` leaves the others out.
pub fn places() -> Vec<(Place, Option<Rung>)> {
    let wanted = std::env::var("SCONCE_TEST_PLACES").unwrap_or_default();
    let gpus = Device::all().into_iter().map(|info| info.device).filter(|device| device.is_gpu());
    let gpus = gpus.map(|device| (device, Some(Rung::Fused)));
    let cpu = [Rung::Fused, Rung::Composed].map(|rung| (Device::Cpu, Some(rung)));
    let all = cpu.into_iter().chain(gpus).filter(|(device, _)| wanted.is_empty() || wanted == device.kind());
    let open = |(device, rung)| (Place::open(device).unwrap_or_else(|e| panic!("{device}: {e}")), rung);
    let places: Vec<_> = all.map(open).collect();
    assert!(!places.is_empty(), "no device of the kind {wanted}, which SCONCE_TEST_PLACES asks for");
    places
}

/// The formats beside f32 in which tests of models run them: `SCONCE_TEST_DTYPES=f32` leaves both out.
pub fn half_formats() -> Vec<DType> {
    let named = words::<DType>("SCONCE_TEST_DTYPES");
    [DType::BF16, DType::F16].into_iter().filter(|dtype| named.as_ref().is_none_or(|all| all.contains(dtype))).collect()
}

/// The cases that tests run on a device, the cheapest first: `SCONCE_TEST_OPS="linear softmax"` those of these ops, `SCONCE_TEST_DTYPES=f16` in
/// these formats, `SCONCE_TEST_FLOPS=3000000` those that take no more operations. Tools that watch every access need it.
pub fn wanted(device: Device) -> Vec<Case> {
    let (ops, dtypes) = (words::<String>("SCONCE_TEST_OPS"), words::<DType>("SCONCE_TEST_DTYPES"));
    let most = words::<u64>("SCONCE_TEST_FLOPS").and_then(|all| all.into_iter().min()).unwrap_or(u64::MAX);
    let mut all = crate::cases_on(device);
    let unknown = ops.iter().flatten().find(|op| all.iter().all(|case| case.op != **op));
    assert!(unknown.is_none(), "SCONCE_TEST_OPS: there is no op `{}`", unknown.map_or("", |op| op));
    all.retain(|case| {
        ops.as_ref().is_none_or(|ops| ops.iter().any(|op| op == case.op))
            && dtypes.as_ref().is_none_or(|dtypes| dtypes.contains(&case.dtype))
            && case.flops <= most
    });
    assert!(
        !all.is_empty(),
        "no case is left of what SCONCE_TEST_OPS, SCONCE_TEST_DTYPES and SCONCE_TEST_FLOPS ask for"
    );
    all.sort_by_key(|case| case.flops);
    all
}

/// Whether tests of cases take this rung: `SCONCE_TEST_RUNGS=fused` leaves Candle's ops out.
pub fn is_rung_wanted(rung: Rung) -> bool {
    words::<Rung>("SCONCE_TEST_RUNGS").is_none_or(|all| all.contains(&rung))
}
