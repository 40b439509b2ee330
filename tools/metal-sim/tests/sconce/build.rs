//! Links against the simulated Metal classes that `setup` built (as libobjc, the library that objc2
//! links).
fn main() {
    println!("cargo::rerun-if-env-changed=METAL_SIM_SHIM");
    let shim = std::env::var("METAL_SIM_SHIM").expect("source the env.sh that tools/metal-sim/setup wrote");
    println!("cargo::rustc-link-search=native={shim}");
}
