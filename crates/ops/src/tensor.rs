//! The tensor that models see: a Candle tensor or a phantom, with its bytes in the ledger.
//!
//! It offers views and nothing that computes. Everything that computes is an op and goes through
//! the ladder, so nothing runs uncounted, and a model cannot see which device it is on.

use crate::buffer_pool::PooledBuffer;
use crate::cpu::elem::Elem;
use crate::ledger::Lease;
use crate::place::Kind;
use crate::{DType, Device, Error, Place, Result, ladder, launch, replay};
use candle_core::{Tensor as Candle, WithDType};
use half::{bf16, f16};
use std::sync::Arc;

/// A dense array of numbers on some device.
#[derive(Clone, Debug)]
pub struct Tensor {
    repr: Repr,
    dtype: DType,
    device: Device,
    /// The last field, so that it is dropped last: then another tensor may take the buffer.
    lease: Arc<Lease>,
}

#[derive(Clone, Debug)]
enum Repr {
    Real(Candle),
    Phantom(Vec<usize>),
}

impl Tensor {
    /// Uploads `values`, rounded to `dtype`.
    pub fn from_f32(values: &[f32], dims: &[usize], dtype: DType, place: &Place) -> Result<Tensor> {
        Self::upload(dims, dtype, place, || match dtype {
            DType::F32 => host(values.to_vec(), dims),
            DType::BF16 => host(values.iter().map(|v| bf16::from_f32(*v)).collect::<Vec<_>>(), dims),
            DType::F16 => host(values.iter().map(|v| f16::from_f32(*v)).collect::<Vec<_>>(), dims),
            DType::U32 | DType::U8 | DType::F64 | DType::I64 => {
                Err(Error::call("upload", format!("floats cannot become {dtype}")))
            }
        })
    }

    /// Uploads ids or positions.
    pub fn from_u32(values: &[u32], place: &Place) -> Result<Tensor> {
        let dims = [values.len()];
        if let Kind::Open(device @ Device::Cuda(_), candle) = &place.0 {
            return match replay::upload(values) {
                Some(in_params) => Ok(Self::real(in_params?, DType::U32, *device)),
                None => Ok(Self::pooled(launch::cuda::uploads::tensor(candle, values)?, DType::U32, *device)),
            };
        }
        Self::upload(&dims, DType::U32, place, || host(values.to_vec(), &dims))
    }

    /// Uploads the tensor that `build` makes on the host to `place`; for a phantom `build` is not
    /// called.
    pub(crate) fn upload(
        dims: &[usize],
        dtype: DType,
        place: &Place,
        build: impl FnOnce() -> Result<Candle>,
    ) -> Result<Tensor> {
        replay::mark_untracked();
        match &place.0 {
            Kind::Phantom(device) => Ok(Self::phantom(dims, dtype, *device)),
            Kind::Open(Device::Cpu, _) => Ok(Self::real(build()?, dtype, Device::Cpu)),
            Kind::Open(device, candle) => Ok(Self::real(build()?.to_device(candle)?, dtype, *device)),
        }
    }

    /// Enters a new Candle tensor into the ledger.
    pub(crate) fn real(candle: Candle, dtype: DType, device: Device) -> Tensor {
        debug_assert_eq!(candle.dtype(), dtype.candle());
        let lease = ladder::current().ledger.lease(candle.elem_count() * dtype.size());
        Tensor { repr: Repr::Real(candle), dtype, device, lease }
    }

    /// Enters the result of one of our kernels into the ledger. Nothing else reads its buffer, so
    /// the pool reuses the buffer when the tensor is dropped.
    pub(crate) fn pooled(candle: Candle, dtype: DType, device: Device) -> Tensor {
        debug_assert_eq!(candle.dtype(), dtype.candle());
        let lease = ladder::current().ledger.lend(candle.elem_count() * dtype.size(), candle.clone());
        Tensor { repr: Repr::Real(candle), dtype, device, lease }
    }

    /// The same elements without a lease. Valid until something else writes to the buffer.
    pub(crate) fn unleased(&self) -> Result<Tensor> {
        Ok(Self::real(self.candle()?.clone(), self.dtype, self.device))
    }

    /// Marks the buffer as readable by another tensor that holds no lease.
    pub(crate) fn share(&self) {
        self.lease.share();
    }

    /// Enters a phantom into the ledger.
    pub(crate) fn phantom(dims: &[usize], dtype: DType, device: Device) -> Tensor {
        // The shape in a hostile file may overflow the byte count.
        let bytes = dims.iter().fold(dtype.size(), |n, d| n.saturating_mul(*d));
        let lease = ladder::current().ledger.lease(bytes);
        Tensor { repr: Repr::Phantom(dims.to_vec()), dtype, device, lease }
    }

    /// Length of each axis.
    pub fn dims(&self) -> &[usize] {
        match &self.repr {
            Repr::Real(t) => t.dims(),
            Repr::Phantom(dims) => dims,
        }
    }

    /// Storage format.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The same elements in another shape, without a copy.
    pub fn reshape(&self, dims: &[usize]) -> Result<Tensor> {
        if dims.iter().product::<usize>() != self.dims().iter().product::<usize>() {
            return Err(Error::call(
                "reshape",
                format!("{:?} does not hold as many elements as {dims:?}", self.dims()),
            ));
        }
        match &self.repr {
            Repr::Real(t) if !t.is_contiguous() => Err(Error::call("reshape", "a view with gaps would need a copy")),
            Repr::Real(t) => Ok(self.view(Repr::Real(t.reshape(dims)?))),
            Repr::Phantom(_) => Ok(self.view(Repr::Phantom(dims.to_vec()))),
        }
    }

    /// Entry `index` of axis `axis`, as a view without that axis.
    pub fn select(&self, axis: usize, index: usize) -> Result<Tensor> {
        if self.dims().get(axis).is_none_or(|n| index >= *n) {
            return Err(Error::call("select", format!("no entry {index} on axis {axis} of {:?}", self.dims())));
        }
        let repr = match &self.repr {
            Repr::Real(t) => Repr::Real(t.narrow(axis, index, 1)?.squeeze(axis)?),
            Repr::Phantom(dims) => {
                let mut dims = dims.clone();
                dims.remove(axis);
                Repr::Phantom(dims)
            }
        };
        Ok(self.view(repr))
    }

    /// `len` entries of axis `axis` from `start` on, as a view.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Result<Tensor> {
        if self.dims().get(axis).is_none_or(|n| start.checked_add(len).is_none_or(|end| end > *n)) {
            return Err(Error::call(
                "narrow",
                format!("no {len} entries from {start} on axis {axis} of {:?}", self.dims()),
            ));
        }
        let repr = match &self.repr {
            Repr::Real(t) => Repr::Real(t.narrow(axis, start, len)?),
            Repr::Phantom(dims) => {
                let mut dims = dims.clone();
                dims[axis] = len;
                Repr::Phantom(dims)
            }
        };
        Ok(self.view(repr))
    }

    /// Downloads the elements in row-major order, widened to f32. A CUDA graph cannot contain a
    /// download, so a running capture becomes untracked.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        replay::observe_shape();
        if let Device::Cuda(_) = self.device
            && let Some(values) = launch::cuda::pinned::floats(self)?
        {
            return Ok(values);
        }
        Ok(self.to_host()?.to_dtype(candle_core::DType::F32)?.flatten_all()?.to_vec1()?)
    }

    /// Downloads ids, as [`Tensor::to_f32`] does.
    pub fn to_u32(&self) -> Result<Vec<u32>> {
        replay::observe_shape();
        if let Device::Cuda(_) = self.device
            && let Some(values) = launch::cuda::pinned::numbers(self)?
        {
            return Ok(values);
        }
        Ok(self.to_host()?.flatten_all()?.to_vec1()?)
    }

    fn to_host(&self) -> Result<Candle> {
        match self.device {
            Device::Metal(_) => launch::metal::buffers::to_host(self.candle()?),
            _ => Ok(self.candle()?.to_device(&candle_core::Device::Cpu)?),
        }
    }

    /// The device the elements are on.
    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// The Candle tensor, for the rungs.
    pub(crate) fn candle(&self) -> Result<&Candle> {
        match &self.repr {
            Repr::Real(t) => Ok(t),
            Repr::Phantom(_) => Err(Error::Phantom),
        }
    }

    pub(crate) fn is_phantom(&self) -> bool {
        matches!(self.repr, Repr::Phantom(_))
    }

    fn view(&self, repr: Repr) -> Tensor {
        Tensor { repr, dtype: self.dtype, device: self.device, lease: self.lease.clone() }
    }
}

/// An uninitialized buffer of `len` elements, all of which the caller must write.
pub(crate) fn room<T: Elem>(len: usize) -> PooledBuffer<T> {
    PooledBuffer::new(&ladder::current().ledger, len)
}

/// A contiguous host tensor that takes over `values`.
pub(crate) fn host<T: WithDType>(values: impl Into<PooledBuffer<T>>, dims: &[usize]) -> Result<Candle> {
    Ok(values.into().tensor(dims)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledger_counts_views_once_also_for_phantoms() {
        let ladder = Arc::new(ladder::Ladder::default());
        let _here = ladder.clone().enter();
        for place in [Place::cpu(), Place::phantom(Device::Cuda(0))] {
            let t = Tensor::from_f32(&[0.0; 24], &[2, 3, 4], DType::BF16, &place).unwrap();
            let row = t.select(1, 2).unwrap();
            assert_eq!(row.dims(), [2, 4]);
            assert_eq!(t.reshape(&[6, 4]).unwrap().dims(), [6, 4]);
            drop(t);
            assert_eq!(ladder.ledger.live(), 48, "{place:?}");
            drop(row);
            assert_eq!(ladder.ledger.live(), 0);
        }
        assert_eq!(ladder.ledger.peak(), 48);
    }

    #[test]
    fn values_round_trip_and_views_select_the_right_elements() {
        let values: Vec<f32> = (0..24).map(|v| v as f32).collect();
        let t = Tensor::from_f32(&values, &[2, 3, 4], DType::F16, &Place::cpu()).unwrap();
        assert_eq!(t.to_f32().unwrap(), values);
        assert_eq!(t.select(1, 1).unwrap().to_f32().unwrap(), [4., 5., 6., 7., 16., 17., 18., 19.]);
        assert!(t.select(1, 1).unwrap().reshape(&[8]).is_err());
        assert!(t.select(1, 3).is_err());
        assert_eq!(t.narrow(1, 1, 2).unwrap().narrow(2, 3, 1).unwrap().to_f32().unwrap(), [7., 11., 19., 23.]);
        assert!(t.narrow(1, 2, 2).is_err() && t.narrow(1, usize::MAX, 2).is_err());
        assert!(matches!(Tensor::phantom(&[2], DType::F32, Device::Cpu).to_f32(), Err(Error::Phantom)));
    }
}
