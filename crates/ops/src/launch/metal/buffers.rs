//! Buffers of results. Candle gives every idle buffer back to the system at each readback, so that a loop over tokens would take
//! all of them anew each step; these stay until the plan has no room for them.
//!
//! A buffer is free when nobody but the pool holds it. Commands that still read it run before those that write it again: the
//! encoder orders them by buffer.

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

/// Lengths are multiples of this, so that sizes a little apart share buffers.
const GRAIN: usize = 256;

/// Every buffer made under one ledger, in use or free.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    made: Mutex<Vec<Kept>>,
    /// Files, which are only read, and so are never free for results.
    lent: Mutex<Vec<Kept>>,
}

#[derive(Debug)]
struct Kept {
    buffer: Arc<Buffer>,
    device: MetalDevice,
}

impl Kept {
    fn is_free(&self) -> bool {
        Arc::strong_count(&self.buffer) == 1
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // What still runs may read it, and needs it resident until then.
        let _ = self.device.wait_until_completed();
        self.device.unregister_buffers([&*self.buffer]);
    }
}

impl Buffers {
    fn take(&self, ledger: &Ledger, device: &MetalDevice, bytes: usize) -> Result<Arc<Buffer>> {
        let mut kept = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |k: &&Kept| k.is_free() && k.device.id() == device.id() && k.buffer.length() >= bytes;
        if let Some(best) = kept.iter().filter(fits).min_by_key(|k| k.buffer.length()) {
            return Ok(best.buffer.clone());
        }
        let length = bytes.max(1).next_multiple_of(GRAIN);
        // None is large enough. The largest of the free make most room, and the small ones are the likeliest to be of use again.
        let idle = |kept: &[Kept]| kept.iter().filter(|k| k.is_free()).map(|k| k.buffer.length() as u64).sum::<u64>();
        while ledger.live().saturating_add(idle(&kept)).saturating_add(length as u64) > ledger.spare.most() {
            let free = (0..kept.len()).filter(|i| kept[*i].is_free());
            let Some(largest) = free.max_by_key(|i| kept[*i].buffer.length()) else { break };
            kept.swap_remove(largest);
        }
        // Shared: on the memory that both see, nothing is gained by a copy of its own, and a result is read where it lies.
        let buffer = device.metal_device().new_buffer(length, RESOURCE_OPTIONS);
        let buffer = Arc::new(buffer.map_err(|_| {
            Error::call("metal", format!("no memory for {length} bytes; try a smaller batch or a smaller --dtype"))
        })?);
        device.register_buffers([&*buffer]);
        kept.push(Kept { buffer: buffer.clone(), device: device.clone() });
        Ok(buffer)
    }

    /// Keeps a file's buffer resident for as long as it is in use.
    pub(super) fn hold(&self, buffer: Arc<Buffer>, device: &MetalDevice) {
        device.register_buffers([&*buffer]);
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        lent.retain(|kept| !kept.is_free());
        lent.push(Kept { buffer, device: device.clone() });
    }
}

/// Room for elements of no meaning yet, which become a tensor or pass from one call to the next.
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
        // Nobody writes or reads it there.
        let bytes = if is_dry() { 1 } else { bytes };
        Ok(DeviceBuffer { buffer: ledger.metal.take(ledger, device, bytes)?, device: device.clone(), elements, dtype })
    }

    pub(super) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// As a tensor that takes it over.
    pub(crate) fn tensor(self, dims: &[usize]) -> Result<Tensor> {
        if dims.iter().product::<usize>() != self.elements {
            return Err(Error::call("metal", format!("{} elements as {dims:?}", self.elements)));
        }
        let storage = MetalStorage::new(self.buffer, self.device, self.elements, self.dtype.candle());
        Ok(Tensor::from_storage(Storage::Metal(storage), dims, BackpropOp::none(), false))
    }
}

/// The tensor on the host, once all that was sent off has run. What failed on the way is this call's error.
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
    let held = buffer.length() / size_of::<T>();
    assert!(start <= end && end <= held, "elements {start} to {end} of a buffer with {held}");
    // SAFETY: the elements lie within the buffer, which is memory that the host sees too, and numbers of any bits; every command
    // that was sent off has run, and this thread, which holds the tensor, sends off no others meanwhile that would write it.
    #[allow(unsafe_code, reason = "the device's memory")]
    unsafe { std::slice::from_raw_parts(buffer.contents().cast::<T>().add(start), end - start) }.to_vec()
}
