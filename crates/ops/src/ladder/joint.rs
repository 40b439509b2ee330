//! Joint calls. Each stands for several consecutive calls: one kernel of ours computes them all, or
//! the caller makes them separately.

use super::{Can, Op, Rung, current, run};
use crate::cpu::Isa;
use crate::{DType, Device, Error, Result, Tensor};

/// A joint call, checked, with everything it reads.
pub(crate) trait Joint: Sync {
    /// The folder of the op that it is counted as.
    const NAME: &'static str;
    /// See [`Op::x`].
    fn x(&self) -> &Tensor;
    /// See [`Op::out`].
    fn out(&self) -> (Vec<usize>, DType);
    /// See [`Op::detail`].
    fn detail(&self) -> String;
    /// Whether a kernel of ours takes the joint call on this device.
    fn is_taken(&self, device: Device) -> bool;
    /// The CUDA kernel.
    fn cuda(&self) -> Result<candle_core::Tensor> {
        Err(Error::call(Self::NAME, NO_KERNEL))
    }
    /// The Metal kernel.
    fn metal(&self) -> Result<candle_core::Tensor> {
        Err(Error::call(Self::NAME, NO_KERNEL))
    }
}

/// Runs the joint call if a kernel takes it. Where no kernel does, or it is withdrawn, returns
/// None, and the caller makes the separate calls.
pub(crate) fn whole(joint: &impl Joint) -> Option<Result<Tensor>> {
    let op = JointOp(joint);
    (current().can(&op, Rung::Fused) == Can::Yes).then(|| run(op))
}

const NO_KERNEL: &str = "no kernel takes this joint call";

struct JointOp<'a, J>(&'a J);

impl<J: Joint> Op for JointOp<'_, J> {
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
        if self.0.is_taken(device) { Can::Yes } else { Can::no(NO_KERNEL) }
    }

    fn composable(&self, _: Device) -> Can {
        Can::no(NO_KERNEL)
    }

    fn movable(&self) -> Can {
        Can::no(NO_KERNEL)
    }

    fn cpu(&self, _: Isa) -> Result<candle_core::Tensor> {
        Err(Error::call(Self::NAME, NO_KERNEL))
    }

    fn cuda(&self) -> Result<candle_core::Tensor> {
        self.0.cuda()
    }

    fn metal(&self) -> Result<candle_core::Tensor> {
        self.0.metal()
    }

    fn composed(&self) -> Result<candle_core::Tensor> {
        Err(Error::call(Self::NAME, NO_KERNEL))
    }

    fn map(&self, _: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Err(Error::call(Self::NAME, NO_KERNEL))
    }
}
