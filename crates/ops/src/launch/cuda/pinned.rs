//! Pinned host memory, which the device copies to and from asynchronously.

use super::describe;
use super::view::View;
use crate::{DType, Error, Result, Tensor};
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use half::{bf16, f16};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a staging buffer. Larger copies than half of it go through the driver directly.
const STAGING_BYTES: usize = 4 << 20;

/// Alignment for every element type.
const ALIGNMENT: usize = 64;

/// An allocation of pinned memory.
#[derive(Debug)]
pub(super) struct Pinned {
    bytes: *mut u8,
    len: usize,
}

// SAFETY: memory of the whole process, with one owner at a time.
#[allow(unsafe_code, reason = "a pointer to memory that the driver gave")]
unsafe impl Send for Pinned {}

impl Pinned {
    pub(super) fn new(context: &Arc<CudaContext>, len: usize) -> Result<Pinned, DriverError> {
        context.bind_to_thread()?;
        // SAFETY: the driver returns `len` bytes, and all are written before anybody reads them.
        #[allow(unsafe_code, reason = "memory that the driver gives")]
        let bytes = unsafe {
            let bytes = result::malloc_host(len, 0)?.cast::<u8>();
            bytes.write_bytes(0, len);
            bytes
        };
        Ok(Pinned { bytes, len })
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `len` bytes, initialized in `new`. The device reads and writes parts of them that
        // the host does not touch before it has synchronized.
        #[allow(unsafe_code, reason = "memory that the driver gave")]
        unsafe {
            std::slice::from_raw_parts_mut(self.bytes, self.len)
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: from `malloc_host`, freed once. The driver waits for copies in flight.
        #[allow(unsafe_code, reason = "memory that the driver gave")]
        let _ = unsafe { result::free_host(self.bytes.cast()) };
    }
}

/// Copies between host and device through pinned memory, which is used as a ring buffer.
#[derive(Debug, Default)]
pub(super) struct StagingBuffer(Mutex<Option<Ring>>);

#[derive(Debug)]
struct Ring {
    stream: Arc<CudaStream>,
    pinned: Pinned,
    /// Copies before this offset may be in flight.
    at: usize,
}

impl StagingBuffer {
    /// Copies to the device in stream order, asynchronously.
    pub(super) fn send(&self, stream: &Arc<CudaStream>, to: u64, bytes: &[u8]) -> Result<()> {
        let fail = |e| Error::call("cuda", format!("an upload of {} bytes: {}", bytes.len(), describe(e)));
        if bytes.len() > STAGING_BYTES / 2 {
            stream.context().bind_to_thread().map_err(fail)?;
            // SAFETY: the caller has allocated the destination; from pageable memory the driver has
            // read the bytes when this returns.
            #[allow(unsafe_code, reason = "a copy to the device")]
            return unsafe { result::memcpy_htod_async(to, bytes, stream.cu_stream()) }.map_err(fail);
        }
        self.with(stream, bytes.len(), |part| {
            part.copy_from_slice(bytes);
            // SAFETY: the caller has allocated the destination, and nobody writes to this part of
            // the ring before the copy has run.
            #[allow(unsafe_code, reason = "a copy to the device")]
            unsafe {
                result::memcpy_htod_async(to, part, stream.cu_stream())
            }
        })
        .map_err(fail)
    }

    /// Copies bytes from the device, after all work of the stream.
    fn fetch<T>(&self, stream: &Arc<CudaStream>, from: u64, bytes: usize, read: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let fail = |e| Error::call("cuda", format!("a download of {bytes} bytes: {}", describe(e)));
        self.with(stream, bytes, |part| {
            // SAFETY: the caller guarantees that the source has these bytes, and nobody else uses
            // this part of the ring.
            #[allow(unsafe_code, reason = "a copy from the device")]
            unsafe { result::memcpy_dtoh_async(part, from, stream.cu_stream()) }?;
            stream.synchronize()?;
            Ok(read(part))
        })
        .map_err(fail)
    }

    /// Calls `f` with a part of the ring that no copy in flight uses.
    fn with<T>(
        &self,
        stream: &Arc<CudaStream>,
        bytes: usize,
        f: impl FnOnce(&mut [u8]) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        stream.context().bind_to_thread()?;
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = match &mut *ring {
            Some(ring) if Arc::ptr_eq(&ring.stream, stream) => ring,
            // For another device. Freeing its pinned memory waits for copies in flight.
            other => other.insert(Ring {
                stream: stream.clone(),
                pinned: Pinned::new(stream.context(), STAGING_BYTES)?,
                at: 0,
            }),
        };
        if ring.at + bytes > STAGING_BYTES {
            stream.synchronize()?;
            ring.at = 0;
        }
        let part = ring.at..ring.at + bytes;
        ring.at = part.end.next_multiple_of(ALIGNMENT);
        f(&mut ring.pinned.bytes()[part])
    }
}

/// A tensor's elements widened to f32; None if Candle should download it.
pub(crate) fn floats(t: &Tensor) -> Result<Option<Vec<f32>>> {
    fetch(t, |bytes| match t.dtype() {
        DType::F32 => Some(bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()),
        DType::F16 => Some(bytes.chunks_exact(2).map(|b| f16::from_ne_bytes([b[0], b[1]]).to_f32()).collect()),
        DType::BF16 => Some(bytes.chunks_exact(2).map(|b| bf16::from_ne_bytes([b[0], b[1]]).to_f32()).collect()),
        DType::U32 | DType::U8 | DType::F64 | DType::I64 => None,
    })
}

/// The same for ids.
pub(crate) fn numbers(t: &Tensor) -> Result<Option<Vec<u32>>> {
    let of = |bytes: &[u8]| bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect();
    fetch(t, |bytes| (t.dtype() == DType::U32).then(|| of(bytes)))
}

fn fetch<T>(t: &Tensor, read: impl FnOnce(&[u8]) -> Option<T>) -> Result<Option<T>> {
    let bytes = t.dims().iter().product::<usize>() * t.dtype().size();
    if !t.candle()?.is_contiguous() || bytes == 0 || bytes > STAGING_BYTES / 2 {
        return Ok(None);
    }
    let view = View::of(t)?;
    crate::ladder::current().ledger.cuda.staging.fetch(&view.device.cuda_stream(), view.address, bytes, read)
}
