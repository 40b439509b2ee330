//! Links libcuda and prints the results of `cuInit` and `cuDeviceGetCount`, and the number of GPUs.

#[path = "../../crates/ops/src/launch/cuda/driver.rs"]
mod driver;

unsafe extern "C" {
    safe fn cuInit(flags: u32) -> i32;
    safe fn cuDeviceGetCount(count: &mut i32) -> i32;
}

fn main() {
    let mut count = 0;
    println!("{} {} {count}", cuInit(0), cuDeviceGetCount(&mut count));
}
