//! One launch of a kernel: what it reads and writes, what it is told, and how many threads take part.

use super::buffers::Made;
use super::describe;
use super::modules::{Kernel, function};
use super::view::View;
use crate::{DType, Error, Result, ladder};
use candle_core::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::{CudaFunction, result};
use std::ffi::c_void;
use std::sync::Arc;

/// Blocks along each axis, and threads in each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) blocks: [usize; 3],
    pub(crate) threads: usize,
}

impl Grid {
    /// So many blocks of so many threads.
    pub(crate) fn of(blocks: usize, threads: usize) -> Grid {
        Grid { blocks: [blocks, 1, 1], threads }
    }

    /// At least `n` threads in all, in blocks of 256.
    pub(crate) fn over(n: usize) -> Grid {
        Grid::of(n.div_ceil(256), 256)
    }
}

/// What a kernel is given, in the order of its parameters.
pub(crate) struct Call {
    device: CudaDevice,
    function: CudaFunction,
    name: String,
    shared: usize,
    /// Addresses and numbers, each in a word of its own: a parameter is read at its beginning.
    words: Vec<u64>,
    /// What was uploaded for it, held until it is sent off.
    uploads: Vec<Arc<Made>>,
}

impl Call {
    /// A call of `kernel` on the device that `x` is on.
    pub(crate) fn new(x: &View, kernel: &Kernel) -> Result<Call> {
        let device = x.device.clone();
        let function = function(&device, kernel)?;
        let (name, shared) = (kernel.function.clone(), kernel.shared);
        Ok(Call { device, function, name, shared, words: Vec::with_capacity(16), uploads: Vec::new() })
    }

    /// The next parameter: a tensor that is read.
    pub(crate) fn input(mut self, t: &View) -> Call {
        self.words.push(t.address);
        self
    }

    /// The next parameter: a tensor that is read, or null.
    pub(crate) fn maybe(mut self, t: Option<&View>) -> Call {
        self.words.push(t.map_or(0, |t| t.address));
        self
    }

    /// The next parameter: a result that is written, or what an earlier call of the same op has written.
    pub(crate) fn made(mut self, made: &Made) -> Call {
        self.words.push(made.address);
        self
    }

    /// The next parameter: a tensor that is changed in place.
    pub(crate) fn changed(self, t: &View) -> Call {
        self.input(t)
    }

    /// The next parameter, a `unsigned`.
    pub(crate) fn u32(mut self, n: usize) -> Call {
        self.words.push(u64::from(n as u32));
        self
    }

    /// The next parameter, an `int`.
    pub(crate) fn i32(mut self, n: i32) -> Call {
        self.words.push(u64::from(n as u32));
        self
    }

    /// The next parameter, a `float`.
    pub(crate) fn f32(mut self, x: f32) -> Call {
        self.words.push(u64::from(x.to_bits()));
        self
    }

    /// The next parameter: an array of `unsigned`, null where it is empty.
    pub(crate) fn array(mut self, values: &[u32]) -> Result<Call> {
        let ladder = ladder::current();
        let uploads = &ladder.ledger.cuda.uploads;
        let upload = (!values.is_empty()).then(|| uploads.of(&self.device, values)).transpose()?;
        self.words.push(upload.as_ref().map_or(0, |made| made.address));
        self.uploads.extend(upload);
        Ok(self)
    }

    /// The same for an array of floats.
    pub(crate) fn floats(self, values: &[f32]) -> Result<Call> {
        // SAFETY: both are four bytes of any value.
        #[allow(unsafe_code, reason = "floats seen as their bits")]
        self.array(unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), values.len()) })
    }

    /// Room for a result, or for what passes between two calls, on the device that `x` is on.
    pub(crate) fn room(x: &View, elements: usize, dtype: DType) -> Result<Made> {
        Made::new(&x.device, elements, dtype)
    }

    /// Sends it off.
    pub(crate) fn run(mut self, grid: Grid) -> Result<()> {
        let Grid { blocks, threads } = grid;
        if blocks.contains(&0) {
            return Ok(());
        }
        let axis = |n: usize| u32::try_from(n).map_err(|_| Error::call("cuda", format!("{}: {n} blocks", self.name)));
        let blocks = (axis(blocks[0])?, axis(blocks[1])?, axis(blocks[2])?);
        let mut parameters: Vec<*mut c_void> =
            self.words.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
        let stream = self.device.cuda_stream();
        let fail = |e| Error::call("cuda", format!("{}: {}", self.name, describe(e)));
        stream.context().bind_to_thread().map_err(fail)?;
        // SAFETY: the function is the kernel's, loaded for this context; an op gives it the parameters that it declares, of at most
        // eight bytes each, and its reads and writes stay within their tensors.
        #[allow(unsafe_code, reason = "a kernel is launched")]
        let launched = unsafe {
            let (function, threads) = (self.function.cu_function(), (threads as u32, 1, 1));
            result::launch_kernel(function, blocks, threads, self.shared as u32, stream.cu_stream(), &mut parameters)
        };
        launched.map_err(fail)
    }
}
