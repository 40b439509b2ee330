//! Selects what tests run, by environment variables. Without them tests run everything.

use super::Case;
use crate::{DType, Device, Isa, Place, Rung};
use std::str::FromStr;

/// The values of a variable, separated by spaces, if it is set. An invalid value panics, so that a
/// typing error cannot leave a test that runs nothing and passes.
fn values<T: FromStr>(variable: &str) -> Option<Vec<T>> {
    let parsed = |word: &str| word.parse().unwrap_or_else(|_| panic!("{variable}: invalid value `{word}`"));
    std::env::var(variable).ok().map(|all| all.split_whitespace().map(parsed).collect())
}

/// Every kind of device and every instruction set that a test can ask for, and whether this
/// machine and this build have it.
pub fn devices() -> Vec<(&'static str, bool)> {
    let gpus = Device::all();
    let has = |kind| (kind, gpus.iter().any(|info| info.device.kind() == kind));
    let sets = Isa::NAMES.map(|(isa, name)| (name, isa.available()));
    ["cpu", "cuda", "metal"].map(has).into_iter().chain(sets).collect()
}

/// The places and rungs that model tests run on, for one kind of device: the CPU with our kernels
/// and with Candle's ops, every GPU of this machine with our kernels only.
pub fn places(kind: &str) -> Vec<(Place, Option<Rung>)> {
    let devices = Device::all().into_iter().map(|info| info.device).filter(|device| device.kind() == kind);
    let rungs = |device: Device| if device.is_gpu() { &[Rung::Fused][..] } else { &[Rung::Fused, Rung::Composed] };
    let open = |device: Device| Place::open(device).unwrap_or_else(|e| panic!("{device}: {e}"));
    let places: Vec<_> =
        devices.flat_map(|device| rungs(device).iter().map(move |rung| (open(device), Some(*rung)))).collect();
    assert!(!places.is_empty(), "this machine or this build has no {kind}");
    places
}

/// The formats besides f32 that model tests run in. `SCONCE_TEST_DTYPES=f32` excludes both.
pub fn half_formats() -> Vec<DType> {
    let named = values::<DType>("SCONCE_TEST_DTYPES");
    [DType::BF16, DType::F16].into_iter().filter(|dtype| named.as_ref().is_none_or(|all| all.contains(dtype))).collect()
}

/// The cases that tests run on a device, the cheapest first. `SCONCE_TEST_OPS="linear softmax"`
/// selects ops, `SCONCE_TEST_DTYPES=f16` formats, and `SCONCE_TEST_FLOPS=3000000` cases of at most
/// that many operations, for tools that check every memory access.
pub fn wanted(device: Device) -> Vec<Case> {
    let (ops, dtypes) = (values::<String>("SCONCE_TEST_OPS"), values::<DType>("SCONCE_TEST_DTYPES"));
    let most = values::<u64>("SCONCE_TEST_FLOPS").and_then(|all| all.into_iter().min()).unwrap_or(u64::MAX);
    let mut all = crate::cases_on(device);
    let unknown = ops.iter().flatten().find(|op| all.iter().all(|case| case.op != **op));
    assert!(unknown.is_none(), "SCONCE_TEST_OPS: there is no op `{}`", unknown.map_or("", |op| op));
    all.retain(|case| {
        ops.as_ref().is_none_or(|ops| ops.iter().any(|op| op == case.op))
            && dtypes.as_ref().is_none_or(|dtypes| dtypes.contains(&case.dtype))
            && case.flops <= most
    });
    assert!(!all.is_empty(), "no case matches SCONCE_TEST_OPS, SCONCE_TEST_DTYPES and SCONCE_TEST_FLOPS");
    all.sort_by_key(|case| case.flops);
    all
}

/// Whether case tests run this rung. `SCONCE_TEST_RUNGS=fused` excludes Candle's ops.
pub fn is_rung_wanted(rung: Rung) -> bool {
    values::<Rung>("SCONCE_TEST_RUNGS").is_none_or(|all| all.contains(&rung))
}
