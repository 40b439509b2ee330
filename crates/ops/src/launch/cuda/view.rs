//! A tensor as a kernel sees it: the address of its first element, shape and strides.

use super::buffers::DeviceBuffer;
use crate::launch::strided::Strided;
use crate::{DType, Error, Result, Tensor};
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr, sys};
use candle_core::cuda_backend::{CudaStorage, CudaStorageSlice};
use candle_core::{CudaDevice, Storage};
use std::ops::Deref;

/// A tensor on a CUDA device. The address is valid as long as the tensor lives, and for launches
/// made before that: memory is freed in stream order.
#[derive(Clone)]
pub(crate) struct View {
    pub(super) address: u64,
    pub(super) device: CudaDevice,
    strided: Strided,
}

impl View {
    pub(crate) fn of(t: &Tensor) -> Result<View> {
        let (storage, layout) = t.candle()?.storage_and_layout();
        let Storage::Cuda(cuda) = &*storage else {
            return Err(Error::call("cuda kernel", "the tensor is not on a CUDA device"));
        };
        let strided = Strided::of(layout, t.dtype());
        let address = address(cuda)? + (strided.start * t.dtype().size()) as u64;
        Ok(View { address, device: cuda.device.clone(), strided })
    }

    /// A buffer of the device of `like`, as rows of `cols` elements.
    pub(crate) fn of_rows(buffer: &DeviceBuffer, like: &View, (rows, cols): (usize, usize), dtype: DType) -> View {
        let strided = Strided { dims: vec![rows, cols], strides: vec![cols, 1], start: 0, dtype };
        View { address: buffer.address, device: like.device.clone(), strided }
    }

    /// A contiguous tensor; an error if it is not.
    pub(crate) fn whole(t: &Tensor) -> Result<View> {
        let view = View::of(t)?;
        if view.is_whole() { Ok(view) } else { Err(view.unfit("elements without gaps")) }
    }

    /// The address of a contiguous tensor, without a view: some calls need hundreds.
    pub(crate) fn place(t: &Tensor) -> Result<u64> {
        let (storage, layout) = t.candle()?.storage_and_layout();
        match &*storage {
            Storage::Cuda(cuda) if layout.is_contiguous() => {
                Ok(address(cuda)? + (layout.start_offset() * t.dtype().size()) as u64)
            }
            _ => Err(Error::call("cuda kernel", "the tensor is not on a CUDA device, or has gaps")),
        }
    }

    /// Whether rows begin at multiples of 16 bytes and consist of whole runs of 16 bytes, which a
    /// thread reads at once.
    pub(crate) fn is_16_byte_aligned(&self) -> Result<bool> {
        self.in_runs(16 / self.dtype.size())
    }
}

impl View {
    /// Number of streaming multiprocessors of its device.
    pub(crate) fn processors(&self) -> usize {
        use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as COUNT;
        self.device.cuda_stream().context().attribute(COUNT).map_or(1, |n| n.max(1) as usize)
    }

    /// Whether its device has warpgroup products (wgmma) and the Tensor Memory Accelerator.
    pub(crate) fn is_hopper(&self) -> bool {
        self.device.cuda_stream().context().compute_capability().is_ok_and(|(major, _)| major == 9)
    }
}

impl Deref for View {
    type Target = Strided;
    fn deref(&self) -> &Strided {
        &self.strided
    }
}

/// The address of a buffer.
pub(super) fn address(storage: &CudaStorage) -> Result<u64> {
    fn of<T>(slice: &CudaSlice<T>) -> u64 {
        // Events are not tracked, so dropping the guard records nothing: see `super::open`.
        slice.device_ptr(slice.stream()).0
    }
    Ok(match &storage.slice {
        CudaStorageSlice::U8(s) => of(s),
        CudaStorageSlice::U32(s) => of(s),
        CudaStorageSlice::BF16(s) => of(s),
        CudaStorageSlice::F16(s) => of(s),
        CudaStorageSlice::F32(s) => of(s),
        _ => return Err(Error::call("cuda kernel", "a tensor in a dtype that no kernel reads")),
    })
}
