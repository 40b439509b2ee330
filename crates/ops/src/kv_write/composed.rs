//! A scatter over rows, in place; for blocks one of codes and one of scales.

use super::kv_tensor::BLOCK;
use super::{KvTensor, KvWriteOp};
use crate::ladder::Can;
use crate::{DType, Device, Result};
use candle_core::Tensor;
use candle_core::{D, DType as Candle};

pub(super) fn run(op: &KvWriteOp) -> Result<Tensor> {
    let rows = op.rows.candle()?;
    for (x, cache) in op.both() {
        let x = x.candle()?;
        match cache {
            KvTensor::Float(cache) => scatter(cache.candle()?, &x.to_dtype(cache.dtype().candle())?, rows)?,
            KvTensor::Q8 { codes, scales } => {
                let (quantised, d) = blocks(x)?;
                scatter(scales.candle()?, &d, rows)?;
                scatter(codes.candle()?, &quantised, rows)?
            }
        };
    }
    op.kept()
}

/// Codes and scales of `[tokens, heads, size]`.
fn blocks(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let (tokens, heads, size) = x.dims3()?;
    let x = x.to_dtype(Candle::F32)?.contiguous()?.reshape((tokens, heads, size / BLOCK, BLOCK))?;
    let d = (x.abs()?.max_keepdim(D::Minus1)? / 127.0)?;
    // What is not finite has no code; its block's scale tells of it.
    let d = (d + (&x * 0.0)?.sum_keepdim(D::Minus1)?)?;
    // All of a block of zeros are zero by anything.
    let code = x.broadcast_div(&d.maximum(f64::from(f32::MIN_POSITIVE))?)?.round()?;
    let code = (&code + (code.lt(0f32)?.to_dtype(Candle::F32)? * 256.0)?)?;
    let scales = d.squeeze(D::Minus1)?.to_dtype(Candle::F16)?;
    Ok((code.to_dtype(Candle::U8)?.reshape((tokens, heads, size))?, scales))
}

/// Writes row i of `x` to row `rows[i]` of `cache`.
pub(super) fn scatter(cache: &Tensor, x: &Tensor, rows: &Tensor) -> Result<Tensor> {
    let x = x.contiguous()?;
    let rows = rows.reshape((x.dim(0)?, 1, 1))?.broadcast_as(x.shape())?.contiguous()?;
    cache.scatter_set(&rows, &x, 0)?;
    Ok(cache.clone())
}

/// Whether Candle can.
pub(super) fn scatters(dtype: DType, device: Device) -> Can {
    match (dtype, device) {
        (DType::U8, Device::Metal(_)) => Can::no("Candle scatters no bytes on Metal; keep keys and values in f16"),
        _ => Can::Yes,
    }
}
