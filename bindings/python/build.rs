//! On macOS, lets the extension module link without Python: its symbols come from the interpreter
//! that loads it. With CUDA, lets the loader find CUDA's libraries.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("macos") {
        println!("cargo:rustc-cdylib-link-arg=-undefined");
        println!("cargo:rustc-cdylib-link-arg=dynamic_lookup");
    }
    if std::env::var_os("CARGO_FEATURE_CUDA").is_some() {
        // NVIDIA's wheels, beside the folder of this module in site-packages; then the toolkit.
        for path in ["$ORIGIN/../nvidia/cu13/lib", "/usr/local/cuda/lib64"] {
            println!("cargo:rustc-cdylib-link-arg=-Wl,-rpath,{path}");
        }
    }
}
