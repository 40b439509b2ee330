//! Memory of the host that the device copies to and from by itself, while the host goes on.

use super::describe;
use super::view::View;
use crate::{DType, Error, Result, Tensor};
use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use half::{bf16, f16};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a lane. What takes more than half of it goes the driver's own way.
const LANE: usize = 4 << 20;

/// What begins here may be of any type.
const GRAIN: usize = 64;

/// A piece of it.
#[derive(Debug)]
pub(super) struct Pinned {
    bytes: *mut u8,
    len: usize,
}

// SAFETY: memory of the whole process, which one owner has at a time.
#[allow(unsafe_code, reason = "a pointer to memory that the driver gave")]
unsafe impl Send for Pinned {}

impl Pinned {
    pub(super) fn new(context: &Arc<CudaContext>, len: usize) -> Result<Pinned, DriverError> {
        context.bind_to_thread()?;
        // SAFETY: the driver gives so many bytes, and all are written before anybody reads them.
        #[allow(unsafe_code, reason = "memory that the driver gives")]
        let bytes = unsafe {
            let bytes = result::malloc_host(len, 0)?.cast::<u8>();
            bytes.write_bytes(0, len);
            bytes
        };
        Ok(Pinned { bytes, len })
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: so many bytes, written at the start. The device reads and writes parts of them that the host does not touch before
        // it has waited.
        #[allow(unsafe_code, reason = "memory that the driver gave")]
        unsafe {
            std::slice::from_raw_parts_mut(self.bytes, self.len)
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: from `malloc_host`, once. The driver waits for copies that are under way.
        #[allow(unsafe_code, reason = "memory that the driver gave")]
        let _ = unsafe { result::free_host(self.bytes.cast()) };
    }
}

/// Copies between host and device through pinned memory, one behind another on a lane, and at its end from the start again.
#[derive(Debug, Default)]
pub(super) struct Lane(Mutex<Option<Used>>);

#[derive(Debug)]
struct Used {
    stream: Arc<CudaStream>,
    pinned: Pinned,
    /// What lies before it may be under way still.
    at: usize,
}

impl Lane {
    /// Copies to the device, in the order of its work; the host goes on at once.
    pub(super) fn send(&self, stream: &Arc<CudaStream>, to: u64, bytes: &[u8]) -> Result<()> {
        let told = |e| Error::call("cuda", format!("an upload of {} bytes: {}", bytes.len(), describe(e)));
        if bytes.len() > LANE / 2 {
            stream.context().bind_to_thread().map_err(told)?;
            // SAFETY: the caller has room for the bytes there; from memory that is not pinned the driver has read them when this returns.
            #[allow(unsafe_code, reason = "a copy to the device")]
            return unsafe { result::memcpy_htod_async(to, bytes, stream.cu_stream()) }.map_err(told);
        }
        self.with(stream, bytes.len(), |own| {
            own.copy_from_slice(bytes);
            // SAFETY: the caller has room for the bytes there, and nobody writes to this part of the lane before the copy is made.
            #[allow(unsafe_code, reason = "a copy to the device")]
            unsafe {
                result::memcpy_htod_async(to, own, stream.cu_stream())
            }
        })
        .map_err(told)
    }

    /// Waits for all work, and copies bytes from the device.
    fn fetch<T>(&self, stream: &Arc<CudaStream>, from: u64, bytes: usize, read: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let told = |e| Error::call("cuda", format!("a download of {bytes} bytes: {}", describe(e)));
        self.with(stream, bytes, |own| {
            // SAFETY: the caller says that so many bytes are there, and nobody else has this part of the lane.
            #[allow(unsafe_code, reason = "a copy from the device")]
            unsafe { result::memcpy_dtoh_async(own, from, stream.cu_stream()) }?;
            stream.synchronize()?;
            Ok(read(own))
        })
        .map_err(told)
    }

    /// So many bytes that nothing is under way from or to.
    fn with<T>(
        &self,
        stream: &Arc<CudaStream>,
        bytes: usize,
        f: impl FnOnce(&mut [u8]) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        stream.context().bind_to_thread()?;
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let used = match &mut *used {
            Some(used) if Arc::ptr_eq(&used.stream, stream) => used,
            // Of another device: what is under way there ends before its lane does.
            other => other.insert(Used { stream: stream.clone(), pinned: Pinned::new(stream.context(), LANE)?, at: 0 }),
        };
        if used.at + bytes > LANE {
            stream.synchronize()?;
            used.at = 0;
        }
        let own = used.at..used.at + bytes;
        used.at = own.end.next_multiple_of(GRAIN);
        f(&mut used.pinned.bytes()[own])
    }
}

/// A tensor's elements widened to f32; none where the driver's own way is better.
pub(crate) fn floats(t: &Tensor) -> Result<Option<Vec<f32>>> {
    fetch(t, |bytes| match t.dtype() {
        DType::F32 => Some(bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()),
        DType::F16 => Some(bytes.chunks_exact(2).map(|b| f16::from_ne_bytes([b[0], b[1]]).to_f32()).collect()),
        DType::BF16 => Some(bytes.chunks_exact(2).map(|b| bf16::from_ne_bytes([b[0], b[1]]).to_f32()).collect()),
        DType::U32 | DType::U8 => None,
    })
}

/// The same of ids.
pub(crate) fn numbers(t: &Tensor) -> Result<Option<Vec<u32>>> {
    let of = |bytes: &[u8]| bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect();
    fetch(t, |bytes| (t.dtype() == DType::U32).then(|| of(bytes)))
}

fn fetch<T>(t: &Tensor, read: impl FnOnce(&[u8]) -> Option<T>) -> Result<Option<T>> {
    let bytes = t.dims().iter().product::<usize>() * t.dtype().size();
    if !t.candle()?.is_contiguous() || bytes == 0 || bytes > LANE / 2 {
        return Ok(None);
    }
    let view = View::of(t)?;
    crate::ladder::current().ledger.cuda.lane.fetch(&view.device.cuda_stream(), view.address, bytes, read)
}
