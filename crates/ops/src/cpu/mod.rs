//! Building blocks of CPU kernels: SIMD chosen at run time, vectorized math functions, packed
//! matrix multiplication (GEMM), the thread team.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_amx.rs"]
pub(crate) mod amx;
pub(crate) mod bytes;
pub(crate) mod elem;
pub(crate) mod gemm;
pub(crate) mod ints;
mod isa;
mod jobs;
mod lanes;
pub(crate) mod math;
pub(crate) mod rows;
pub(crate) mod team;

pub use isa::Isa;
pub(crate) use isa::{IntKernel, Kernel};
pub(crate) use lanes::Lanes;
