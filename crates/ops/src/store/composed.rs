//! A scatter over rows, in place.

use super::StoreOp;
use crate::Result;

pub(super) fn run(op: &StoreOp) -> Result<candle_core::Tensor> {
    let (cache, x) = (op.cache.candle()?, op.x.candle()?);
    let x = x.to_dtype(cache.dtype())?.contiguous()?;
    let rows = op.rows.candle()?.reshape((x.dim(0)?, 1, 1))?.broadcast_as(x.shape())?.contiguous()?;
    cache.scatter_set(&rows, &x, 0)?;
    Ok(cache.clone())
}
