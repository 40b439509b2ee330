//! Arrays from numbers and back; copies in another dtype or on another device.

use super::{Array, Call, EagerDevice, byte_count, run};
use crate::{DType, Error, Result};
use candle_core::Tensor as Candle;
use std::sync::Arc;

impl Array {
    /// Uploads `values`, converted to `dtype`.
    pub fn from_f64(values: &[f64], dims: &[usize], dtype: DType, on: &Arc<EagerDevice>) -> Result<Array> {
        check_count("upload", values.len(), dims)?;
        if !dtype.is_float()
            && let Some(v) = values.iter().find(|v| v.fract() != 0.0 || !dtype.holds(**v))
        {
            return Err(Error::call("upload", format!("{v} is not a number that {dtype} can hold: use f32")));
        }
        Self::create("upload", dims, dtype, on, || {
            Candle::from_slice(values, dims, &candle_core::Device::Cpu)?.to_dtype(dtype.candle())?.to_device(&on.candle)
        })
    }

    /// Uploads f32 values.
    pub fn from_f32(values: Vec<f32>, dims: &[usize], on: &Arc<EagerDevice>) -> Result<Array> {
        check_count("upload", values.len(), dims)?;
        Self::create("upload", dims, DType::F32, on, || Candle::from_vec(values, dims, &on.candle))
    }

    /// An array in which every element is `value`.
    pub fn full(value: f64, dims: &[usize], dtype: DType, on: &Arc<EagerDevice>) -> Result<Array> {
        Self::create("full", dims, dtype, on, || {
            let one = Candle::new(value, &candle_core::Device::Cpu)?.to_dtype(dtype.candle())?;
            one.broadcast_as(dims)?.force_contiguous()?.to_device(&on.candle)
        })
    }

    /// Random numbers in f32, evenly distributed from 0 to 1.
    pub fn rand(dims: &[usize], on: &Arc<EagerDevice>) -> Result<Array> {
        Self::create("rand", dims, DType::F32, on, || Candle::rand(0f32, 1f32, dims, &on.candle))
    }

    /// Random numbers in f32 of the standard normal distribution.
    pub fn randn(dims: &[usize], on: &Arc<EagerDevice>) -> Result<Array> {
        Self::create("randn", dims, DType::F32, on, || Candle::randn(0f32, 1f32, dims, &on.candle))
    }

    fn create(
        op: &'static str,
        dims: &[usize],
        dtype: DType,
        on: &Arc<EagerDevice>,
        f: impl FnOnce() -> candle_core::Result<Candle> + Send,
    ) -> Result<Array> {
        run(&Call { op, inputs: &[], dims: dims.to_vec(), dtype }, on, f)
    }

    /// Downloads the elements in row-major order.
    pub fn to_f64(&self) -> Result<Vec<f64>> {
        let bytes = byte_count("download", self.dims(), DType::F64)?;
        self.on.check_room("download", bytes)?;
        let host = self.candle.to_device(&candle_core::Device::Cpu)?;
        Ok(host.to_dtype(candle_core::DType::F64)?.flatten_all()?.to_vec1()?)
    }

    /// The same numbers in another dtype. Floats that an integer cannot hold saturate.
    pub fn to_dtype(&self, dtype: DType) -> Result<Array> {
        if dtype == self.dtype {
            return Ok(self.clone());
        }
        let call = Call { op: "cast", inputs: &[self], dims: self.dims().to_vec(), dtype };
        run(&call, &self.on, || self.candle.to_dtype(dtype.candle()))
    }

    /// The same numbers on another device.
    pub fn to_device(&self, on: &Arc<EagerDevice>) -> Result<Array> {
        if Arc::ptr_eq(on, &self.on) {
            return Ok(self.clone());
        }
        // Counted on the device that receives the copy.
        Self::create("move", self.dims(), self.dtype, on, || self.candle.to_device(&on.candle))
    }

    /// A copy with a buffer of its own.
    pub fn copy(&self) -> Result<Array> {
        let call = Call { op: "copy", inputs: &[self], dims: self.dims().to_vec(), dtype: self.dtype };
        run(&call, &self.on, || self.candle.force_contiguous())
    }

    /// The same elements in row-major order: this array if it is so, else a copy.
    pub fn contiguous(&self) -> Result<Array> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.copy() }
    }
}

fn check_count(op: &'static str, count: usize, dims: &[usize]) -> Result<()> {
    match dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d)) == Some(count) {
        true => Ok(()),
        false => Err(Error::call(op, format!("{count} values do not fill the shape {dims:?}"))),
    }
}
