//! CUDA graphs: the parameters that a captured pass reads, and the graph itself. See `replay/` for what is captured and when.

use super::pinned::Pinned;
use super::view::address;
use super::{alone, describe, no_memory};
use crate::place::Kind;
use crate::{Error, Place, Result};
use candle_core::cuda_backend::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use candle_core::cuda_backend::cudarc::driver::{CudaGraph, CudaStream, DriverError, result};
use candle_core::cuda_backend::{CudaDType, CudaStorage};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, Storage, Tensor};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// Words of the parameters: page tables of 64 sequences of 64 thousand tokens, and more than anything else takes.
const WORDS: usize = 1 << 18;

/// Numbers that differ from batch to batch: as the host writes them, and as kernels read them.
pub(crate) struct GraphParams {
    stream: Arc<CudaStream>,
    /// One axis, all of it.
    all: Tensor,
    address: u64,
    host: RefCell<Pinned>,
}

impl GraphParams {
    /// None where the device is another, or a phantom.
    pub(crate) fn open(place: &Place) -> Result<Option<GraphParams>> {
        let Kind::Open(_, candle_core::Device::Cuda(device)) = &place.0 else { return Ok(None) };
        let storage = zeros(device).map_err(|e| no_memory(4 * WORDS, &e))?;
        let address = address(&storage)?;
        let all = Tensor::from_storage(Storage::Cuda(storage), WORDS, BackpropOp::none(), false);
        let stream = device.cuda_stream();
        let host = RefCell::new(Pinned::new(stream.context(), 4 * WORDS).map_err(fail("memory to copy from"))?);
        Ok(Some(GraphParams { stream, all, address, host }))
    }

    /// Where a word is on the device.
    pub(crate) fn address(&self, at: usize) -> u64 {
        self.address + 4 * at as u64
    }

    /// Words as a tensor.
    pub(crate) fn view(&self, at: usize, len: usize) -> Result<Tensor> {
        Ok(self.all.narrow(0, at, len)?)
    }

    /// Writes words on the host. What was there must have been copied: see [`GraphParams::wait`].
    pub(crate) fn write(&self, at: usize, words: &[u32]) -> Result<()> {
        let range = within(at, words.len())?;
        let mut host = self.host.borrow_mut();
        let own = host.bytes()[4 * range.start..4 * range.end].chunks_exact_mut(4);
        own.zip(words).for_each(|(own, word)| own.copy_from_slice(&word.to_ne_bytes()));
        Ok(())
    }

    /// Copies words to the device, in the order of its work.
    pub(crate) fn send(&self, at: usize, len: usize) -> Result<()> {
        let range = within(at, len)?;
        let mut host = self.host.borrow_mut();
        self.stream.context().bind_to_thread().map_err(fail("a copy of the parameters of a graph"))?;
        // SAFETY: both ends have these words, and live as long as the parameters do; who writes them again waits first.
        #[allow(unsafe_code, reason = "a copy to the device")]
        let sent = unsafe {
            result::memcpy_htod_async(
                self.address(at),
                &host.bytes()[4 * range.start..4 * range.end],
                self.stream.cu_stream(),
            )
        };
        sent.map_err(fail("a copy of the parameters of a graph"))
    }

    /// Waits until all that was sent off has run.
    pub(crate) fn wait(&self) -> Result<()> {
        self.stream.synchronize().map_err(fail("an earlier pass"))
    }

    /// Captures what `f` sends off, and runs none of it.
    pub(crate) fn capture<T>(&self, f: impl FnOnce() -> T) -> Result<(T, Graph)> {
        // Ends it on every way out: a stream that is left so would take no work any more.
        struct End<'a>(Option<&'a Arc<CudaStream>>);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.map(end);
            }
        }
        let _alone = alone();
        // Of this thread only: others may have devices of their own.
        self.stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .map_err(fail("capturing a pass"))?;
        let mut open = End(Some(&self.stream));
        let out = f();
        open.0 = None;
        let graph = end(&self.stream).map_err(fail("capturing a pass"))?;
        let graph = graph.ok_or_else(|| Error::call("cuda", "the capture of a pass gave no graph"))?;
        graph.upload().map_err(fail("capturing a pass"))?;
        Ok((out, Graph(graph)))
    }
}

/// A pass that was captured.
pub(crate) struct Graph(CudaGraph);

impl Graph {
    /// Sends it off. Its buffers and parameters must be there still.
    pub(crate) fn launch(&self) -> Result<()> {
        self.0.launch().map_err(fail("a captured pass"))
    }
}

/// If something left an error behind while a pass was captured, the first call returns that error and does not end the capture.
fn end(stream: &Arc<CudaStream>) -> Result<Option<CudaGraph>, DriverError> {
    let end = || stream.end_capture(CUgraphInstantiate_flags(0));
    end().or_else(|_| end())
}

fn zeros(device: &CudaDevice) -> candle_core::Result<CudaStorage> {
    Ok(u32::wrap_cuda_slice(device.alloc_zeros::<u32>(WORDS)?, device.clone()))
}

fn within(at: usize, len: usize) -> Result<Range<usize>> {
    let end = at.checked_add(len).filter(|end| *end <= WORDS);
    end.map(|end| at..end)
        .ok_or_else(|| Error::call("cuda", format!("{len} words from {at} on in parameters of {WORDS}")))
}

fn fail(what: &str) -> impl Fn(DriverError) -> Error {
    move |e| Error::call("cuda", format!("{what}: {}", describe(e)))
}
