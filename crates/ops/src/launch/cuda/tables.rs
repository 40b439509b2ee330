//! Tables that kernels read and nobody writes. As the kernels themselves, each is uploaded once in the life of the process.

use super::describe;
use crate::{Error, Result};
use candle_core::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, DevicePtr};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// A GPU by its number, and a table by where it lies.
type Place = (usize, usize);

/// Where the table is on the device.
pub(super) fn address(device: &CudaDevice, table: &'static [u8]) -> Result<u64> {
    static UPLOADED: Mutex<Option<HashMap<Place, CudaSlice<u8>>>> = Mutex::new(None);
    let stream = device.cuda_stream();
    let place = (stream.context().ordinal(), table.as_ptr().addr());
    let mut uploaded = UPLOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let uploaded = uploaded.get_or_insert_default();
    let of = |slice: &CudaSlice<u8>| slice.device_ptr(slice.stream()).0;
    if let Some(slice) = uploaded.get(&place) {
        return Ok(of(slice));
    }
    let fail = |e| Error::call("cuda", format!("a table of {} bytes: {}", table.len(), describe(e)));
    let slice = stream.clone_htod(table).map_err(fail)?;
    // Whoever reads it next may do so on the stream of a device that is opened later.
    stream.synchronize().map_err(fail)?;
    let address = of(&slice);
    uploaded.insert(place, slice);
    Ok(address)
}
