//! Launches `kernel.cu`: a block a row, as many threads as the row can feed.
#![allow(unsafe_code, reason = "kernel launch")]

use super::LayerNormOp;
use crate::Result;
use crate::cpu::elem::{Elem, with_elem};
use crate::launch::cuda::{LaunchConfig, PushKernelArg, launch, storage, view};
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaStorage;
use candle_core::op::BackpropOp;
use candle_core::{Storage, Tensor};

/// What `build.rs` made of `kernel.cu`.
const PTX: &str = include_str!(concat!(env!("OUT_DIR"), "/layer_norm.ptx"));

pub(super) fn run(op: &LayerNormOp) -> Result<Tensor> {
    let contiguous = |t: &crate::Tensor| -> Result<Tensor> { Ok(t.candle()?.contiguous()?) };
    let (x, w) = (contiguous(&op.x)?, contiguous(&op.norm.weight)?);
    let residual = op.residual.as_ref().map(contiguous).transpose()?;
    let bias = op.norm.bias.as_ref().map(contiguous).transpose()?;
    let n = w.elem_count();
    let rows = x.elem_count() / n;
    with_elem!("layer_norm", op.x.dtype(), T => {
        let (xs, xl) = x.storage_and_layout();
        let (ws, wl) = w.storage_and_layout();
        let residual = residual.as_ref().map(|t| t.storage_and_layout());
        let bias = bias.as_ref().map(|t| t.storage_and_layout());
        let xs = storage(&xs)?;
        let (xv, wv) = (view::<T>(xs, xl)?, view::<T>(storage(&ws)?, wl)?);
        let residual = residual.as_ref().map(|(s, l)| view::<T>(storage(s)?, l)).transpose()?;
        let bias = bias.as_ref().map(|(s, l)| view::<T>(storage(s)?, l)).transpose()?;
        let device = xs.device().clone();
        // SAFETY: the kernel writes every element.
        let mut y = unsafe { device.alloc::<T>(rows * n)? };
        let threads = n.div_ceil(4).next_multiple_of(32).clamp(32, 1024) as u32;
        let config = LaunchConfig { grid_dim: (rows as u32, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 };
        let (null, count) = (0u64, n as u32);
        let kernel = device.get_or_load_custom_func(&format!("layer_norm_{}", T::TYPE), "layer_norm", PTX)?;
        let mut args = kernel.builder();
        args.arg(&xv);
        match &residual {
            Some(r) => args.arg(r),
            None => args.arg(&null),
        };
        args.arg(&wv);
        match &bias {
            Some(b) => args.arg(b),
            None => args.arg(&null),
        };
        args.arg(&mut y).arg(&count).arg(&op.norm.eps);
        // SAFETY: argument for argument the kernel's signature; x, residual and y hold rows · n elements, w and bias n.
        unsafe { launch(args, config)? };
        let y = CudaStorage::wrap_cuda_slice(y, device.clone());
        Ok(Tensor::from_storage(Storage::Cuda(y), op.x.dims(), BackpropOp::none(), false))
    })
}
