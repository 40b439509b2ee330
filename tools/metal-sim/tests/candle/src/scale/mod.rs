//! The smallest kernel of our own, to prove the path that ops take: a `kernel.metal` that `setup` finds by its place and
//! the device by its text.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, DType, Error, Layout, MetalStorage, Result, Shape};
use candle_metal_kernels::metal::ComputeCommandEncoder;
use objc2_metal::MTLSize;

/// `y = factor * x`, for contiguous f32 on Metal.
pub struct Scale(pub f32);

/// Source of the kernel.
pub const SOURCE: &str = include_str!("kernel.metal");

impl CustomOp1 for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Err(Error::Msg("scale is for Metal only".into()))
    }

    fn metal_fwd(&self, x: &MetalStorage, layout: &Layout) -> Result<(MetalStorage, Shape)> {
        assert!(layout.is_contiguous() && x.dtype() == DType::F32);
        let device = x.device();
        let count = layout.shape().elem_count();
        let library = device.metal_device().new_library_with_source(SOURCE, None).map_err(Error::wrap)?;
        let function = library.get_function("scale_f32", None).map_err(Error::wrap)?;
        let pipeline =
            device.metal_device().new_compute_pipeline_state_with_function(&function).map_err(Error::wrap)?;
        let y = device.new_buffer(count, DType::F32, "scale")?;

        let threads = pipeline.max_total_threads_per_threadgroup().min(count);
        let size = |width| MTLSize { width, height: 1, depth: 1 };
        {
            let guard = device.command_encoder()?;
            let encoder: &ComputeCommandEncoder = guard.as_ref();
            encoder.set_compute_pipeline_state(&pipeline);
            encoder.set_bytes(0, &(count as u32));
            encoder.set_bytes(1, &self.0);
            encoder.set_input_buffer(2, Some(x.buffer()), layout.start_offset() * size_of::<f32>());
            encoder.set_output_buffer(3, Some(&y), 0);
            encoder.dispatch_thread_groups(size(count.div_ceil(threads)), size(threads));
        }
        Ok((MetalStorage::new(y, device.clone(), count, DType::F32), layout.shape().clone()))
    }
}
