//! Arrays whose operations run at once, one by one: the tensors of the Ruby gem.
//!
//! Models do not use them: a model's ops take [`crate::Tensor`], choose a rung and can be planned.
//! A user's arithmetic on arrays has no plan and no kernels of ours, so every operation here is on
//! the composed rung: Candle's ops on the array's device. The laws of the ladder hold all the same.
//! Each operation that computes is counted in the ladder of its device, each buffer is in the
//! ledger, an operation never moves to another device, and views compute nothing.

mod create;
mod math;
#[cfg(test)]
mod tests;
mod views;

pub use math::{Binary, Reduction, Unary};

use crate::ladder::Can;
use crate::ledger::Lease;
use crate::place::Kind;
use crate::{Counted, DType, Device, Error, Ladder, Place, Result, Rung, threads};
use candle_core::Tensor as Candle;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

/// Results below this size are not compared with the free memory, which takes a system call.
const SMALL_BYTES: u64 = 64 << 20;

/// An open device for arrays, with the ladder that counts their operations.
#[derive(Debug)]
pub struct EagerDevice {
    device: Device,
    candle: candle_core::Device,
    ladder: Arc<Ladder>,
    /// Held while work is submitted to a GPU, so that one thread at a time does it.
    submitting: Mutex<()>,
}

impl EagerDevice {
    /// Opens a device. If that fails it is an error; no other device takes its place.
    pub fn open(device: Device) -> Result<Arc<EagerDevice>> {
        match Place::open(device)?.0 {
            Kind::Open(device, candle) => {
                let (ladder, submitting) = (Arc::default(), Mutex::new(()));
                Ok(Arc::new(EagerDevice { device, candle, ladder, submitting }))
            }
            Kind::Phantom(_) => Err(Error::Phantom),
        }
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The operations that ran so far, and the ledger of the arrays.
    pub fn ladder(&self) -> &Arc<Ladder> {
        &self.ladder
    }

    /// Fails if `bytes` more do not fit into the device's memory: an allocation that fails on the
    /// CPU would end the process.
    fn check_room(&self, op: &'static str, bytes: u64) -> Result<()> {
        if bytes < SMALL_BYTES {
            return Ok(());
        }
        let free = self.device.info()?.free_bytes;
        match bytes > free {
            true => Err(Error::call(op, format!("needs {bytes} bytes, {} has {free} free", self.device))),
            false => Ok(()),
        }
    }
}

/// A dense array of numbers on an open device. Clones and views share its elements, which never
/// change.
#[derive(Clone, Debug)]
pub struct Array {
    candle: Candle,
    dtype: DType,
    on: Arc<EagerDevice>,
    /// The entry in the ledger, which the last view removes.
    _lease: Arc<Lease>,
}

/// An operation that computes: its name, and the shape and dtype of its result.
struct Call<'a> {
    op: &'static str,
    /// Arrays that it reads, all on one device; the first gives the dtype that is counted.
    inputs: &'a [&'a Array],
    dims: Vec<usize>,
    dtype: DType,
}

impl Array {
    /// Length of each axis.
    pub fn dims(&self) -> &[usize] {
        self.candle.dims()
    }

    /// Distance of neighbours along each axis, in elements.
    pub fn strides(&self) -> &[usize] {
        self.candle.stride()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.candle.elem_count()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Storage format.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The open device that it is on.
    pub fn on(&self) -> &Arc<EagerDevice> {
        &self.on
    }

    /// A view that shares the ledger entry.
    fn view(&self, candle: Candle) -> Array {
        Array { candle, ..self.clone() }
    }
}

/// Runs an operation on the composed rung, counts it, and enters its result into the ledger.
fn run(
    call: &Call<'_>,
    on: &Arc<EagerDevice>,
    f: impl FnOnce() -> candle_core::Result<Candle> + Send,
) -> Result<Array> {
    let (op, device) = (call.op, on.device);
    if let Some(other) = call.inputs.iter().find(|input| !Arc::ptr_eq(&input.on, on)) {
        return Err(Error::call(op, format!("one array is on {device}, another on {}: move one", other.on.device)));
    }
    let dtype = call.inputs.first().map_or(call.dtype, |input| input.dtype);
    if let Can::No(why) = on.ladder.allows(op, device, dtype, Rung::Composed) {
        return Err(Error::Refused { op, dtype, device, at: String::new(), why });
    }
    let bytes = byte_count(op, &call.dims, call.dtype)?;
    // Candle makes contiguous copies of views before some operations.
    let copies = call.inputs.iter().map(|input| byte_count(op, input.dims(), input.dtype)).sum::<Result<u64>>()?;
    on.check_room(op, bytes.saturating_add(copies))?;
    let failed = |source| Error::Failed { op, dtype, device, at: String::new(), rung: Rung::Composed, source };
    // Candle panics on some inputs.
    let caught = || match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result.map_err(Error::from),
        Err(_) => Err(Error::call(op, "Candle cannot compute this")),
    };
    let result = match device {
        Device::Cpu => threads::with_candle(caught).flatten(),
        _ => {
            let _one = on.submitting.lock().unwrap_or_else(PoisonError::into_inner);
            caught()
        }
    };
    let candle = result.map_err(|e| failed(Box::new(e)))?;
    if candle.dims() != call.dims || candle.dtype() != call.dtype.candle() {
        let (dims, dtype) = (&call.dims, call.dtype);
        return Err(Error::call(
            op,
            format!("gave {:?} in {:?}, not {dims:?} in {dtype}", candle.dims(), candle.dtype()),
        ));
    }
    on.ladder.count(Counted { op, device, dtype, rung: Rung::Composed });
    let _lease = on.ladder.ledger.lease(usize::try_from(bytes).unwrap_or(usize::MAX));
    Ok(Array { candle, dtype: call.dtype, on: on.clone(), _lease })
}

/// The size of an array. Fails if it is not a number of bytes that memory could have.
fn byte_count(op: &'static str, dims: &[usize], dtype: DType) -> Result<u64> {
    let elements = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let bytes = elements.and_then(|n| n.checked_mul(dtype.size())).filter(|n| isize::try_from(*n).is_ok());
    bytes.map(|n| n as u64).ok_or_else(|| Error::call(op, format!("the shape {dims:?} is too large")))
}
