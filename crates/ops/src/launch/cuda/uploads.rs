//! Small arrays that kernels read: lists of work, tables of pages, words of a codebook.

use super::buffers::Made;
use crate::{DType, Error, Result};
use candle_core::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::result;

/// The values on the device, in a buffer that is free when the call is sent off.
pub(super) fn uploaded(device: &CudaDevice, values: &[u32]) -> Result<Made> {
    let made = Made::new(device, values.len(), DType::U32)?;
    let stream = device.cuda_stream();
    // SAFETY: the buffer has room for the values; from memory that is not pinned the driver has read them when this returns.
    #[allow(unsafe_code, reason = "a copy to the device")]
    let copied = unsafe { result::memcpy_htod_async(made.address, values, stream.cu_stream()) };
    copied
        .map_err(|e| Error::call("cuda", format!("an upload of {} numbers: {}", values.len(), super::describe(e))))?;
    Ok(made)
}
