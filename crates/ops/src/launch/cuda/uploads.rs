//! Small arrays that kernels read: lists of sequences, tables of pages, slopes.
//!
//! Every layer of a pass gives the same ones, and so do many passes: what was uploaded is kept for a while and found by its
//! contents, so that most calls upload nothing.

use super::buffers::Made;
use crate::{DType, Error, Result};
use candle_core::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::result;
use std::sync::{Arc, Mutex, PoisonError};

/// How many are kept.
const MOST: usize = 64;

/// What was uploaded last, the latest at the end.
#[derive(Debug, Default)]
pub(super) struct Uploads(Mutex<Vec<Kept>>);

#[derive(Debug)]
struct Kept {
    device: CudaDevice,
    values: Vec<u32>,
    made: Arc<Made>,
}

impl Uploads {
    /// The values on the device.
    pub(super) fn of(&self, device: &CudaDevice, values: &[u32]) -> Result<Arc<Made>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.iter().rposition(|k| k.device.id() == device.id() && k.values == values);
        if let Some(i) = found {
            let made = kept[i].made.clone();
            kept[i..].rotate_left(1);
            return Ok(made);
        }
        let made = Made::new(device, values.len(), DType::U32)?;
        let stream = device.cuda_stream();
        let fail = |e| Error::call("cuda", format!("an upload of {} numbers: {}", values.len(), super::describe(e)));
        stream.context().bind_to_thread().map_err(fail)?;
        // SAFETY: the buffer has room for the values; from memory that is not pinned the driver has read them when this returns.
        #[allow(unsafe_code, reason = "a copy to the device")]
        unsafe { result::memcpy_htod_async(made.address, values, stream.cu_stream()) }.map_err(fail)?;
        if kept.len() >= MOST {
            kept.remove(0);
        }
        let made = Arc::new(made);
        kept.push(Kept { device: device.clone(), values: values.to_vec(), made: made.clone() });
        Ok(made)
    }
}
