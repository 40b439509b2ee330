//! The buffer pool of Metal results. Candle frees every idle buffer at each readback, so that a
//! loop over tokens would allocate all of them again at each step. Buffers of this pool stay until
//! the memory plan has no space for them.
//!
//! A buffer is idle when nobody but the pool holds it. Commands that still read it run before those
//! that write to it again: the encoder orders them by buffer.

use crate::ladder::is_dry;
use crate::ledger::Ledger;
use crate::{DType, Error, Result};
use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, MetalDevice, MetalStorage, Storage, Tensor};
use candle_metal_kernels::RESOURCE_OPTIONS;
use candle_metal_kernels::metal::Buffer;
use objc2_metal::{MTLResource, MTLStorageMode};
use std::sync::{Arc, Mutex, PoisonError};

/// Lengths are multiples of this, so that similar sizes share buffers.
const GRANULARITY: usize = 256;

/// Every buffer allocated under one ledger, in use or idle.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    entries: Mutex<Vec<Entry>>,
    /// Buffers over mapped files. They are read-only, so results never use them.
    mapped: Mutex<Vec<Entry>>,
}

#[derive(Debug)]
struct Entry {
    buffer: Arc<Buffer>,
    device: MetalDevice,
}

impl Entry {
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.buffer) == 1
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // Commands in flight may read it, and need it resident until they end.
        let _ = self.device.wait_until_completed();
        self.device.unregister_buffers([&*self.buffer]);
    }
}

impl Buffers {
    fn take(&self, ledger: &Ledger, device: &MetalDevice, bytes: usize) -> Result<Arc<Buffer>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |k: &&Entry| k.is_idle() && k.device.id() == device.id() && k.buffer.length() >= bytes;
        if let Some(best) = entries.iter().filter(fits).min_by_key(|k| k.buffer.length()) {
            return Ok(best.buffer.clone());
        }
        let length = bytes.max(1).next_multiple_of(GRANULARITY);
        // No idle buffer is large enough. Freeing the largest makes most room, and the small ones
        // are the likeliest to be reused.
        let idle =
            |entries: &[Entry]| entries.iter().filter(|k| k.is_idle()).map(|k| k.buffer.length() as u64).sum::<u64>();
        while ledger.live().saturating_add(idle(&entries)).saturating_add(length as u64) > ledger.pool.limit() {
            let free = (0..entries.len()).filter(|i| entries[*i].is_idle());
            let Some(largest) = free.max_by_key(|i| entries[*i].buffer.length()) else { break };
            entries.swap_remove(largest);
        }
        // Shared storage: on unified memory a private copy gains nothing, and the host reads a
        // result in place.
        let buffer = device.metal_device().new_buffer(length, RESOURCE_OPTIONS);
        let buffer = Arc::new(buffer.map_err(|_| {
            Error::call(
                "metal",
                format!("cannot allocate {length} bytes on the GPU; try a smaller batch or a smaller --dtype"),
            )
        })?);
        device.register_buffers([&*buffer]);
        entries.push(Entry { buffer: buffer.clone(), device: device.clone() });
        Ok(buffer)
    }

    /// Keeps the buffer of a mapped file resident for as long as it is in use.
    pub(super) fn hold(&self, buffer: Arc<Buffer>, device: &MetalDevice) {
        device.register_buffers([&*buffer]);
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        mapped.retain(|entry| !entry.is_idle());
        mapped.push(Entry { buffer, device: device.clone() });
    }
}

/// An uninitialized buffer, which becomes a tensor or passes data between calls.
pub(crate) struct DeviceBuffer {
    buffer: Arc<Buffer>,
    device: MetalDevice,
    elements: usize,
    dtype: DType,
}

impl DeviceBuffer {
    pub(super) fn new(ledger: &Ledger, device: &MetalDevice, elements: usize, dtype: DType) -> Result<DeviceBuffer> {
        let bytes = elements.checked_mul(dtype.size());
        let bytes = bytes.ok_or_else(|| Error::call("metal", format!("{elements} elements in {dtype}")))?;
        // A dry run neither writes nor reads it.
        let bytes = if is_dry() { 1 } else { bytes };
        Ok(DeviceBuffer { buffer: ledger.metal.take(ledger, device, bytes)?, device: device.clone(), elements, dtype })
    }

    pub(super) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Turns the buffer into a tensor that owns it.
    pub(crate) fn tensor(self, dims: &[usize]) -> Result<Tensor> {
        if dims.iter().product::<usize>() != self.elements {
            return Err(Error::call("metal", format!("{} elements as {dims:?}", self.elements)));
        }
        let storage = MetalStorage::new(self.buffer, self.device, self.elements, self.dtype.candle());
        Ok(Tensor::from_storage(Storage::Metal(storage), dims, BackpropOp::none(), false))
    }
}

/// Downloads the tensor after all submitted commands have run. If one of them failed, this call
/// returns the error.
pub(crate) fn to_host(t: &Tensor) -> Result<Tensor> {
    let (storage, layout) = t.storage_and_layout();
    let Storage::Metal(metal) = &*storage else { return Ok(t.to_device(&candle_core::Device::Cpu)?) };
    metal.device().wait_until_completed()?;
    let (buffer, dtype) = (metal.buffer(), metal.dtype());
    let is_shared = buffer.as_ref().storageMode() == MTLStorageMode::Shared;
    let Some((start, end)) = layout.contiguous_offsets().filter(|_| is_shared) else {
        return Ok(t.to_device(&candle_core::Device::Cpu)?);
    };
    let storage = match dtype {
        candle_core::DType::F32 => CpuStorage::F32(read(buffer, start, end)),
        candle_core::DType::BF16 => CpuStorage::BF16(read(buffer, start, end)),
        candle_core::DType::F16 => CpuStorage::F16(read(buffer, start, end)),
        candle_core::DType::U32 => CpuStorage::U32(read(buffer, start, end)),
        candle_core::DType::U8 => CpuStorage::U8(read(buffer, start, end)),
        other => return Err(Error::call("metal", format!("elements in {other:?}"))),
    };
    Ok(Tensor::from_storage(Storage::Cpu(storage), t.dims(), BackpropOp::none(), false))
}

fn read<T: Copy>(buffer: &Buffer, start: usize, end: usize) -> Vec<T> {
    let capacity = buffer.length() / size_of::<T>();
    assert!(start <= end && end <= capacity, "elements {start} to {end} of a buffer with {capacity}");
    // SAFETY: the elements lie within the buffer, which is shared memory, and any bits are a valid
    // number; every submitted command has run, and this thread, which holds the tensor, submits no
    // others meanwhile that would write to it.
    #[allow(unsafe_code, reason = "the device's memory")]
    unsafe { std::slice::from_raw_parts(buffer.contents().cast::<T>().add(start), end - start) }.to_vec()
}
