//! One kernel dispatch: its arguments and its grid.

use super::buffers::DeviceBuffer;
use super::pipelines::{Kernel, pipeline};
use super::view::View;
use crate::ladder::is_dry;
use crate::{DType, Error, Result, ladder};
use candle_core::MetalDevice;
use candle_metal_kernels::metal::{Buffer, ComputePipeline};
use objc2_metal::MTLSize;
use std::ffi::c_void;

/// Threadgroups along each axis, and threads in each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) groups: [usize; 3],
    pub(crate) threads: usize,
}

impl Grid {
    /// Whether one SIMD-group suffices for a row of `n`, so that no threadgroup barrier is needed.
    pub(crate) fn is_short(n: usize) -> bool {
        n <= 256
    }

    /// For kernels that process rows of `n`, four elements per thread: a SIMD-group per row if rows
    /// are short, otherwise a threadgroup of at most `most` threads.
    pub(crate) fn of_rows(rows: usize, n: usize, most: usize) -> Grid {
        match Grid::is_short(n) {
            true => Grid { groups: [rows.div_ceil(4), 1, 1], threads: 4 * 32 },
            false => Grid { groups: [rows, 1, 1], threads: n.div_ceil(4).next_multiple_of(32).min(most) },
        }
    }

    /// At least one thread for each of `width` columns of each row: x and y of its position in the
    /// grid.
    pub(crate) fn over(width: usize, rows: usize) -> Grid {
        let groups = width.div_ceil(256);
        Grid { groups: [groups, rows, 1], threads: width.div_ceil(groups.max(1)).next_multiple_of(32) }
    }
}

/// A kernel dispatch, with the arguments in order: `[[buffer(0)]]`, `[[buffer(1)]]`, ….
pub(crate) struct Call<'a> {
    device: MetalDevice,
    pipeline: ComputePipeline,
    name: String,
    arguments: Vec<Argument<'a>>,
}

enum Argument<'a> {
    Input(Buffer, usize),
    Output(Buffer, usize),
    /// Bytes stored in the command itself.
    Bytes(&'a [u8]),
}

/// Most bytes that a command can store itself.
const MAX_INLINE_BYTES: usize = 4096;

impl<'a> Call<'a> {
    /// A call of `kernel` on the device that `x` is on.
    pub(crate) fn new(x: &View, kernel: &Kernel) -> Result<Call<'a>> {
        let device = x.device.clone();
        let pipeline = pipeline(&device, kernel)?;
        Ok(Call { device, pipeline, name: kernel.function.clone(), arguments: Vec::new() })
    }

    /// Most threads of a threadgroup with this pipeline: register use may allow fewer than 1024.
    pub(crate) fn most_threads(&self) -> usize {
        (self.pipeline.max_total_threads_per_threadgroup() / 32 * 32).clamp(32, 1024)
    }

    /// The next argument: a tensor that is read.
    pub(crate) fn input(mut self, t: &View) -> Call<'a> {
        self.arguments.push(Argument::Input(t.buffer.clone(), t.offset()));
        self
    }

    /// The next argument: a tensor that is read. If it is absent, a function constant tells the
    /// kernel so, and `instead` fills the binding.
    pub(crate) fn input_or(self, t: Option<&View>, instead: &View) -> Call<'a> {
        self.input(t.unwrap_or(instead))
    }

    /// The next argument: a result that is written.
    pub(crate) fn result(mut self, buffer: &DeviceBuffer) -> Call<'a> {
        self.arguments.push(Argument::Output(buffer.buffer().clone(), 0));
        self
    }

    /// The next argument: the result of an earlier call of the same op.
    pub(crate) fn made(mut self, buffer: &DeviceBuffer) -> Call<'a> {
        self.arguments.push(Argument::Input(buffer.buffer().clone(), 0));
        self
    }

    /// The next argument: a tensor that is changed in place.
    pub(crate) fn changed(mut self, t: &View) -> Call<'a> {
        self.arguments.push(Argument::Output(t.buffer.clone(), t.offset()));
        self
    }

    /// The next argument: a struct of these numbers, see [`params`](crate::launch::params).
    pub(crate) fn numbers(mut self, numbers: &'a [u32]) -> Call<'a> {
        self.arguments.push(Argument::Bytes(bytes_of(numbers)));
        self
    }

    /// The next argument: an array that only this call reads.
    pub(crate) fn array(mut self, values: &'a [u32]) -> Result<Call<'a>> {
        let bytes = bytes_of(values);
        self.arguments.push(if bytes.is_empty() {
            // The binding must not be empty, though the kernel reads nothing from it.
            Argument::Bytes(&[0; 4])
        } else if is_dry() {
            Argument::Bytes(&bytes[..4])
        } else if bytes.len() <= MAX_INLINE_BYTES {
            Argument::Bytes(bytes)
        } else {
            let buffer = self.device.new_buffer_builder().with_data(values).build()?;
            Argument::Input(Buffer::clone(&buffer), 0)
        });
        Ok(self)
    }

    /// The same for an array of floats.
    pub(crate) fn floats(self, values: &'a [f32]) -> Result<Call<'a>> {
        // SAFETY: both are four bytes of any value.
        #[allow(unsafe_code, reason = "floats viewed as their bits")]
        self.array(unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), values.len()) })
    }

    /// Allocates a buffer for a result, or for data passed between two calls, on the device of `x`.
    pub(crate) fn alloc(x: &View, elements: usize, dtype: DType) -> Result<DeviceBuffer> {
        DeviceBuffer::new(&ladder::current().ledger, &x.device, elements, dtype)
    }

    /// Dispatches the kernel.
    pub(crate) fn run(self, grid: Grid) -> Result<()> {
        let Grid { groups: [width, height, depth], threads } = grid;
        if width * height * depth == 0 {
            return Ok(());
        }
        let most = self.pipeline.max_total_threads_per_threadgroup();
        if threads > most {
            let what = format!("{} needs {threads} threads per threadgroup, this GPU allows {most}", self.name);
            return Err(Error::call("metal kernel", what));
        }
        if is_dry() {
            return Ok(());
        }
        // The guard is not re-entrant: nothing below may allocate or call a tensor op before its
        // drop.
        let encoder = self.device.command_encoder()?;
        let encoder = encoder.as_ref();
        encoder.set_compute_pipeline_state(&self.pipeline);
        for (i, argument) in self.arguments.iter().enumerate() {
            match argument {
                Argument::Input(buffer, offset) => encoder.set_input_buffer(i, Some(buffer), *offset),
                Argument::Output(buffer, offset) => encoder.set_output_buffer(i, Some(buffer), *offset),
                Argument::Bytes(bytes) => encoder.set_bytes_directly(i, bytes.len(), bytes.as_ptr().cast::<c_void>()),
            }
        }
        encoder
            .dispatch_thread_groups(MTLSize { width, height, depth }, MTLSize { width: threads, height: 1, depth: 1 });
        Ok(())
    }
}

fn bytes_of(values: &[u32]) -> &[u8] {
    // SAFETY: numbers without padding, borrowed for as long as their bytes.
    #[allow(unsafe_code, reason = "numbers viewed as bytes")]
    unsafe {
        std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values))
    }
}
