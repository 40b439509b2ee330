//! SIMD instruction sets, detected at run time, so that one binary runs on every processor of its
//! architecture.
#![allow(unsafe_code, reason = "calls into functions compiled for instructions that `available` has just found")]

#[cfg(target_arch = "x86_64")]
use super::amx;
use super::ints::Ints;
use super::lanes::{Lanes, Scalar};
use crate::{Error, Result, ladder::Policy};
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

#[cfg(target_arch = "aarch64")]
use super::{
    ints::neon::{NeonDot, NeonI8mm},
    lanes::neon::Neon,
};
#[cfg(target_arch = "x86_64")]
use super::{
    ints::x86::{Avx2Vnni, Avx512Vnni},
    lanes::x86::{Avx2, Avx512, Avx512Bf16},
};

/// An instruction set that the CPU kernels are compiled for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust, compiled for the compiler's baseline.
    #[default]
    Scalar,
    /// 128-bit, every 64-bit ARM.
    Neon,
    /// NEON with int8 dot products (`sdot`): ARMv8.4, and most of 8.2.
    NeonDot,
    /// NEON with int8 matrix products (`smmla`): ARMv8.6, from Graviton3 and Apple's M2 on.
    NeonI8mm,
    /// 256-bit with fused multiply-add and half conversion.
    Avx2,
    /// AVX2 with int8 dot products (AVX-VNNI): processors since 2021 that have no AVX-512.
    Avx2Vnni,
    /// 512-bit: the F, BW, DQ and VL subsets.
    Avx512,
    /// AVX-512 with int8 dot products (VNNI).
    Avx512Vnni,
    /// AVX-512 VNNI with bf16 dot products.
    Avx512Bf16,
    /// AVX-512 BF16 with AMX tiles: matrix products of bf16 and int8.
    Amx,
}

/// A kernel that is written once over [`Lanes`] and compiled for each instruction set.
pub(crate) trait Kernel {
    /// Result of the kernel.
    type Output;
    /// Whether the kernel stores or multiplies bf16. If not, processors with AVX-512 BF16 run the
    /// version for AVX-512: another version would be the same code.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only x86-64 has AVX-512"))]
    const BF16: bool;
    /// Must be `#[inline(always)]`, as must everything it calls: only then is it compiled for the
    /// caller's instruction set.
    fn run<S: Lanes>(self) -> Self::Output;
}

/// A kernel over [`Ints`], which distinguishes instruction sets with int8 dot products from those
/// without.
pub(crate) trait IntKernel {
    /// Result of the kernel.
    type Output;
    /// Must be `#[inline(always)]`, as must everything it calls.
    fn run<S: Ints>(self) -> Self::Output;
}

impl Isa {
    /// In the order of the variants.
    pub(crate) const NAMES: [(Isa, &'static str); 10] = [
        (Isa::Scalar, "scalar"),
        (Isa::Neon, "neon"),
        (Isa::NeonDot, "neondot"),
        (Isa::NeonI8mm, "neoni8mm"),
        (Isa::Avx2, "avx2"),
        (Isa::Avx2Vnni, "avx2vnni"),
        (Isa::Avx512, "avx512"),
        (Isa::Avx512Vnni, "avx512vnni"),
        (Isa::Avx512Bf16, "avx512bf16"),
        (Isa::Amx, "amx"),
    ];

    /// Whether this processor has the instruction set.
    pub fn available(self) -> bool {
        match self {
            Isa::Scalar => true,
            _ if cfg!(feature = "scalar-only") => false,
            Isa::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot => std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => Isa::NeonDot.available() && std::arch::is_aarch64_feature_detected!("i8mm"),
            #[cfg(not(target_arch = "aarch64"))]
            Isa::NeonDot | Isa::NeonI8mm => false,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2Vnni => Isa::Avx2.available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => Isa::Avx512.available() && is_x86_feature_detected!("avx512vnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => Isa::Avx512Vnni.available() && is_x86_feature_detected!("avx512bf16"),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Isa::Avx512Bf16.available() && amx::available(),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx2Vnni | Isa::Avx512 | Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx => false,
        }
    }

    /// Every instruction set of this processor, narrowest first.
    pub fn all() -> impl Iterator<Item = Isa> {
        Isa::NAMES.into_iter().map(|(isa, _)| isa).filter(|isa| isa.available())
    }

    /// The fastest instruction set of this processor.
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Isa::all().filter(|isa| isa.pays()).last().unwrap_or(Isa::Scalar))
    }

    /// Whether this instruction set is faster than the one before it. Intel issues bf16 dot
    /// products half as often as multiply-adds, so widening first is faster there; AMD does not.
    fn pays(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        if self == Isa::Avx512Bf16 {
            return std::arch::x86_64::__cpuid(0).ebx != u32::from_le_bytes(*b"Genu");
        }
        true
    }

    /// Whether products of bf16 are faster than those of f32.
    pub fn prefers_bf16(self) -> bool {
        matches!(self, Isa::Avx512Bf16 | Isa::Amx) && self.pays()
    }

    /// Whether bf16 halves the time of an encoder, or better; see docs/numbers.md.
    pub fn is_twice_as_fast_in_bf16(self) -> bool {
        self == Isa::Amx
    }

    /// The instruction set that the policy asks for, else the fastest.
    pub fn of(policy: &Policy) -> Result<Isa> {
        match policy.isa {
            None => Ok(Isa::best()),
            Some(isa) if isa.available() => Ok(isa),
            Some(isa) => Err(Error::Parse(format!("this processor has no {isa}"))),
        }
    }

    /// Runs `kernel` compiled for this instruction set.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        debug_assert!(self.available());
        #[cfg(feature = "scalar-only")]
        return kernel.run::<Scalar>();
        #[cfg(not(feature = "scalar-only"))]
        match self {
            // SAFETY: an `Isa` reaches kernels only through `of`, `best` or `all`, which check the
            // processor first.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 | Isa::Amx if K::BF16 => unsafe { avx512_bf16(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx => unsafe { avx512(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx2Vnni => unsafe { avx2(kernel) },
            #[cfg(target_arch = "aarch64")]
            Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => kernel.run::<Neon>(),
            _ => kernel.run::<Scalar>(),
        }
    }

    /// Runs `kernel`, which works on int8, compiled for this instruction set.
    pub(crate) fn run_ints<K: IntKernel>(self, kernel: K) -> K::Output {
        debug_assert!(self.available());
        #[cfg(feature = "scalar-only")]
        return kernel.run::<Scalar>();
        #[cfg(not(feature = "scalar-only"))]
        match self {
            // SAFETY: as in `run`.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx => unsafe { avx512_vnni_ints(kernel) },
            // SAFETY: as in `run`.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { avx512_ints(kernel) },
            // SAFETY: as in `run`.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2Vnni => unsafe { avx2_vnni_ints(kernel) },
            // SAFETY: as in `run`.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { avx2_ints(kernel) },
            // SAFETY: as in `run`.
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => unsafe { neon_i8mm_ints(kernel) },
            // SAFETY: as in `run`.
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot => unsafe { neon_dot_ints(kernel) },
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => kernel.run::<Neon>(),
            _ => kernel.run::<Scalar>(),
        }
    }
}

/// Defines a function that runs a kernel of `$kind` over `$lanes` with the target features enabled.
macro_rules! compiled {
    ($arch:literal, $features:literal, $name:ident, $kind:ident, $lanes:ty) => {
        #[cfg(target_arch = $arch)]
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name<K: $kind>(kernel: K) -> K::Output {
            kernel.run::<$lanes>()
        }
    };
}
compiled!("x86_64", "avx2,fma,f16c", avx2, Kernel, Avx2);
compiled!("x86_64", "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl", avx512, Kernel, Avx512);
compiled!("x86_64", "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16", avx512_bf16, Kernel, Avx512Bf16);
compiled!("x86_64", "avx2,fma,f16c", avx2_ints, IntKernel, Avx2);
compiled!("x86_64", "avx2,fma,f16c,avxvnni", avx2_vnni_ints, IntKernel, Avx2Vnni);
compiled!("x86_64", "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl", avx512_ints, IntKernel, Avx512);
compiled!(
    "x86_64",
    "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni",
    avx512_vnni_ints,
    IntKernel,
    Avx512Vnni
);
compiled!("aarch64", "neon,dotprod", neon_dot_ints, IntKernel, NeonDot);
compiled!("aarch64", "neon,dotprod,i8mm", neon_i8mm_ints, IntKernel, NeonI8mm);

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Isa::NAMES[*self as usize].1)
    }
}

impl FromStr for Isa {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        Isa::NAMES.into_iter().find(|(_, name)| *name == s).map(|(isa, _)| isa).ok_or_else(|| {
            let names = Isa::NAMES.map(|(_, name)| name).join(", ");
            Error::Parse(format!("unknown instruction set `{s}`; one of {names}"))
        })
    }
}
