//! Links against the fake Metal classes that `setup` built (as libobjc, for which objc2 asks).
fn main() {
    println!("cargo::rerun-if-env-changed=METAL_SIM_SHIM");
    let shim = std::env::var("METAL_SIM_SHIM").expect("source the env.sh that tools/metal-sim/setup wrote");
    println!("cargo::rustc-link-search=native={shim}");
}
