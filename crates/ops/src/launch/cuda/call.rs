//! One kernel launch: its parameters and its grid.

use super::buffers::DeviceBuffer;
use super::describe;
use super::maps::TensorMap;
use super::modules::{Function, Kernel, function};
use super::tables;
use super::view::View;
use crate::replay::{self, BatchLayout, Recompute};
use crate::{DType, Error, Result, ladder};
use candle_core::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::sys;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Blocks along each axis, and threads in each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) blocks: [usize; 3],
    pub(crate) threads: usize,
}

impl Grid {
    /// `blocks` blocks of `threads` threads.
    pub(crate) fn of(blocks: usize, threads: usize) -> Grid {
        Grid { blocks: [blocks, 1, 1], threads }
    }

    /// At least `n` threads in all, in blocks of 256.
    pub(crate) fn over(n: usize) -> Grid {
        Grid::of(n.div_ceil(256), 256)
    }

    /// A block for each of `rows`, or several along the second axis if a row needs too many threads
    /// for one.
    pub(crate) fn along(rows: usize, n: usize) -> Grid {
        let several = n.div_ceil(128);
        Grid { blocks: [rows, several, 1], threads: n.div_ceil(several.max(1)).next_multiple_of(32).max(32) }
    }
}

enum Parameter {
    /// An address or a number. The kernel reads as many bytes as its parameter has.
    Word(u64),
    /// A struct of addresses.
    Addresses(Vec<u64>),
    /// A descriptor for the Tensor Memory Accelerator (TMA).
    Map(Box<TensorMap>),
}

/// A kernel launch, with the parameters in the kernel's order.
pub(crate) struct Call {
    device: CudaDevice,
    function: Function,
    name: String,
    shared: usize,
    parameters: Vec<Parameter>,
    /// Arrays uploaded for it, held until the launch.
    uploads: Vec<Arc<DeviceBuffer>>,
}

impl Call {
    /// A call of `kernel` on the device that `x` is on.
    pub(crate) fn new(x: &View, kernel: &Kernel) -> Result<Call> {
        let device = x.device.clone();
        let function = function(&device, kernel)?;
        let (name, shared) = (kernel.function.clone(), kernel.shared);
        Ok(Call { device, function, name, shared, parameters: Vec::with_capacity(16), uploads: Vec::new() })
    }

    /// The next parameter: a tensor that is read.
    pub(crate) fn input(mut self, t: &View) -> Call {
        self.parameters.push(Parameter::Word(t.address));
        self
    }

    /// The next parameter: a tensor that is read, or null.
    pub(crate) fn optional_input(mut self, t: Option<&View>) -> Call {
        self.parameters.push(Parameter::Word(t.map_or(0, |t| t.address)));
        self
    }

    /// The next parameter: a result that is written, or the result of an earlier call of the same
    /// op.
    pub(crate) fn made(mut self, buffer: &DeviceBuffer) -> Call {
        self.parameters.push(Parameter::Word(buffer.address));
        self
    }

    /// The next parameter: a tensor that is changed in place.
    pub(crate) fn changed(self, t: &View) -> Call {
        self.input(t)
    }

    /// The next parameter, a `CUtensorMap`.
    pub(crate) fn map(mut self, map: TensorMap) -> Call {
        self.parameters.push(Parameter::Map(Box::new(map)));
        self
    }

    /// The next parameter, an `unsigned`.
    pub(crate) fn u32(mut self, n: usize) -> Call {
        self.parameters.push(Parameter::Word(u64::from(n as u32)));
        self
    }

    /// The next parameters, see [`params`](crate::launch::params).
    pub(crate) fn numbers(mut self, numbers: &[u32]) -> Call {
        self.parameters.extend(numbers.iter().map(|n| Parameter::Word(u64::from(*n))));
        self
    }

    /// The next parameter: whether the kernel processes its rows in reverse. Every other kernel
    /// does, so that each begins with the rows that the kernel before wrote last, which are still
    /// in the L2 cache. The result is the same.
    pub(crate) fn alternate_row_order(self) -> Call {
        let was_from_end = ladder::current().ledger.cuda.from_end.fetch_xor(true, Ordering::Relaxed);
        self.u32(usize::from(!was_from_end))
    }

    /// The next parameter: an array of `unsigned` that describes the sequences. If they are those
    /// of the pass being captured as a CUDA graph, a replay calls `recompute` for its own batch, if
    /// the launch would be the same. Calls with the same `key` share the array.
    pub(crate) fn dynamic_array(
        mut self,
        values: &[u32],
        is_given: impl FnOnce(&BatchLayout) -> bool,
        key: impl FnOnce(&BatchLayout) -> String,
        recompute: impl FnOnce(&BatchLayout) -> Recompute,
    ) -> Result<Call> {
        match replay::dynamic_param(is_given, key, recompute) {
            Some(address) => self.parameters.push(Parameter::Word(address?)),
            None => return self.array(values),
        }
        Ok(self)
    }

    /// The next parameter: an array of `unsigned`, null if it is empty. A replay could not
    /// recompute it, so a capture refuses it.
    pub(crate) fn array(mut self, values: &[u32]) -> Result<Call> {
        replay::refuse_capture()?;
        let ladder = ladder::current();
        let uploads = &ladder.ledger.cuda.uploads;
        let upload = (!values.is_empty()).then(|| uploads.of(&self.device, values)).transpose()?;
        self.parameters.push(Parameter::Word(upload.as_ref().map_or(0, |buffer| buffer.address)));
        self.uploads.extend(upload);
        Ok(self)
    }

    /// The next parameter: a struct of `len` addresses, padded with null.
    pub(crate) fn addresses(mut self, addresses: &[u64], len: usize) -> Call {
        let all = addresses.iter().copied().chain(std::iter::repeat(0)).take(len).collect();
        self.parameters.push(Parameter::Addresses(all));
        self
    }

    /// The next parameter: a constant table, uploaded at its first use; null if it is empty.
    pub(crate) fn table(mut self, table: &'static [u8]) -> Result<Call> {
        let address = if table.is_empty() { 0 } else { tables::address(&self.device, table)? };
        self.parameters.push(Parameter::Word(address));
        Ok(self)
    }

    /// Allocates a buffer for a result, or for data passed between two calls, on the device of `x`.
    pub(crate) fn alloc(x: &View, elements: usize, dtype: DType) -> Result<DeviceBuffer> {
        DeviceBuffer::new(&x.device, elements, dtype)
    }

    /// Launches the kernel.
    pub(crate) fn run(mut self, grid: Grid) -> Result<()> {
        let Grid { blocks, threads } = grid;
        if blocks.contains(&0) {
            return Ok(());
        }
        let axis = |n: usize| u32::try_from(n).map_err(|_| Error::call("cuda", format!("{}: {n} blocks", self.name)));
        let blocks = [axis(blocks[0])?, axis(blocks[1])?, axis(blocks[2])?];
        let pointer = |parameter: &mut Parameter| match parameter {
            Parameter::Word(word) => std::ptr::from_mut(word).cast::<c_void>(),
            Parameter::Addresses(all) => all.as_mut_ptr().cast(),
            Parameter::Map(map) => std::ptr::from_mut(&mut **map).cast(),
        };
        let mut parameters: Vec<*mut c_void> = self.parameters.iter_mut().map(pointer).collect();
        let stream = self.device.cuda_stream();
        let fail = |e| Error::call("cuda", format!("{}: {}", self.name, describe(e)));
        stream.context().bind_to_thread().map_err(fail)?;
        // The kernel may begin before the launch before it has ended (programmatic dependent
        // launch).
        let mut early = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: blocks[0],
            gridDimY: blocks[1],
            gridDimZ: blocks[2],
            blockDimX: threads as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared as u32,
            hStream: stream.cu_stream(),
            attrs: &raw mut early,
            numAttrs: u32::from(self.function.waits),
        };
        // SAFETY: the function is the kernel's, loaded for this context; an op passes the
        // parameters that it declares, of these kinds, and its reads and writes stay within their
        // tensors. It begins early only if it waits before the first of them.
        #[allow(unsafe_code, reason = "a kernel is launched")]
        let launched = unsafe {
            let function = self.function.function.cu_function();
            sys::cuLaunchKernelEx(&raw const config, function, parameters.as_mut_ptr(), std::ptr::null_mut())
        };
        launched.result().map_err(fail)
    }
}
