//! Tensor maps: descriptors of matrices for Hopper's Tensor Memory Accelerator (TMA).

use super::view::View;
use crate::{DType, Error, Result};
use candle_core::cuda_backend::cudarc::driver::sys;

pub(super) type TensorMap = sys::CUtensorMap;

/// Columns of a box: 128 bytes in f16 or bf16, the width of the swizzle.
const COLUMNS: u32 = 64;

impl View {
    /// A tensor map of a matrix in f16 or bf16. The TMA copies boxes of `rows` rows and 64 columns,
    /// with zeros beyond the matrix. Rows must begin at multiples of 16 bytes.
    pub(crate) fn map(&self, rows: u32) -> Result<TensorMap> {
        let matrix = self.rows()?;
        let dtype = match self.dtype {
            DType::F16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            DType::BF16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            other => return Err(Error::call("cuda", format!("no tensor map for {other}"))),
        };
        let mut map = TensorMap { opaque: [0; 16] };
        let (sizes, step) = ([matrix.cols as u64, matrix.rows as u64], (matrix.stride * self.dtype.size()) as u64);
        // SAFETY: every array has as many entries as the map has axes, or one less for steps.
        #[allow(unsafe_code, reason = "the driver is C")]
        let encoded = unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map,
                dtype,
                2,
                self.address as *mut _,
                sizes.as_ptr(),
                &raw const step,
                [COLUMNS, rows].as_ptr(),
                [1, 1].as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        encoded
            .result()
            .map_err(|e| Error::call("cuda", format!("a tensor map of {matrix:?}: {}", super::describe(e))))?;
        Ok(map)
    }
}
