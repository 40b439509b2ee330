//! Buffers of results. They stay until the plan has no room for them, so that a pass that has run once takes no memory from the
//! driver when it runs again.
//!
//! A result is a view of a buffer that is kept here, and its lease gives the buffer back. What still runs may read it then: all
//! work of a device is on one stream, so that whoever writes it next does so afterwards.

use super::pinned::Lane;
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

/// Lengths are multiples of so many bytes, so that sizes a little apart share buffers.
const GRAIN: usize = 512;

/// Every buffer made under one ledger, in use or free.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    made: Mutex<Vec<Kept>>,
    pub(super) uploads: Uploads,
    pub(super) lane: Lane,
    /// Whether the latest kernel that goes to and fro began at its last rows.
    pub(super) from_end: AtomicBool,
}

#[derive(Debug)]
struct Kept {
    /// One axis, all of the buffer.
    all: Tensor,
    device: CudaDevice,
    address: u64,
    /// Bytes that a result has of it; none where it is free.
    taken: Option<usize>,
}

impl Kept {
    fn bytes(&self) -> usize {
        self.all.elem_count() * self.all.dtype().size_in_bytes()
    }
}

impl Buffers {
    fn take(&self, ledger: &Ledger, device: &CudaDevice, elements: usize, dtype: DType) -> Result<(Tensor, u64)> {
        let mut kept = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |k: &&mut Kept| {
            k.taken.is_none()
                && k.device.id() == device.id()
                && k.all.dtype() == dtype.candle()
                && k.all.elem_count() >= elements
        };
        if let Some(best) = kept.iter_mut().filter(fits).min_by_key(|k| k.all.elem_count()) {
            best.taken = Some(elements * dtype.size());
            return Ok((best.all.clone(), best.address));
        }
        let length = elements.max(1).next_multiple_of(GRAIN / dtype.size());
        let bytes = (length * dtype.size()) as u64;
        // None is large enough. The largest of the free make most room, and the small ones are the likeliest to be of use again.
        let idle = |kept: &[Kept]| kept.iter().map(|k| (k.bytes() - k.taken.unwrap_or(0)) as u64).sum::<u64>();
        while ledger.live().saturating_add(idle(&kept)).saturating_add(bytes) > ledger.spare.most() {
            let free = (0..kept.len()).filter(|i| kept[*i].taken.is_none());
            let Some(largest) = free.max_by_key(|i| kept[*i].bytes()) else { break };
            kept.swap_remove(largest);
        }
        replay::note_allocation()?;
        let storage = allocate(device, length, dtype)?;
        let address = address(&storage)?;
        let all = Tensor::from_storage(Storage::Cuda(storage), length, BackpropOp::none(), false);
        kept.push(Kept { all: all.clone(), device: device.clone(), address, taken: Some(elements * dtype.size()) });
        Ok((all, address))
    }

    /// The buffer at this address is free again; or, where somebody may read it still, no longer ours.
    pub(crate) fn give(&self, address: u64, is_shared: bool) {
        let mut kept = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(i) = kept.iter().position(|k| k.address == address && k.taken.is_some()) else { return };
        if is_shared {
            kept.swap_remove(i);
        } else {
            kept[i].taken = None;
        }
    }

    /// All of them.
    pub(crate) fn bytes(&self) -> u64 {
        let kept = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().map(|k| k.bytes() as u64).sum()
    }
}

fn allocate(device: &CudaDevice, length: usize, dtype: DType) -> Result<CudaStorage> {
    fn of<T: CudaDType + candle_core::cuda_backend::cudarc::driver::DeviceRepr>(
        device: &CudaDevice,
        length: usize,
    ) -> candle_core::Result<CudaStorage> {
        // SAFETY: numbers of any bits; whoever takes the buffer writes what is read of it.
        #[allow(unsafe_code, reason = "memory that nobody has written")]
        let slice = unsafe { device.alloc::<T>(length) }?;
        Ok(T::wrap_cuda_slice(slice, device.clone()))
    }
    match dtype {
        DType::F32 => of::<f32>(device, length),
        DType::F16 => of::<f16>(device, length),
        DType::BF16 => of::<bf16>(device, length),
        DType::U32 => of::<u32>(device, length),
        DType::U8 => of::<u8>(device, length),
    }
    .map_err(|e| super::no_memory(length * dtype.size(), &e))
}

/// Room for elements of no meaning yet, which become a tensor or pass from one call to the next.
#[derive(Debug)]
pub(crate) struct DeviceBuffer {
    all: Tensor,
    pub(super) address: u64,
    elements: usize,
    /// Which keeps some of these itself.
    ledger: Weak<Ledger>,
    /// Whether it has become a tensor, whose lease gives it back.
    is_taken: bool,
}

impl DeviceBuffer {
    pub(super) fn new(device: &CudaDevice, elements: usize, dtype: DType) -> Result<DeviceBuffer> {
        let ledger = &ladder::current().ledger;
        let (all, address) = ledger.cuda.take(ledger, device, elements, dtype)?;
        let ledger = std::sync::Arc::downgrade(ledger);
        Ok(DeviceBuffer { all, address, elements, ledger, is_taken: false })
    }

    /// As a tensor that takes it over.
    pub(crate) fn tensor(mut self, dims: &[usize]) -> Result<Tensor> {
        if dims.iter().product::<usize>() != self.elements {
            return Err(Error::call("cuda", format!("{} elements as {dims:?}", self.elements)));
        }
        let tensor = self.all.narrow(0, 0, self.elements)?.reshape(dims)?;
        self.is_taken = true;
        Ok(tensor)
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if let Some(ledger) = self.ledger.upgrade().filter(|_| !self.is_taken) {
            ledger.cuda.give(self.address, false);
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
