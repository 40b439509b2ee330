//! A tensor as a kernel sees it: its buffer, the offset of its first element, shape and strides.

use crate::launch::strided::Strided;
use crate::{Error, Result, Tensor};
use candle_core::backend::BackendStorage;
use candle_core::{MetalDevice, Storage};
use candle_metal_kernels::metal::Buffer;
use std::ops::Deref;

/// A tensor on a Metal device.
#[derive(Clone)]
pub(crate) struct View {
    pub(super) buffer: Buffer,
    pub(super) device: MetalDevice,
    strided: Strided,
}

impl View {
    pub(crate) fn of(t: &Tensor) -> Result<View> {
        let (storage, layout) = t.candle()?.storage_and_layout();
        let Storage::Metal(metal) = &*storage else {
            return Err(Error::call("metal kernel", "the tensor is not on a Metal device"));
        };
        let strided = Strided::of(layout, t.dtype());
        Ok(View { buffer: metal.buffer().clone(), device: metal.device().clone(), strided })
    }

    /// A contiguous tensor; an error if it is not.
    pub(crate) fn whole(t: &Tensor) -> Result<View> {
        let view = View::of(t)?;
        if view.is_whole() { Ok(view) } else { Err(view.unfit("elements without gaps")) }
    }

    /// Offset of the first element, in bytes.
    pub(super) fn offset(&self) -> usize {
        self.start * self.dtype.size()
    }
}

impl Deref for View {
    type Target = Strided;
    fn deref(&self) -> &Strided {
        &self.strided
    }
}
