//! The trait of every op: what each rung declares and runs.

use super::Rung;
use crate::cpu::Isa;
use crate::{DType, Device, Error, Result, Tensor};

/// Whether a rung takes a call, declared before it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Can {
    /// The rung takes it.
    Yes,
    /// The rung refuses, with the reason.
    No(String),
}

impl Can {
    /// A refusal with its reason.
    pub(crate) fn no(why: impl Into<String>) -> Can {
        Can::No(why.into())
    }
}

/// One call of an op, checked, with everything it reads.
pub(crate) trait Op: Sized + Sync {
    /// The op's folder.
    const NAME: &'static str;
    /// The activations: they decide the call's dtype and device.
    fn x(&self) -> &Tensor;
    /// Shape and dtype of the result: by default those of `x`.
    fn out(&self) -> (Vec<usize>, DType) {
        (self.x().dims().to_vec(), self.x().dtype())
    }
    /// Shapes and options, shown in the plan.
    fn detail(&self) -> String;
    /// Whether our kernel for this device takes this call. This is a declaration, the same in
    /// builds without the device, which cannot open it anyway. Every op has a CPU kernel, except
    /// for joint calls: see [`Joint`](super::Joint).
    fn fused(&self, _: Device) -> Can {
        Can::Yes
    }
    /// Whether Candle has what the composed form needs on this device.
    fn composable(&self, _: Device) -> Can {
        Can::Yes
    }
    /// Whether the host can run the call on copies of its tensors. An op that writes to a tensor in
    /// place refuses.
    fn movable(&self) -> Can {
        Can::Yes
    }
    /// Most bytes that the rung takes besides the result while it runs.
    fn scratch(&self, _: Rung) -> usize {
        0
    }
    /// Our CPU kernel. Its result has its own buffer and is never a view: the buffer pool reuses it
    /// when the result is dropped.
    fn cpu(&self, isa: Isa) -> Result<candle_core::Tensor>;
    /// Our CUDA kernel.
    fn cuda(&self) -> Result<candle_core::Tensor> {
        Err(Error::call(Self::NAME, "no CUDA kernel in this build"))
    }
    /// Our Metal kernel.
    fn metal(&self) -> Result<candle_core::Tensor> {
        Err(Error::call(Self::NAME, "no Metal kernel in this build"))
    }
    /// The formula in Candle's tensor ops.
    fn composed(&self) -> Result<candle_core::Tensor>;
    /// The same call with every tensor mapped by `to`. The host rung uses it to copy tensors.
    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self>;
}

/// The methods of an [`Op`] that call `run` in the files of the same names in its folder.
macro_rules! own_kernels {
    (cpu $(, $more:ident)*) => {
        fn cpu(&self, isa: $crate::cpu::Isa) -> $crate::Result<candle_core::Tensor> {
            cpu::run(self, isa)
        }
        own_kernels!($($more),*);
    };
    (cuda $(, $more:ident)*) => {
        #[cfg(cuda)]
        fn cuda(&self) -> $crate::Result<candle_core::Tensor> {
            cuda::run(self)
        }
        own_kernels!($($more),*);
    };
    (metal $(, $more:ident)*) => {
        #[cfg(metal)]
        fn metal(&self) -> $crate::Result<candle_core::Tensor> {
            metal::run(self)
        }
        own_kernels!($($more),*);
    };
    (composed) => {
        fn composed(&self) -> $crate::Result<candle_core::Tensor> {
            composed::run(self)
        }
    };
}
pub(crate) use own_kernels;
