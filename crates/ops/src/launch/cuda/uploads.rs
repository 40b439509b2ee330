//! Small arrays that kernels read: lists of sequences, tables of pages, slopes.
//!
//! Every layer of a pass gives the same ones, and so do many passes: what was uploaded is kept for a while and found by its
//! contents, so that most calls upload nothing.

use super::buffers::DeviceBuffer;
use crate::{DType, Result, ladder};
use candle_core::CudaDevice;
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
    made: Arc<DeviceBuffer>,
}

impl Uploads {
    /// The values on the device.
    pub(super) fn of(&self, device: &CudaDevice, values: &[u32]) -> Result<Arc<DeviceBuffer>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.iter().rposition(|k| k.device.id() == device.id() && k.values == values);
        if let Some(i) = found {
            let made = kept[i].made.clone();
            kept[i..].rotate_left(1);
            return Ok(made);
        }
        let made = DeviceBuffer::new(device, values.len(), DType::U32)?;
        send(device, &made, values)?;
        if kept.len() >= MOST {
            kept.remove(0);
        }
        let made = Arc::new(made);
        kept.push(Kept { device: device.clone(), values: values.to_vec(), made: made.clone() });
        Ok(made)
    }
}

/// Ids, positions or rows as a tensor.
pub(crate) fn tensor(device: &candle_core::Device, values: &[u32]) -> Result<candle_core::Tensor> {
    let device = device.as_cuda_device()?;
    let made = DeviceBuffer::new(device, values.len(), DType::U32)?;
    send(device, &made, values)?;
    made.tensor(&[values.len()])
}

fn send(device: &CudaDevice, to: &DeviceBuffer, values: &[u32]) -> Result<()> {
    // SAFETY: a number is four bytes of any value.
    #[allow(unsafe_code, reason = "numbers seen as their bytes")]
    let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), 4 * values.len()) };
    ladder::current().ledger.cuda.lane.send(&device.cuda_stream(), to.address, bytes)
}
