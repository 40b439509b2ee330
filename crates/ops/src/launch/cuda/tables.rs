//! Constant tables that kernels read. Like kernels, each is uploaded once per process.

use super::describe;
use crate::{Error, Result};
use candle_core::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// A GPU's ordinal, and the table's address on the host.
type TableKey = (usize, usize);

/// The address of the table on the device.
pub(super) fn address(device: &CudaDevice, table: &'static [u8]) -> Result<u64> {
    static UPLOADED: Mutex<Option<HashMap<TableKey, CudaSlice<u8>>>> = Mutex::new(None);
    let stream = device.cuda_stream();
    let key = (stream.context().ordinal(), table.as_ptr().addr());
    let mut uploaded = UPLOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let uploaded = uploaded.get_or_insert_default();
    let of = |slice: &CudaSlice<u8>| slice.device_ptr(slice.stream()).0;
    if let Some(slice) = uploaded.get(&key) {
        return Ok(of(slice));
    }
    let fail = |e| Error::call("cuda", format!("a table of {} bytes: {}", table.len(), describe(e)));
    let slice = stream.clone_htod(table).map_err(fail)?;
    // Its next reader may use the stream of a device that is opened later.
    stream.synchronize().map_err(fail)?;
    let address = of(&slice);
    uploaded.insert(key, slice);
    Ok(address)
}
