//! The buffer pool of CUDA results. Idle buffers stay until the memory plan has no space for them,
//! so that a pass that has run once allocates nothing when it runs again.
//!
//! A result is a view of a pooled buffer, and its lease returns the buffer. Kernels may still read
//! it at that time: all work of a device is on one stream, so that the next writer runs after them.

use super::pinned::StagingBuffer;
use super::uploads::Uploads;
use super::view::address;
use crate::ledger::Ledger;
use crate::{DType, Error, Result, ladder, replay};
use candle_core::cuda_backend::{CudaDType, CudaStorage};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, Storage, Tensor};
use half::{bf16, f16};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError, Weak};

/// Lengths are multiples of this many bytes, so that similar sizes share buffers.
const GRANULARITY: usize = 512;

/// Every buffer allocated under one ledger, in use or idle.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    entries: Mutex<Vec<Entry>>,
    pub(super) uploads: Uploads,
    pub(super) staging: StagingBuffer,
    /// Whether the latest launch with `alternate_row_order` began at its last rows.
    pub(super) from_end: AtomicBool,
}

#[derive(Debug)]
struct Entry {
    /// The whole buffer, with one axis.
    all: Tensor,
    device: CudaDevice,
    address: u64,
    /// Bytes that a result uses of it; None if it is idle.
    taken: Option<usize>,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.all.elem_count() * self.all.dtype().size_in_bytes()
    }
}

impl Buffers {
    fn take(&self, ledger: &Ledger, device: &CudaDevice, elements: usize, dtype: DType) -> Result<(Tensor, u64)> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |k: &&mut Entry| {
            k.taken.is_none()
                && k.device.id() == device.id()
                && k.all.dtype() == dtype.candle()
                && k.all.elem_count() >= elements
        };
        if let Some(best) = entries.iter_mut().filter(fits).min_by_key(|k| k.all.elem_count()) {
            best.taken = Some(elements * dtype.size());
            return Ok((best.all.clone(), best.address));
        }
        let length = elements.max(1).next_multiple_of(GRANULARITY / dtype.size());
        let bytes = (length * dtype.size()) as u64;
        // No idle buffer is large enough. Freeing the largest makes most room, and the small ones
        // are the likeliest to be reused.
        let idle = |entries: &[Entry]| entries.iter().map(|k| (k.bytes() - k.taken.unwrap_or(0)) as u64).sum::<u64>();
        while ledger.live().saturating_add(idle(&entries)).saturating_add(bytes) > ledger.pool.limit() {
            let free = (0..entries.len()).filter(|i| entries[*i].taken.is_none());
            let Some(largest) = free.max_by_key(|i| entries[*i].bytes()) else { break };
            entries.swap_remove(largest);
        }
        replay::note_allocation()?;
        let storage = allocate(device, length, dtype)?;
        let address = address(&storage)?;
        let all = Tensor::from_storage(Storage::Cuda(storage), length, BackpropOp::none(), false);
        entries.push(Entry { all: all.clone(), device: device.clone(), address, taken: Some(elements * dtype.size()) });
        Ok((all, address))
    }

    /// Makes the buffer at this address idle; or, if another tensor may still read it, removes it
    /// from the pool.
    pub(crate) fn put_back(&self, address: u64, is_shared: bool) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(i) = entries.iter().position(|k| k.address == address && k.taken.is_some()) else { return };
        if is_shared {
            entries.swap_remove(i);
        } else {
            entries[i].taken = None;
        }
    }

    /// Bytes of all buffers.
    pub(crate) fn bytes(&self) -> u64 {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.iter().map(|k| k.bytes() as u64).sum()
    }
}

fn allocate(device: &CudaDevice, length: usize, dtype: DType) -> Result<CudaStorage> {
    fn of<T: CudaDType + candle_core::cuda_backend::cudarc::driver::DeviceRepr>(
        device: &CudaDevice,
        length: usize,
    ) -> candle_core::Result<CudaStorage> {
        // SAFETY: any bits are a valid number, and the caller writes every element before it is
        // read.
        #[allow(unsafe_code, reason = "uninitialized memory")]
        let slice = unsafe { device.alloc::<T>(length) }?;
        Ok(T::wrap_cuda_slice(slice, device.clone()))
    }
    match dtype {
        DType::F32 => of::<f32>(device, length),
        DType::F16 => of::<f16>(device, length),
        DType::BF16 => of::<bf16>(device, length),
        DType::U32 => of::<u32>(device, length),
        DType::U8 => of::<u8>(device, length),
        DType::F64 => of::<f64>(device, length),
        DType::I64 => of::<i64>(device, length),
    }
    .map_err(|e| super::no_memory(length * dtype.size(), &e))
}

/// An uninitialized buffer, which becomes a tensor or passes data between calls.
#[derive(Debug)]
pub(crate) struct DeviceBuffer {
    all: Tensor,
    pub(super) address: u64,
    elements: usize,
    /// A weak reference, because the ledger itself keeps some of these.
    ledger: Weak<Ledger>,
    /// Whether it has become a tensor, whose lease returns it to the pool.
    is_taken: bool,
}

impl DeviceBuffer {
    pub(super) fn new(device: &CudaDevice, elements: usize, dtype: DType) -> Result<DeviceBuffer> {
        let ledger = &ladder::current().ledger;
        let (all, address) = ledger.cuda.take(ledger, device, elements, dtype)?;
        let ledger = std::sync::Arc::downgrade(ledger);
        Ok(DeviceBuffer { all, address, elements, ledger, is_taken: false })
    }

    /// Turns the buffer into a tensor that owns it.
    pub(crate) fn tensor(mut self, dims: &[usize]) -> Result<Tensor> {
        if dims.iter().product::<usize>() != self.elements {
            return Err(Error::call("cuda", format!("{} elements as {dims:?}", self.elements)));
        }
        let tensor = self.all.narrow(0, 0, self.elements)?.reshape(dims)?;
        self.is_taken = true;
        Ok(tensor)
    }

    /// The same for a tensor that outlives passes, as weights do: its buffer leaves the pool.
    pub(crate) fn tensor_outside_pool(self, dims: &[usize]) -> Result<Tensor> {
        let (address, ledger) = (self.address, self.ledger.clone());
        let tensor = self.tensor(dims)?;
        if let Some(ledger) = ledger.upgrade() {
            ledger.cuda.put_back(address, true);
        }
        Ok(tensor)
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if let Some(ledger) = self.ledger.upgrade().filter(|_| !self.is_taken) {
            ledger.cuda.put_back(self.address, false);
        }
    }
}

/// The address of a tensor's buffer, if it is on a CUDA device.
pub(crate) fn address_of(t: &Tensor) -> Option<u64> {
    match &*t.storage_and_layout().0 {
        Storage::Cuda(cuda) => address(cuda).ok(),
        _ => None,
    }
}
