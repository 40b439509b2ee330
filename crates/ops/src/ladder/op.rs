//! What every op declares and does: one call of it, checked, with everything it reads.

use super::Rung;
use crate::cpu::Isa;
use crate::{DType, Device, Error, Result, Tensor};

/// A rung's word on one call, given before it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Can {
    /// It will take it.
    Yes,
    /// It will not, and why.
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
    /// Shape and dtype of the result: those of `x`, unless the op says otherwise.
    fn out(&self) -> (Vec<usize>, DType) {
        (self.x().dims().to_vec(), self.x().dtype())
    }
    /// Shapes and options, for the plan's reader.
    fn detail(&self) -> String;
    /// Whether our kernel for this device takes this call. A declaration: it is the same in a build without the device, which
    /// cannot open it anyway. Every op has a kernel for the CPU, but for a call that stands for others: see [`Joint`](super::Joint).
    fn fused(&self, _: Device) -> Can {
        Can::Yes
    }
    /// Whether Candle has what the composed form needs on this device.
    fn composable(&self, _: Device) -> Can {
        Can::Yes
    }
    /// Whether the host can take it with copies of its tensors: not what writes to one.
    fn movable(&self) -> Can {
        Can::Yes
    }
    /// Bytes that the rung takes besides the result, at most, while it runs.
    fn scratch(&self, _: Rung) -> usize {
        0
    }
    /// Our CPU kernel. Its result is a buffer of its own, never a view: it is used again when the result is gone.
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
    /// The same call with every tensor taken through `to`: how the host rung moves it.
    fn map(&self, to: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self>;
}

/// The methods of an [`Op`] that the files of their names in its folder are: each calls the `run` there.
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
