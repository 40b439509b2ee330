//! A scatter over rows, in place; for Q8 one of codes and one of scales.

use super::kv_tensor::BLOCK;
use super::{KvTensor, KvWriteOp};
use crate::ladder::Can;
use crate::{DType, Device, Result};
use candle_core::Tensor;
use candle_core::{D, DType as Candle};

pub(super) fn run(op: &KvWriteOp) -> Result<Tensor> {
    let rows = op.rows.candle()?;
    for (x, cache) in op.pairs() {
        let x = x.candle()?;
        match cache {
            KvTensor::Float(cache) => scatter(cache.candle()?, &x.to_dtype(cache.dtype().candle())?, rows)?,
            KvTensor::Q8 { codes, scales } => {
                let (quantized, d) = quantize(x)?;
                scatter(scales.candle()?, &d, rows)?;
                scatter(codes.candle()?, &quantized, rows)?
            }
        };
    }
    op.written_keys()
}

/// Q8 codes and scales of `[tokens, heads, size]`.
fn quantize(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let (tokens, heads, size) = x.dims3()?;
    let x = x.to_dtype(Candle::F32)?.contiguous()?.reshape((tokens, heads, size / BLOCK, BLOCK))?;
    let d = (x.abs()?.max_keepdim(D::Minus1)? / 127.0)?;
    // A value that is not finite has no code: it makes its block's scale NaN.
    let d = (d + (&x * 0.0)?.sum_keepdim(D::Minus1)?)?;
    // Avoids 0 / 0 in a block of zeros.
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

/// Whether Candle can scatter this dtype.
pub(super) fn can_scatter(dtype: DType, device: Device) -> Can {
    match (dtype, device) {
        (DType::U8, Device::Metal(_)) => {
            Can::no("Candle cannot scatter bytes on Metal; use an f16 KV cache (--kv-dtype f16)")
        }
        _ => Can::Yes,
    }
}
