//! Calls that stand for several others: one kernel of ours takes all of it, or the others are made.

use super::{Can, Op, Rung, current, run};
use crate::cpu::Isa;
use crate::{DType, Device, Error, Result, Tensor};

/// Such a call, checked, with everything it reads.
pub(crate) trait Joint: Sync {
    /// The folder of the op that it counts as.
    const NAME: &'static str;
    /// As those of [`Op`].
    fn x(&self) -> &Tensor;
    /// As those of [`Op`].
    fn out(&self) -> (Vec<usize>, DType);
    /// As those of [`Op`].
    fn detail(&self) -> String;
    /// Whether a kernel of ours takes all of it on this device.
    fn is_taken(&self, device: Device) -> bool;
    /// That kernel, on CUDA.
    fn cuda(&self) -> Result<candle_core::Tensor> {
        Err(Error::call(Self::NAME, PARTS))
    }
    /// That kernel, on Metal.
    fn metal(&self) -> Result<candle_core::Tensor> {
        Err(Error::call(Self::NAME, PARTS))
    }
}

/// Runs it where a kernel takes all of it. Where none does, or that is withdrawn, the calls that it stands for are the caller's to make.
pub(crate) fn whole(joint: &impl Joint) -> Option<Result<Tensor>> {
    let op = Whole(joint);
    (current().can(&op, Rung::Fused) == Can::Yes).then(|| run(op))
}

const PARTS: &str = "made of other calls";

struct Whole<'a, J>(&'a J);

impl<J: Joint> Op for Whole<'_, J> {
    const NAME: &'static str = J::NAME;

    fn x(&self) -> &Tensor {
        self.0.x()
    }

    fn out(&self) -> (Vec<usize>, DType) {
        self.0.out()
    }

    fn detail(&self) -> String {
        self.0.detail()
    }

    fn fused(&self, device: Device) -> Can {
        if self.0.is_taken(device) { Can::Yes } else { Can::no(PARTS) }
    }

    fn composable(&self, _: Device) -> Can {
        Can::no(PARTS)
    }

    fn movable(&self) -> Can {
        Can::no(PARTS)
    }

    fn cpu(&self, _: Isa) -> Result<candle_core::Tensor> {
        Err(Error::call(Self::NAME, PARTS))
    }

    fn cuda(&self) -> Result<candle_core::Tensor> {
        self.0.cuda()
    }

    fn metal(&self) -> Result<candle_core::Tensor> {
        self.0.metal()
    }

    fn composed(&self) -> Result<candle_core::Tensor> {
        Err(Error::call(Self::NAME, PARTS))
    }

    fn map(&self, _: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Err(Error::call(Self::NAME, PARTS))
    }
}
