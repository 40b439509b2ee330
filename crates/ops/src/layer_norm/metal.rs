//! Launches `kernel.metal`: a threadgroup a row, as many threads as the row can feed and the pipeline allows.

use super::LayerNormOp;
use crate::Result;
use crate::launch::metal::{offset, pipeline, storage};
use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{MetalStorage, Storage, Tensor};
use objc2_metal::MTLSize;

const SOURCE: &str = include_str!("kernel.metal");

pub(super) fn run(op: &LayerNormOp) -> Result<Tensor> {
    let contiguous = |t: &crate::Tensor| -> Result<Tensor> { Ok(t.candle()?.contiguous()?) };
    let (x, w) = (contiguous(&op.x)?, contiguous(&op.norm.weight)?);
    // An absent buffer still needs a binding: x stands in, and the flags say that it is not read.
    let residual = op.residual.as_ref().map_or_else(|| Ok(x.clone()), contiguous)?;
    let bias = op.norm.bias.as_ref().map_or_else(|| Ok(x.clone()), contiguous)?;
    let flags = u32::from(op.residual.is_some()) | u32::from(op.norm.bias.is_some()) << 1;
    let n = w.elem_count();
    let rows = x.elem_count() / n;
    let size = op.x.dtype().size();

    let inputs =
        [x.storage_and_layout(), residual.storage_and_layout(), w.storage_and_layout(), bias.storage_and_layout()];
    let device = storage(&inputs[0].0)?.device().clone();
    let pipeline = pipeline(&device, SOURCE, &format!("layer_norm_{}", op.x.dtype()))?;
    let y = device.new_buffer_builder().with_size_for(rows * n, x.dtype()).build()?;
    let most = pipeline.max_total_threads_per_threadgroup() / 32 * 32;
    let threads = n.div_ceil(4).next_multiple_of(32).clamp(32, most.clamp(32, 1024));
    {
        // The guard is not re-entrant: nothing below may allocate or call a tensor op before it is dropped.
        let encoder = device.command_encoder()?;
        let encoder = encoder.as_ref();
        encoder.set_compute_pipeline_state(&pipeline);
        for (i, (s, layout)) in inputs.iter().enumerate() {
            encoder.set_input_buffer(i, Some(storage(s)?.buffer()), offset(layout, size));
        }
        encoder.set_output_buffer(4, Some(&y), 0);
        encoder.set_bytes(5, &(n as u32));
        encoder.set_bytes(6, &op.norm.eps);
        encoder.set_bytes(7, &flags);
        let groups = MTLSize { width: rows, height: 1, depth: 1 };
        encoder.dispatch_thread_groups(groups, MTLSize { width: threads, height: 1, depth: 1 });
    }
    let y = MetalStorage::new(y, device, rows * n, x.dtype());
    drop(inputs);
    Ok(Tensor::from_storage(Storage::Metal(y), op.x.dims(), BackpropOp::none(), false))
}
