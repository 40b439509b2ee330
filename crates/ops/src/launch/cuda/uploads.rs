//! Small arrays that kernels read: sequence offsets, page tables, ALiBi slopes.
//!
//! Every layer of a pass uses the same arrays, and so do many passes. Uploads are cached for a
//! while and found by their contents, so that most calls upload nothing.

use super::buffers::DeviceBuffer;
use crate::{DType, Result, ladder};
use candle_core::CudaDevice;
use std::sync::{Arc, Mutex, PoisonError};

/// Most arrays in the cache.
const MAX_CACHED: usize = 64;

/// The cache, in order of use; the last is the most recently used.
#[derive(Debug, Default)]
pub(super) struct Uploads(Mutex<Vec<CachedUpload>>);

#[derive(Debug)]
struct CachedUpload {
    device: CudaDevice,
    values: Vec<u32>,
    buffer: Arc<DeviceBuffer>,
}

impl Uploads {
    /// The array on the device, from the cache or uploaded.
    pub(super) fn of(&self, device: &CudaDevice, values: &[u32]) -> Result<Arc<DeviceBuffer>> {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = cached.iter().rposition(|k| k.device.id() == device.id() && k.values == values);
        if let Some(i) = found {
            let buffer = cached[i].buffer.clone();
            cached[i..].rotate_left(1);
            return Ok(buffer);
        }
        let buffer = DeviceBuffer::new(device, values.len(), DType::U32)?;
        send(device, &buffer, values)?;
        if cached.len() >= MAX_CACHED {
            cached.remove(0);
        }
        let buffer = Arc::new(buffer);
        cached.push(CachedUpload { device: device.clone(), values: values.to_vec(), buffer: buffer.clone() });
        Ok(buffer)
    }
}

/// Uploads ids, positions or rows as a tensor.
pub(crate) fn tensor(device: &candle_core::Device, values: &[u32]) -> Result<candle_core::Tensor> {
    let device = device.as_cuda_device()?;
    let buffer = DeviceBuffer::new(device, values.len(), DType::U32)?;
    send(device, &buffer, values)?;
    buffer.tensor(&[values.len()])
}

fn send(device: &CudaDevice, to: &DeviceBuffer, values: &[u32]) -> Result<()> {
    // SAFETY: a number is four bytes of any value.
    #[allow(unsafe_code, reason = "numbers viewed as their bytes")]
    let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), 4 * values.len()) };
    ladder::current().ledger.cuda.staging.send(&device.cuda_stream(), to.address, bytes)
}
